"""Classifiers and losses over features: each takes (features, labels) and returns one number to minimise.

A head knows nothing of message passing or backbones; `IntraBatchLoss` in `model.py` puts two of them together.
Shapes: B samples, D feature size, C training classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Neck(nn.BatchNorm1d):
    """Batch normalisation before a classifier, its bias frozen at zero."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.bias.requires_grad_(False)


class LinearHead(nn.Module):
    """Cross-entropy over a linear classifier with temperature and label smoothing.

    The method's auxiliary head is `LinearHead(D, C)`; its head on refined features is
    `LinearHead(D, C, neck=True)`: batch norm first, then weights drawn from N(0, 0.001) and no bias.
    """

    def __init__(
        self, dim: int, num_classes: int, *, temperature: float = 1.0, smoothing: float = 0.1, neck: bool = False
    ) -> None:
        super().__init__()
        self.temperature, self.smoothing = temperature, smoothing
        self.neck = Neck(dim) if neck else nn.Identity()
        self.classify = nn.Linear(dim, num_classes, bias=not neck)
        if neck:
            nn.init.normal_(self.classify.weight, std=0.001)

    def logits(self, feats_BD: Tensor) -> Tensor:
        logits_BC: Tensor = self.classify(self.neck(feats_BD)) / self.temperature
        return logits_BC

    def forward(self, feats_BD: Tensor, labels_B: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(feats_BD), labels_B, label_smoothing=self.smoothing)


class CosineHead(nn.Module):
    """Normalised softmax: cross-entropy over cosines to one learned direction a class, divided by the temperature."""

    def __init__(self, dim: int, num_classes: int, *, temperature: float = 0.05, smoothing: float = 0.1) -> None:
        super().__init__()
        self.temperature, self.smoothing = temperature, smoothing
        self.directions_CD = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.kaiming_normal_(self.directions_CD, mode="fan_out")

    def logits(self, feats_BD: Tensor) -> Tensor:
        return F.normalize(feats_BD, dim=-1) @ F.normalize(self.directions_CD, dim=-1).T / self.temperature

    def forward(self, feats_BD: Tensor, labels_B: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(feats_BD), labels_B, label_smoothing=self.smoothing)


class ProxyAnchorHead(nn.Module):
    """Proxy Anchor (Kim et al., CVPR 2020): every class proxy pulls its samples and pushes the others, hard ones more.

    loss = mean over classes present of log(1 + sum exp(-alpha (s - margin))) over their samples
         + mean over all classes of log(1 + sum exp(alpha (s + margin))) over the samples of other classes
    """

    def __init__(self, dim: int, num_classes: int, *, margin: float = 0.1, alpha: float = 32.0) -> None:
        super().__init__()
        self.margin, self.alpha = margin, alpha
        self.proxies_CD = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.kaiming_normal_(self.proxies_CD, mode="fan_out")

    def logits(self, feats_BD: Tensor) -> Tensor:
        cosines_BC = F.normalize(feats_BD, dim=-1) @ F.normalize(self.proxies_CD, dim=-1).T
        return cosines_BC * self.alpha

    def forward(self, feats_BD: Tensor, labels_B: Tensor) -> Tensor:
        logits_BC = self.logits(feats_BD)
        own_BC = F.one_hot(labels_B, logits_BC.shape[1]).bool()
        shift = self.alpha * self.margin
        pull_C = _log_one_plus_sum_exp((shift - logits_BC).masked_fill(~own_BC, -torch.inf))
        push_C = _log_one_plus_sum_exp((shift + logits_BC).masked_fill(own_BC, -torch.inf))
        num_present = own_BC.any(0).sum()
        return pull_C.sum() / num_present + push_C.mean()


def _log_one_plus_sum_exp(values_BC: Tensor) -> Tensor:
    """log(1 + sum over B of exp(values)), without overflow."""
    return torch.logsumexp(F.pad(values_BC, (0, 0, 0, 1)), dim=0)
