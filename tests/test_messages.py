"""Message passing against a loop over the edges of the batch graph, written from the paper's equations."""

import math

import pytest
import torch

from intrabatch.errors import ConfigError
from intrabatch.messages import Attention, MessagePassing


def linear(layer, vector):
    return [sum(w * x for w, x in zip(row, vector, strict=True)) + b
            for row, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)]  # fmt: skip


def layer_norm(layer, vector):
    mean = sum(vector) / len(vector)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in vector) / len(vector) + layer.eps)
    return [(x - mean) / deviation * w + b
            for x, w, b in zip(vector, layer.weight.tolist(), layer.bias.tolist(), strict=True)]  # fmt: skip


def attention_by_edges(layer, nodes, zero_slot, projected, per_head_scale):
    """Equations 1-4: for every node, every edge that comes in, one after the other."""
    dim, size = len(nodes[0]), len(nodes[0]) // layer.heads
    scale = math.sqrt(size if per_head_scale else dim)
    query, key, value = ([linear(part, node) for node in nodes] for part in (layer.query, layer.key, layer.value))
    gathered = []
    for i in range(len(nodes)):
        heads = []
        for m in range(layer.heads):
            part = slice(m * size, (m + 1) * size)
            scores = [sum(a * b for a, b in zip(query[i][part], k[part], strict=True)) / scale for k in key]
            weights = [math.exp(s) for s in scores]
            total = sum(weights) + (1.0 if zero_slot else 0.0)
            heads += [sum(w / total * v[part][e] for w, v in zip(weights, value, strict=True)) for e in range(size)]
        gathered.append(linear(layer.out, heads) if projected else heads)
    return gathered


def refine_by_edges(
    passing, nodes, *, zero_slot=True, projected=True, per_head_scale=True, normalised=True, entered=True
):
    if normalised:
        nodes = [[x / math.sqrt(sum(y * y for y in node)) for x in node] for node in nodes]
    if entered:
        nodes = [linear(passing.project, node) for node in nodes]
    steps = []
    for step in passing.steps:
        messages = attention_by_edges(step.attention, nodes, zero_slot, projected, per_head_scale)
        heard = [layer_norm(step.norm1, [a + b for a, b in zip(*pair, strict=True)])
                 for pair in zip(nodes, messages, strict=True)]  # fmt: skip
        changes = [linear(step.shrink, [max(0.0, x) for x in linear(step.grow, node)]) for node in heard]
        nodes = [layer_norm(step.norm2, [a + b for a, b in zip(*pair, strict=True)])
                 for pair in zip(heard, changes, strict=True)]  # fmt: skip
        steps.append(nodes)
    return torch.tensor(steps, dtype=torch.float64)


def some_passing(**options):
    torch.manual_seed(1)
    passing = MessagePassing(16, **options).double().eval()
    for parameter in passing.parameters():  # away from zero biases and unit scales, which would hide mistakes
        torch.nn.init.normal_(parameter, std=0.3)
    return passing


@pytest.mark.parametrize("zero_slot", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("heads", [1, 2, 8])
def test_equals_a_loop_over_edges(zero_slot, steps, heads):
    passing = some_passing(steps=steps, heads=heads, zero_slot=zero_slot)
    feats = torch.randn(6, 16, dtype=torch.float64)
    expected = refine_by_edges(passing, feats.tolist(), zero_slot=zero_slot)
    assert torch.allclose(torch.stack(passing(feats)), expected, rtol=0, atol=1e-10)


def test_the_papers_own_variant_equals_a_loop_over_edges():
    passing = some_passing(
        steps=2,
        heads=4,
        zero_slot=False,
        output_projection=False,
        scale="full",
        normalise_input=False,
        input_projection=False,
    )
    feats = torch.randn(5, 16, dtype=torch.float64)
    plain = {"zero_slot": False, "projected": False, "per_head_scale": False, "normalised": False, "entered": False}
    expected = refine_by_edges(passing, feats.tolist(), **plain)
    assert torch.allclose(torch.stack(passing(feats)), expected, rtol=0, atol=1e-10)


def test_zero_slot_is_one_more_sender_with_nothing_to_say():
    attention = Attention(8, 2, zero_slot=True).double()
    plain = Attention(8, 2, zero_slot=False).double()
    plain.load_state_dict(attention.state_dict())
    feats = torch.randn(4, 8, dtype=torch.float64)
    listened = attention.weights(feats).sum(-1)
    assert (listened < 1).all()
    assert torch.allclose(plain.weights(feats).sum(-1), torch.ones(2, 4, dtype=torch.float64))
    assert torch.allclose(attention.weights(feats) / listened[..., None], plain.weights(feats))


def test_order_of_the_batch_does_not_matter():
    passing = some_passing(steps=2, heads=2)
    feats, order = torch.randn(7, 16, dtype=torch.float64), torch.randperm(7)
    assert torch.allclose(passing(feats[order])[-1], passing(feats)[-1][order], rtol=0, atol=1e-12)


def test_many_graphs_at_once_are_refined_as_one_by_one():
    passing = some_passing(steps=2, heads=2)
    graphs = torch.randn(3, 5, 16, dtype=torch.float64)
    together = passing(graphs)[-1]
    assert torch.allclose(together, torch.stack([passing(graph)[-1] for graph in graphs]), rtol=0, atol=1e-12)


def test_gradients_reach_every_parameter_and_the_input():
    passing = MessagePassing(16, steps=2, heads=4, dropout=0.0, attention_dropout=0.0)
    feats = torch.randn(6, 16, requires_grad=True)
    (passing(feats)[-1] * torch.randn(6, 16)).sum().backward()
    assert feats.grad.abs().sum() > 0
    for name, parameter in passing.named_parameters():
        assert parameter.grad.abs().sum() > 0, name  # also the key bias, which acts through the zero slot


def test_attention_maps_are_those_used():
    passing = some_passing(steps=2, heads=2)
    feats = torch.randn(5, 16, dtype=torch.float64)
    maps = passing.attention(feats)
    assert [tuple(weights.shape) for weights in maps] == [(2, 5, 5)] * 2
    again = passing.steps[1].attention.weights(passing(feats)[0])
    assert torch.equal(maps[1], again)


def test_dropout_acts_in_training_only():
    passing = MessagePassing(16, dropout=0.5, attention_dropout=0.5)
    feats = torch.randn(6, 16)
    assert not torch.equal(passing.train()(feats)[-1], passing(feats)[-1])
    assert torch.equal(passing.eval()(feats)[-1], passing(feats)[-1])


def test_heads_must_divide_the_size():
    with pytest.raises(ConfigError, match=r"messages\.heads is 3, but must divide model\.dim = 16; choose from: 1, 2"):
        MessagePassing(16, heads=3)
    with pytest.raises(ConfigError, match=r"messages\.steps is 0; expected at least 1"):
        MessagePassing(16, steps=0)
