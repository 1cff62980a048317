"""Heads for many classes against a full softmax computed with loops, and their gradients against masks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from intrabatch.errors import ConfigError
from intrabatch.many_classes import BatchClassesHead, HierarchicalHead, group_size, sparse_parameters

CLASSES, DIM = 20, 6
LABELS = torch.tensor([3, 17, 3, 9, 17, 0])


def features(seed: int = 0) -> Tensor:
    return torch.randn(len(LABELS), DIM, generator=torch.Generator().manual_seed(seed))


def slow_cross_entropy(logits: list[float], target: int, smoothing: float) -> float:
    total = sum(math.exp(v) for v in logits)
    logs = [v - math.log(total) for v in logits]
    return -(1 - smoothing) * logs[target] - smoothing * sum(logs) / len(logs)


def test_batch_classes_loss_is_a_softmax_over_the_classes_present() -> None:
    head = BatchClassesHead(DIM, CLASSES, temperature=0.5, smoothing=0.1)
    present = sorted(set(LABELS.tolist()))
    rows = head.classes.weight.detach().tolist()
    terms = []
    for feature, label in zip(features().tolist(), LABELS.tolist(), strict=True):
        logits = [sum(f * w for f, w in zip(feature, rows[c], strict=True)) / 0.5 for c in present]
        terms.append(slow_cross_entropy(logits, present.index(label), 0.1))
    assert head(features(), LABELS).item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_batch_classes_gradient_is_that_of_a_masked_full_softmax_and_sparse() -> None:
    head = BatchClassesHead(DIM, CLASSES, smoothing=0.0)
    head(features(), LABELS).backward()
    weight = head.classes.weight.detach().clone().requires_grad_()
    absent = torch.tensor([c not in LABELS.tolist() for c in range(CLASSES)])
    masked = (features() @ weight.T).masked_fill(absent, -torch.inf)
    torch.nn.functional.cross_entropy(masked, LABELS).backward()
    sparse = head.classes.weight.grad
    assert sparse is not None and sparse.is_sparse and weight.grad is not None
    assert sparse.coalesce().indices()[0].tolist() == [0, 3, 9, 17]
    torch.testing.assert_close(sparse.to_dense(), weight.grad)


def test_negatives_take_part_and_follow_from_the_batch_alone() -> None:
    head = BatchClassesHead(DIM, CLASSES, negatives=6)
    taking_part = [head._taking_part(LABELS).tolist() for _ in range(2)]
    assert taking_part[0] == taking_part[1] and set(LABELS.tolist()) < set(taking_part[0])
    assert taking_part[0] == sorted(set(taking_part[0])) and len(taking_part[0]) <= 4 + 6
    assert taking_part[0] != head._taking_part(LABELS.flip(0)).tolist()
    assert head(features(), LABELS) > BatchClassesHead.forward(_without_negatives(head), features(), LABELS)


def _without_negatives(head: BatchClassesHead) -> BatchClassesHead:
    plain = BatchClassesHead(DIM, CLASSES)
    plain.load_state_dict(head.state_dict())
    return plain


def test_a_sparse_step_moves_the_classes_of_the_batch_only() -> None:
    network = torch.nn.ModuleDict({"head": BatchClassesHead(DIM, CLASSES), "other": torch.nn.Linear(2, 2)})
    head = network["head"]
    (weight,) = sparse_parameters(network)
    before = weight.detach().clone()
    optimizer = torch.optim.SparseAdam([weight], lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = head(features(), LABELS)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    moved = (weight.detach() != before).any(1).nonzero()[:, 0].tolist()
    assert moved == [0, 3, 9, 17] and losses == sorted(losses, reverse=True)


def test_hierarchical_loss_is_root_then_leaf() -> None:
    head = HierarchicalHead(2, 12, temperature=0.5)
    feats = features()[:4, :2]
    labels = torch.tensor([0, 5, 11, 4])
    size = head.classify.cutoffs[0]
    terms = []
    for feature, label in zip(feats, labels.tolist(), strict=True):
        root = (head.classify.head.weight @ feature / 0.5).tolist()
        if label < size:
            terms.append(slow_cross_entropy(root, label, 0.0))
            continue
        group = label // size - 1
        project, choose = head.classify.tail[group]  # type: ignore[misc]
        leaf = (choose.weight @ (project.weight @ feature) / 0.5).tolist()
        terms.append(slow_cross_entropy(root, size + group, 0.0) + slow_cross_entropy(leaf, label % size, 0.0))
    assert len(head.classify.tail) >= 2
    assert head(feats, labels).item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)


@pytest.mark.parametrize("num_classes", [4, 5, 7, 20, 121])
def test_hierarchical_probabilities_cover_all_classes(num_classes: int) -> None:
    head = HierarchicalHead(2, num_classes, neck=True).eval()
    log_probabilities = head.logits(features()[:, :2])
    assert log_probabilities.shape == (len(LABELS), num_classes)
    torch.testing.assert_close(log_probabilities.exp().sum(1), torch.ones(len(LABELS)))
    labels = torch.arange(len(LABELS)) % num_classes
    expected = -log_probabilities.gather(1, labels[:, None]).mean()
    torch.testing.assert_close(head(features()[:, :2], labels), expected)


def test_hierarchical_step_touches_only_the_groups_of_the_batch() -> None:
    head = HierarchicalHead(2, 12)
    labels = torch.tensor([0, 1, 11, 11, 2, 0])
    head(features()[:, :2], labels).backward()
    touched = [group[0].weight.grad is not None for group in head.classify.tail]  # type: ignore[index]
    assert touched == [False] * (len(touched) - 1) + [True] and len(touched) > 1


@pytest.mark.parametrize(
    "dim, num_classes, expected", [(512, 1000, 500), (512, 10**4, 527), (512, 10**6, 1000), (2, 12, 4)]
)
def test_groups_are_neither_many_nor_large(dim: int, num_classes: int, expected: int) -> None:
    assert group_size(dim, num_classes) == expected


@pytest.mark.parametrize("kind", [BatchClassesHead, HierarchicalHead])
def test_contract_of_heads(kind: type[BatchClassesHead] | type[HierarchicalHead]) -> None:
    head = kind(DIM, CLASSES, temperature=0.3, neck=True)
    feats = features().requires_grad_()
    loss = head(feats, LABELS)
    loss.backward()
    assert loss.ndim == 0 and loss > 0
    assert feats.grad is not None and (feats.grad.norm(dim=1) > 0).all()
    assert head.logits(feats).shape == (len(LABELS), CLASSES)


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="batch-classes head: negatives is 20; expected 0 to 19"):
        BatchClassesHead(DIM, CLASSES, negatives=CLASSES)
    with pytest.raises(ConfigError, match="hierarchical head: 3 classes; expected at least 4"):
        HierarchicalHead(DIM, 3)
