"""Which neighbours count: whom a sample listens to, and whose embedding moves its prediction.

Two views of one batch, both matrices with a row for each sample and a column for each neighbour: attention weights, and
the paper's gradients ("MPN matters": an untrained network listens to nearly everybody, a trained one to its own class).
Tensors in, tensors out; nothing here knows of runs, backbones or pictures.

Shapes: B samples of a batch, D embedding size, L message-passing steps, M heads, K neighbours shown, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import ConfigError, DataError, did_you_mean
from .messages import MessagePassing


class Ranked(NamedTuple):
    """Neighbours of one sample, the weightiest first."""

    indices_K: Tensor
    weights_K: Tensor


def attention_matrix(passing: MessagePassing, embeddings_BD: Tensor, step: int = -1) -> Tensor:
    """Who listens to whom in one step (the last by default), averaged over heads; the mode of `passing` is kept."""
    was_training = passing.training
    try:
        weights_LMBB = passing.eval().attention(embeddings_BD)
    finally:
        passing.train(was_training)
    if not -len(weights_LMBB) <= step < len(weights_LMBB):
        raise DataError(f"attention of step {step} asked for; there are {len(weights_LMBB)} steps, counted from 0")
    return weights_LMBB[step].mean(0)


def gradient_matrix(
    predict: Callable[[Tensor], Tensor],
    embeddings_BD: Tensor,
    labels_B: Tensor,
    of: Literal["logit", "loss"] = "logit",
) -> Tensor:
    """How much each neighbour moves the prediction of a sample: the norm of d output(row) / d embedding(column).

    The output of a sample is the logit of its own class, or its cross-entropy. `predict` gives the logits (B, C) of a
    batch of embeddings, in eval mode; for a trained loss: `lambda feats: loss.refined.logits(loss.refine(feats))`.
    """
    entered_BD = embeddings_BD.detach().requires_grad_()
    with torch.enable_grad():
        logits_BC = predict(entered_BD)
        if of == "logit":
            outputs_B = logits_BC.gather(1, labels_B[:, None])[:, 0]
        elif of == "loss":
            outputs_B = F.cross_entropy(logits_BC, labels_B, reduction="none")
        else:
            raise ConfigError(f"unknown output '{of}' to take the gradient of{did_you_mean(of, ['logit', 'loss'])}")
        rows_BB = [_norms_of_gradient(output, entered_BD) for output in outputs_B]
    return torch.stack(rows_BB)


def _norms_of_gradient(output: Tensor, entered_BD: Tensor) -> Tensor:
    (gradient_BD,) = torch.autograd.grad(output, entered_BD, retain_graph=True)
    norms_B: Tensor = gradient_BD.norm(dim=-1)
    return norms_B


def neighbours_by_weight(weights_BB: Tensor, query: int) -> Ranked:
    """All other samples of the batch, those that count most for `query` first."""
    order_B = weights_BB[query].argsort(descending=True, stable=True)
    indices_K = order_B[order_B != query]
    return Ranked(indices_K, weights_BB[query][indices_K])


def neighbour_shares(weights_BB: Tensor) -> Tensor:
    """Each row as shares of what its neighbours weigh together; the sample itself is left out and has none."""
    others_BB = weights_BB * (1 - torch.eye(len(weights_BB), dtype=weights_BB.dtype, device=weights_BB.device))
    return others_BB / others_BB.sum(1, keepdim=True).clamp_min(torch.finfo(weights_BB.dtype).tiny)


def own_class_share(weights_BB: Tensor, labels_B: Tensor) -> Tensor:
    """For each sample the share of its neighbours' weight that lies on its own class."""
    return (neighbour_shares(weights_BB) * (labels_B[:, None] == labels_B[None, :])).sum(1)
