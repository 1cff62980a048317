"""Learning rates against their formulas, groups of parameters, averaged weights."""

import math

import pytest
import torch
from conftest import tiny_config

from intrabatch.config import OptimConfig
from intrabatch.model import Network
from intrabatch.optim import Optimizers, rate_factor, total_norm


def factors(**options):
    return [rate_factor(step, 10, 4, OptimConfig(**options)) for step in range(40)]


def test_constant():
    assert factors(schedule="constant") == [1.0] * 40


def test_step_divides_by_ten_after_each_milestone():
    found = factors(schedule="step", milestones=(1, 3))
    assert found == pytest.approx([1.0] * 10 + [0.1] * 20 + [0.01] * 10)


def test_the_schedule_begins_when_the_backbone_learns():
    found = factors(schedule="cosine", frozen_epochs=1, frozen_factor=5.0, warmup_epochs=0.4)
    cosine = [0.5 * (1 + math.cos(math.pi * step / 26)) for step in range(26)]
    assert found == pytest.approx([5.0] * 10 + [0.2, 0.4, 0.6, 0.8] + cosine)


def test_cosine_falls_from_one_to_zero():
    found = factors(schedule="cosine")
    assert found == pytest.approx([0.5 * (1 + math.cos(math.pi * step / 40)) for step in range(40)])


def test_warmup_rises_and_never_starts_at_zero():
    found = factors(schedule="cosine", warmup_epochs=1.0)
    assert found[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert found[10] == 1.0 and found[-1] < 0.01 and found[9] < found[10]


def test_groups_learn_at_their_own_rates():
    config = tiny_config("optim.learning_rate=0.1", "optim.head_factor=5", "optim.proxy_factor=100",
                         "loss.auxiliary_head=proxy_anchor")  # fmt: skip
    network = Network(config, 4)
    optimizers = Optimizers(network, config.optim)
    optimizers.set_rates(0.5)
    rate_of = {id(p): group["lr"] for group in optimizers.parts[0].param_groups for p in group["params"]}
    assert len(rate_of) == len(list(network.parameters()))
    for name, parameter in network.named_parameters():
        backbone, proxy = name.startswith("embedder.backbone"), name.endswith("proxies_CD")
        assert rate_of[id(parameter)] == pytest.approx(0.05 if backbone else 5.0 if proxy else 0.25), name
    assert optimizers.rate() == pytest.approx(0.05)


@pytest.mark.parametrize(("name", "kind"), [("radam", torch.optim.RAdam), ("adamw", torch.optim.AdamW)])
def test_the_optimiser_asked_for(name, kind):
    network = Network(tiny_config(), 4)
    assert type(Optimizers(network, OptimConfig(optimizer=name)).parts[0]) is kind


def test_total_norm_counts_sparse_rows_too():
    layer, table = torch.nn.Linear(3, 2), torch.nn.Embedding(10, 3, sparse=True)
    both = torch.nn.ModuleList([layer, table])
    layer(table(torch.tensor([1, 4, 1]))).square().sum().backward()
    grads = [layer.weight.grad, layer.bias.grad, table.weight.grad.to_dense()]
    assert total_norm(both).item() == pytest.approx(math.sqrt(sum(g.square().sum().item() for g in grads)), rel=1e-5)
