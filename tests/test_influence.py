"""Whose embedding counts: gradients against finite differences, attention against its own definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intrabatch.errors import ConfigError, DataError
from intrabatch.heads import LinearHead
from intrabatch.influence import (
    attention_matrix,
    gradient_matrix,
    neighbour_shares,
    neighbours_by_weight,
    own_class_share,
)
from intrabatch.messages import MessagePassing

NODES, DIM, CLASSES = 5, 8, 3
LABELS = torch.tensor([0, 0, 1, 1, 2])


@pytest.fixture
def passing() -> MessagePassing:
    torch.manual_seed(0)
    return MessagePassing(DIM, steps=2, heads=2).double()


def embeddings() -> Tensor:
    return torch.randn(NODES, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("of", ["logit", "loss"])
def test_gradients_are_finite_differences(passing: MessagePassing, of: str) -> None:
    head = LinearHead(DIM, CLASSES, neck=True).double().eval()
    passing.eval()

    def predict(feats_BD: Tensor) -> Tensor:
        return head.logits(passing(feats_BD)[-1])

    def output(feats_BD: Tensor, row: int) -> float:
        logits = predict(feats_BD)[row]
        return (logits[LABELS[row]] if of == "logit" else F.cross_entropy(logits, LABELS[row])).item()

    step, expected = 1e-5, torch.zeros(NODES, NODES, dtype=torch.float64)
    for row in range(NODES):
        for neighbour in range(NODES):
            slopes = []
            for number in range(DIM):
                up, down = embeddings(), embeddings()
                up[neighbour, number] += step
                down[neighbour, number] -= step
                slopes.append((output(up, row) - output(down, row)) / (2 * step))
            expected[row, neighbour] = sum(slope**2 for slope in slopes) ** 0.5
    with torch.no_grad():
        found = gradient_matrix(predict, embeddings(), LABELS, of)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-10)
    assert all(parameter.grad is None for parameter in passing.parameters())


def test_without_messages_only_the_sample_itself_counts() -> None:
    head = LinearHead(DIM, CLASSES).double()
    found = gradient_matrix(head.logits, embeddings(), LABELS)
    assert (found.diagonal() > 0).all() and found.sum() == found.trace()


def test_attention_is_averaged_over_heads_and_the_mode_is_kept(passing: MessagePassing) -> None:
    attention = passing.steps[0].attention
    entered = passing.project(F.normalize(embeddings(), dim=-1))
    queries, keys = attention.query(entered), attention.key(entered)  # type: ignore[operator, union-attr]
    expected = torch.zeros(NODES, NODES, dtype=torch.float64)
    for head in (slice(0, 4), slice(4, 8)):
        for i in range(NODES):
            scores = torch.stack([queries[i, head] @ keys[j, head] / 2 for j in range(NODES)]).exp()
            expected[i] += scores.detach() / (1 + scores.sum().item()) / 2
    torch.testing.assert_close(attention_matrix(passing, embeddings(), step=0), expected)
    assert passing.training
    last = attention_matrix(passing, embeddings())
    torch.testing.assert_close(last, attention_matrix(passing.eval(), embeddings(), step=1))
    assert not passing.training and not torch.allclose(last, expected)


def test_neighbours_come_by_weight_without_the_query() -> None:
    weights = torch.tensor([[0.2, 0.1, 0.3, 0.1], [0.2, 0.7, 0.0, 0.1]])
    ranked = neighbours_by_weight(weights, 0)
    assert ranked.indices_K.tolist() == [2, 1, 3]
    assert ranked.weights_K.tolist() == pytest.approx([0.3, 0.1, 0.1])
    assert neighbours_by_weight(weights, 1).indices_K.tolist() == [0, 3, 2]


def test_shares_of_a_row_sum_to_one_without_the_sample_itself() -> None:
    weights = torch.tensor([[9.0, 1, 3], [1, 9, 1], [0, 0, 9]])
    expected = torch.tensor([[0, 0.25, 0.75], [0.5, 0, 0.5], [0, 0, 0]])  # one who hears nobody has no shares
    torch.testing.assert_close(neighbour_shares(weights), expected)


def test_share_of_the_own_class_leaves_the_sample_out() -> None:
    weights = torch.tensor([[9.0, 1, 3], [1, 9, 1], [0, 0, 9]])
    assert own_class_share(weights, torch.tensor([0, 0, 1])).tolist() == pytest.approx([0.25, 0.5, 0.0])


def test_errors(passing: MessagePassing) -> None:
    with pytest.raises(DataError, match="attention of step 2 asked for; there are 2 steps"):
        attention_matrix(passing, embeddings(), step=2)
    with pytest.raises(ConfigError, match="unknown output 'logits' to take the gradient of; did you mean 'logit'"):
        gradient_matrix(lambda feats: feats, embeddings(), LABELS, "logits")  # type: ignore[arg-type]
