"""Heads whose step does not grow with the number of classes (paper, appendix "Large Number of Classes").

Same call as in `heads.py`: (features, labels) -> one number to minimise, for labels 0 to C - 1 in any order.
`BatchClassesHead` computes the columns of the batch's own classes only; `HierarchicalHead` first predicts a group of
classes, then the class within its group. Neither knows of message passing, backbones or optimisers.
Shapes: B samples, D feature size, C training classes, K classes that take part in a batch, G groups of classes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import ConfigError
from .heads import Neck


def sparse_parameters(module: nn.Module) -> list[Tensor]:
    """The parameters within `module` whose gradient holds a few rows only; they want `torch.optim.SparseAdam`."""
    return [part.weight for part in module.modules() if isinstance(part, nn.Embedding) and part.sparse]


class BatchClassesHead(nn.Module):
    """Cross-entropy over the classes of the batch, as if all other classes were masked out.

    A class gets a gradient only when a sample of it is in the batch, so the gradient is sparse: K rows instead of C.
    With `negatives` that many classes drawn at random take part too (fewer when one is drawn twice, or is in the batch
    already); the draw follows from the batch's labels, so that a run can be repeated and resumed.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        temperature: float = 1.0,
        smoothing: float = 0.1,
        neck: bool = False,
        negatives: int = 0,
    ) -> None:
        super().__init__()
        if not 0 <= negatives < num_classes:
            raise ConfigError(f"batch-classes head: negatives is {negatives}; expected 0 to {num_classes - 1}")
        self.temperature, self.smoothing, self.negatives = temperature, smoothing, negatives
        self.neck = Neck(dim) if neck else nn.Identity()
        self.classes = nn.Embedding(num_classes, dim, sparse=True)
        nn.init.normal_(self.classes.weight, std=0.001 if neck else dim**-0.5)

    def logits(self, feats_BD: Tensor) -> Tensor:
        """Logits over all classes, for predictions; the loss never computes them."""
        logits_BC: Tensor = self.neck(feats_BD) @ self.classes.weight.T / self.temperature
        return logits_BC

    def forward(self, feats_BD: Tensor, labels_B: Tensor) -> Tensor:
        taking_part_K = self._taking_part(labels_B)
        logits_BK = self.neck(feats_BD) @ self.classes(taking_part_K).T / self.temperature
        columns_B = torch.searchsorted(taking_part_K, labels_B)
        return F.cross_entropy(logits_BK, columns_B, label_smoothing=self.smoothing)

    def _taking_part(self, labels_B: Tensor) -> Tensor:
        """The batch's classes and the drawn negatives, ascending, each once."""
        if self.negatives:
            places_B = torch.arange(1, len(labels_B) + 1, device=labels_B.device)
            generator = torch.Generator().manual_seed(int((labels_B * places_B).sum()))
            drawn = torch.randint(self.classes.num_embeddings, (self.negatives,), generator=generator)
            labels_B = torch.cat([labels_B, drawn.to(labels_B.device)])
        taking_part_K: Tensor = labels_B.unique()  # type: ignore[no-untyped-call]
        return taking_part_K


class HierarchicalHead(nn.Module):
    """A two-level softmax: the group of a class first, then the class within the group (torch's adaptive softmax).

    Made for words, it keeps frequent classes in a short list; classes of images are balanced, so all groups here are of
    one size, runs of neighbouring labels, and keep the full feature size. Its probabilities cover all classes
    and sum to one; label smoothing would need all of them, so there is none.
    """

    def __init__(self, dim: int, num_classes: int, *, temperature: float = 1.0, neck: bool = False) -> None:
        super().__init__()
        if num_classes < 4:
            raise ConfigError(f"hierarchical head: {num_classes} classes; expected at least 4; use a linear head")
        self.temperature = temperature
        self.neck = Neck(dim) if neck else nn.Identity()
        size = group_size(dim, num_classes)
        cutoffs = list(range(size, num_classes, size))
        self.classify = nn.AdaptiveLogSoftmaxWithLoss(dim, num_classes, cutoffs, div_value=1.0)

    def logits(self, feats_BD: Tensor) -> Tensor:
        """Log-probabilities of all classes, for predictions; the loss never computes them."""
        log_BC: Tensor = self.classify.log_prob(self.neck(feats_BD) / self.temperature)
        return log_BC

    def forward(self, feats_BD: Tensor, labels_B: Tensor) -> Tensor:
        loss: Tensor = self.classify(self.neck(feats_BD) / self.temperature, labels_B).loss
        return loss


def group_size(dim: int, num_classes: int) -> int:
    """Classes to a group, for about sqrt(C) groups, where root and leaves cost the same.

    There are at most C / D groups, however: each has a D x D projection of its own, and these should weigh no more than
    the classes do; and at least two.
    """
    num_groups = max(2, min(math.isqrt(num_classes), num_classes // dim))
    return math.ceil(num_classes / num_groups)
