"""A step in two halves: gradients that move nothing, an update that does, and what is decided about a GPU."""

from copy import deepcopy

import pytest
import torch
from conftest import tiny_config

from intrabatch.model import Network
from intrabatch.optim import AveragedWeights, Optimizers
from intrabatch.steps import UNRECORDABLE, Steps, compile_where_it_pays

CROPS, LABELS = torch.rand(6, 3, 16, 16), torch.tensor([0, 0, 1, 1, 2, 2])


def steps_of(*assignments, clip=0.0, ema=0.0, num_classes=3):
    torch.manual_seed(0)
    config = tiny_config("messages.dropout=0", "messages.attention_dropout=0", *assignments)
    network = Network(config, num_classes).train()
    average = AveragedWeights(network, ema) if ema else None
    return Steps(network, Optimizers(network, config.optim), average, torch.float32, clip)


def learned(network):
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def test_gradients_move_no_parameter_and_the_update_moves_them_all():
    steps = steps_of()
    before = learned(steps.network)
    steps.gradients(CROPS, LABELS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in learned(steps.network).items())
    with_gradient = {name for name, p in steps.network.named_parameters() if p.grad is not None and p.grad.any()}
    steps.update()
    moved = {name for name, tensor in learned(steps.network).items() if not torch.equal(tensor, before[name])}
    assert with_gradient <= moved and "embedder.backbone.conv1.0.weight" in moved


def test_values_are_the_losses_and_the_norm_of_the_gradient():
    steps = steps_of()
    values = dict(zip(steps.gradients(CROPS, LABELS).tolist(), [None] * 4, strict=True))
    loss, auxiliary, messages, norm = values
    assert steps.names == ("loss", "loss/auxiliary", "loss/messages", "gradient_norm")
    assert loss == pytest.approx(auxiliary + messages, rel=1e-6)
    squares = sum(float(p.grad.double().square().sum()) for p in steps.network.parameters() if p.grad is not None)
    assert norm == pytest.approx(squares**0.5, rel=1e-5)


def test_clipping_shrinks_the_whole_gradient_and_reports_its_norm_before():
    whole, clipped = steps_of(), steps_of(clip=0.5)
    norm, reported = float(whole.gradients(CROPS, LABELS)[-1]), float(clipped.gradients(CROPS, LABELS)[-1])
    assert norm > 0.5 and reported == pytest.approx(norm)
    for one, other in zip(whole.network.parameters(), clipped.network.parameters(), strict=True):
        if one.grad is not None:
            assert torch.allclose(one.grad * (0.5 / norm), other.grad, atol=1e-7)


def test_averaged_weights_move_with_the_update():
    steps = steps_of(ema=0.9)
    before = {name: tensor.clone() for name, tensor in steps.average.average.items()}
    steps.gradients(CROPS, LABELS)
    assert torch.equal(before["embedder.project.weight"], steps.average.average["embedder.project.weight"])
    steps.update()
    now = steps.network.state_dict()["embedder.project.weight"]
    expected = 0.9 * before["embedder.project.weight"] + 0.1 * now
    assert torch.allclose(steps.average.average["embedder.project.weight"], expected, atol=1e-7)


@pytest.mark.parametrize("head", ["group", "batch_classes", "hierarchical"])
def test_heads_whose_shapes_depend_on_labels_are_known(head):
    steps = steps_of(f"loss.auxiliary_head={head}", "loss.messages=0", num_classes=4)
    assert any(isinstance(module, UNRECORDABLE) for module in steps.network.modules())


def test_training_calls_what_was_compiled_and_evaluation_does_not(monkeypatch):
    network, called = steps_of().network, []

    def remembered(part, dynamic):
        assert not dynamic
        return lambda *inputs: called.append(part.__qualname__) or part(*inputs)

    plain = network(CROPS, LABELS)
    monkeypatch.setattr(torch, "compile", remembered)
    network.fuse()
    fused = network(CROPS, LABELS)
    assert called == ["Embedder.forward", "IntraBatchLoss.parts"]
    assert {name: value.item() for name, value in fused.items()} == pytest.approx(
        {name: value.item() for name, value in plain.items()}
    )
    network.eval().embedder.embed(CROPS)
    assert len(called) == 2


@pytest.mark.parametrize("wanted", ["auto", "always", "never"])
def test_nothing_is_compiled_for_a_cpu(wanted):
    assert not compile_where_it_pays(steps_of().network, wanted, 10**6)


def test_a_checkpoint_of_another_device_does_not_change_how_updates_are_made():
    steps, other = steps_of(), steps_of()
    steps.gradients(CROPS, LABELS)
    steps.update()
    (state,) = deepcopy(steps.optimizer.state_dict())
    for group in state["param_groups"]:
        group |= {"fused": True, "capturable": True, "lr": torch.tensor(0.5)}
    other.optimizer.load_state_dict([state])
    group = other.optimizer.parts[0].param_groups[0]
    assert not group["capturable"] and not group["fused"] and isinstance(group["lr"], float)
    for step in (steps, other):
        step.network.load_state_dict(steps_of().network.state_dict())
        step.gradients(CROPS, LABELS)
        step.update()
    assert all(map(torch.equal, learned(steps.network).values(), learned(other.network).values()))
