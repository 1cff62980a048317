"""The Group Loss against double loops in float64, written from the equations of its paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from intrabatch.errors import ConfigError
from intrabatch.group_loss import GroupLoss, anchors_of, similarities

CLASSES, DIM = 5, 6


def batch(labels: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(labels), DIM, generator=generator, dtype=torch.float64), torch.tensor(labels)


def loss_of(**settings: float) -> GroupLoss:
    torch.manual_seed(1)
    return GroupLoss(CLASSES, DIM, **{"temperature": 0.7, **settings}).double()  # type: ignore[arg-type]


def correlation(x: list[float], y: list[float]) -> float:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    spread = math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))
    return covariance / spread


def slow_loss(loss: GroupLoss, embeddings: Tensor, labels: list[int]) -> tuple[float, list[list[float]]]:
    """The loss and the refined assignments, one number at a time."""
    rows, n = embeddings.tolist(), len(labels)
    weight = [[max(0.0, correlation(rows[i], rows[j])) if i != j else 0.0 for j in range(n)] for i in range(n)]
    anchors = []
    for i in range(n):
        earlier = sum(labels[j] == labels[i] for j in range(i))
        anchors.append(earlier < loss.anchors and earlier < labels.count(labels[i]) - 1)
    assigned = []
    for i in range(n):
        if anchors[i]:
            assigned.append([float(c == labels[i]) for c in range(CLASSES)])
        else:
            scores = loss.classify(embeddings[i]).div(loss.temperature).exp().tolist()
            assigned.append([s / sum(scores) for s in scores])
    for _ in range(loss.steps):
        support = [[sum(weight[i][j] * assigned[j][c] for j in range(n)) for c in range(CLASSES)] for i in range(n)]
        for i in range(n):
            products = [assigned[i][c] * support[i][c] for c in range(CLASSES)]
            if sum(products) > 0:
                assigned[i] = [p / sum(products) for p in products]
    terms = [-math.log(assigned[i][labels[i]]) for i in range(n) if not anchors[i]]
    return sum(terms) / len(terms), assigned


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("anchors", [0, 1, 2])
@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 1, 1, 4, 4, 4], [2, 0, 2, 0, 3, 2, 2]])
def test_loss_is_the_papers(steps: int, anchors: int, labels: list[int]) -> None:
    embeddings, targets = batch(labels)
    loss = loss_of(steps=steps, anchors=anchors)
    expected, assigned = slow_loss(loss, embeddings, labels)
    assert loss(embeddings, targets).item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(loss.log_assignments(embeddings, targets).exp().tolist(), assigned)


def test_gradient_reaches_embeddings_and_classifier_and_is_right() -> None:
    embeddings, targets = batch([0, 0, 0, 1, 1, 2, 2])
    loss = loss_of(steps=2, anchors=1)
    loss(embeddings.requires_grad_(), targets).backward()
    assert embeddings.grad is not None and (embeddings.grad.norm(dim=1) > 0).all()
    assert loss.classify.weight.grad is not None
    assert torch.autograd.gradcheck(lambda e: loss(e, targets), (embeddings,))


def test_each_step_raises_the_agreement_of_neighbours() -> None:
    """Baum and Eagon: with symmetric, non-negative weights the sum of w_ij x_i . x_j never falls."""
    embeddings, targets = batch([0, 0, 0, 1, 1, 1, 2, 2, 2])
    agreements = []
    for steps in range(1, 8):
        assigned = loss_of(steps=steps, anchors=1).log_assignments(embeddings, targets).exp()
        agreements.append((similarities(embeddings) * (assigned @ assigned.T)).sum().item())
    assert agreements == sorted(agreements) and agreements[-1] > agreements[0] * 1.01


def test_similarities_are_symmetric_between_zero_and_one_and_zero_on_the_diagonal() -> None:
    embeddings, _ = batch([0] * 8)
    weights = similarities(embeddings)
    torch.testing.assert_close(weights, weights.T)
    assert weights.min() == 0 and weights.max() <= 1 and (weights.diagonal() == 0).all()


def test_anchors_come_first_and_never_are_all_of_a_class() -> None:
    labels = torch.tensor([3, 1, 3, 1, 3, 0])
    assert anchors_of(labels, 1).tolist() == [True, True, False, False, False, False]
    assert anchors_of(labels, 9).tolist() == [True, True, True, False, False, False]


def test_a_sample_that_resembles_nobody_keeps_its_prior() -> None:
    embeddings = torch.tensor([[1.0, -1, 0, 0, 0, 0], [1, -1, 0.1, 0, 0, 0], [-1, 1, 0, 0, 0, 0]]).double()
    loss = loss_of(steps=3, anchors=0)
    prior = loss.logits(embeddings).softmax(-1)
    refined = loss.log_assignments(embeddings, torch.tensor([0, 0, 1])).exp()
    torch.testing.assert_close(refined[2], prior[2])
    assert (refined[0] - prior[0]).abs().max() > 1e-3


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e4])
def test_loss_and_gradient_stay_finite_in_float32(scale: float) -> None:
    embeddings, targets = batch([0, 0, 1, 1, 2])
    entered = (embeddings.float() * scale).requires_grad_()
    value = loss_of(steps=4, temperature=0.01).float()(entered, targets)
    value.backward()
    assert value >= 0 and value.isfinite() and entered.grad is not None and entered.grad.isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "group loss: steps is 0; expected at least 1"),
        ({"anchors": -1}, "group loss: anchors is -1; expected at least 0"),
        ({"temperature": 0.0}, r"group loss: temperature is 0.0; expected more than 0"),
    ],
)
def test_wrong_settings(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loss_of(**wrong)
