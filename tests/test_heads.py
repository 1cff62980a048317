"""Heads against their formulas in plain loops; one contract over all of them."""

import math
from typing import get_args

import pytest
import torch

from intrabatch.config import HeadKind, LossConfig, MessagesConfig
from intrabatch.errors import DataError
from intrabatch.heads import CosineHead, LinearHead, ProxyAnchorHead
from intrabatch.model import IntraBatchLoss, make_head

KINDS = get_args(HeadKind)


def smoothed_cross_entropy(logits, label, smoothing):
    logits = [float(x) for x in logits]
    total = sum(math.exp(x) for x in logits)
    target = [smoothing / len(logits) + (1 - smoothing) * (c == label) for c in range(len(logits))]
    return -sum(t * (x - math.log(total)) for t, x in zip(target, logits, strict=True))


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 3, 3])


def test_linear_head_is_smoothed_cross_entropy_at_a_temperature(batch):
    feats, labels = batch
    head = LinearHead(4, 5, temperature=0.5, smoothing=0.1).double()
    weight, bias = head.classify.weight.tolist(), head.classify.bias.tolist()
    losses = []
    for feat, label in zip(feats.tolist(), labels.tolist(), strict=True):
        logits = [(sum(w * x for w, x in zip(row, feat, strict=True)) + b) / 0.5
                  for row, b in zip(weight, bias, strict=True)]  # fmt: skip
        losses.append(smoothed_cross_entropy(logits, label, 0.1))
    assert head(feats, labels).item() == pytest.approx(sum(losses) / len(losses), abs=1e-12)


def test_head_on_refined_features_has_a_neck_and_no_bias():
    head = LinearHead(4, 200, neck=True)
    assert head.classify.bias is None
    assert head.classify.weight.std().item() == pytest.approx(0.001, rel=0.1)
    assert not head.neck.bias.requires_grad and head.neck.weight.requires_grad


def test_cosine_head_is_cross_entropy_over_cosines(batch):
    feats, labels = batch
    head = CosineHead(4, 5, temperature=0.1, smoothing=0.0).double()
    losses = [
        smoothed_cross_entropy([cosine(feat, row) / 0.1 for row in head.directions_CD.tolist()], label, 0.0)
        for feat, label in zip(feats.tolist(), labels.tolist(), strict=True)
    ]
    assert head(feats, labels).item() == pytest.approx(sum(losses) / len(losses), abs=1e-12)


def test_proxy_anchor_equals_its_formula(batch):
    feats, labels = batch
    head = ProxyAnchorHead(4, 5, margin=0.1, alpha=8.0).double()
    pull = push = 0.0
    for c, proxy in enumerate(head.proxies_CD.tolist()):
        near = [cosine(f, proxy) for f, y in zip(feats.tolist(), labels.tolist(), strict=True) if y == c]
        far = [cosine(f, proxy) for f, y in zip(feats.tolist(), labels.tolist(), strict=True) if y != c]
        pull += math.log(1 + sum(math.exp(-8.0 * (s - 0.1)) for s in near)) if near else 0.0
        push += math.log(1 + sum(math.exp(8.0 * (s + 0.1)) for s in far))
    assert head(feats, labels).item() == pytest.approx(pull / 3 + push / 5, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("refined", [False, True])
def test_contract_of_all_heads(kind, dtype, refined):
    """Finite, one number, gradient to the features and every trained parameter; also for a batch of one class."""
    head = make_head(kind, 8, 5, LossConfig(), refined=refined).to(dtype)
    for labels in (torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([2] * 6)):
        feats = torch.randn(6, 8, dtype=dtype, requires_grad=True)
        loss = head(feats, labels)
        assert loss.shape == () and torch.isfinite(loss)
        loss.backward()
        assert feats.grad.abs().sum() > 0 or kind == "batch_classes"  # one class of one: nothing to tell apart
        reached = [p.grad is not None for p in head.parameters() if p.requires_grad]
        assert any(reached) and (all(reached) or kind == "hierarchical")  # groups without a sample in the batch rest
    assert head.logits(feats).shape == (6, 5)


def test_the_loss_is_the_weighted_sum_of_its_two_parts(batch):
    feats, labels = batch[0].float(), batch[1]
    loss_fn = IntraBatchLoss(5, 4, loss=LossConfig(auxiliary=0.5, messages=2.0)).eval()
    parts = loss_fn.parts(feats, labels)
    assert list(parts) == ["auxiliary", "messages"]
    expected = 0.5 * parts["auxiliary"].item() + 2 * parts["messages"].item()
    assert loss_fn(feats, labels).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("off", "left"), [("auxiliary", "messages"), ("messages", "auxiliary")])
def test_either_part_can_be_off(batch, off, left):
    loss_fn = IntraBatchLoss(5, 4, loss=LossConfig(**{off: 0.0}))
    assert list(loss_fn.parts(batch[0].float(), batch[1])) == [left]
    assert (loss_fn.passing is None) == (off == "messages")


def test_head_may_read_all_steps(batch):
    loss_fn = IntraBatchLoss(5, 4, messages=MessagesConfig(steps=3, head_input="all"))
    assert loss_fn.refine(batch[0].float()).shape == (6, 12)
    loss_fn(batch[0].float(), batch[1]).backward()


def test_gradients_reach_the_embeddings_and_all_parameters(batch):
    feats = batch[0].float().requires_grad_()
    loss_fn = IntraBatchLoss(5, 4)
    loss_fn(feats, batch[1]).backward()
    assert feats.grad.abs().sum() > 0
    missing = [n for n, p in loss_fn.named_parameters() if p.requires_grad and p.grad is None]
    assert not missing


def test_works_in_a_loop_written_for_pytorch_metric_learning():
    """The field's loop: loss_func(embeddings, labels), its parameters in their own optimiser; the loss must fall."""
    torch.manual_seed(0)
    images, labels = torch.randn(24, 10), torch.arange(6).repeat_interleave(4)
    model = torch.nn.Linear(10, 16)
    loss_func = IntraBatchLoss(num_classes=6, dim=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss_optimizer = torch.optim.AdamW(loss_func.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss_optimizer.zero_grad()
        loss = loss_func(model(images), labels)
        loss.backward()
        optimizer.step()
        loss_optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


# Their trainer turns a loss into a number without detaching it first.
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning")
def test_works_in_the_trainer_of_pytorch_metric_learning():
    trainers = pytest.importorskip("pytorch_metric_learning.trainers", reason="a neighbour's library, for this test")
    torch.manual_seed(0)
    images, labels = torch.randn(24, 10), torch.arange(6).repeat_interleave(4)
    embedder, loss_func = torch.nn.Linear(10, 16), IntraBatchLoss(num_classes=6, dim=16)
    before = [parameter.clone() for parameter in [*embedder.parameters(), loss_func.auxiliary.classify.weight]]
    trunk = torch.nn.Linear(10, 10)
    optimizers = {
        "trunk_optimizer": torch.optim.AdamW(trunk.parameters(), lr=1e-2),
        "embedder_optimizer": torch.optim.AdamW(embedder.parameters(), lr=1e-2),
        "metric_loss_optimizer": torch.optim.AdamW(loss_func.parameters(), lr=1e-2),
    }
    trainer = trainers.MetricLossOnly(
        {"trunk": trunk, "embedder": embedder},
        optimizers,
        batch_size=12,
        loss_funcs={"metric_loss": loss_func},
        dataset=torch.utils.data.TensorDataset(images, labels),
        data_device="cpu",
        dataloader_num_workers=0,
    )
    trainer.train(num_epochs=2)
    after = [*embedder.parameters(), loss_func.auxiliary.classify.weight]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    with pytest.raises(DataError, match="mined pairs were given; it compares all images of a batch"):
        loss_func(embedder(trunk(images)), labels, (labels, labels, labels))


@pytest.mark.parametrize(
    ("feats", "labels", "message"),
    [
        (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), r"shape \(4, 3\), expected \(batch, 4\); set dim="),
        (torch.zeros(4, 4), torch.zeros(5, dtype=torch.long), r"labels have shape \(5,\), expected \(4,\)"),
        (torch.zeros(4, 4), torch.tensor([0, 1, 2, 9]), r"labels run from 0 to 9, expected 0 to 4"),
        (torch.zeros(4, 4), torch.tensor([0, -1, 2, 3]), r"labels run from -1 to 3"),
    ],
)
def test_wrong_input_is_one_clear_line(feats, labels, message):
    with pytest.raises(DataError, match=message):
        IntraBatchLoss(5, 4)(feats, labels)
