"""The Group Loss (Elezi et al., ECCV 2020): class assignments refined by a fixed rule instead of a learned one.

The closest relative of message passing. A linear softmax gives every sample a prior over classes; a few samples of each
class, the anchors, are given their label instead. Samples then exchange assignments in proportion to the similarity of
their embeddings (replicator dynamics), and cross-entropy judges the refined assignments. This module knows nothing of
backbones: embeddings and labels in, one number out.

Their paper's similarity has a zero diagonal, as here; their released code leaves ones there. They draw the anchors at
random from the batch; here they are the first samples of each class: as random as the batch is, and repeatable.

Shapes: B samples, D embedding size, C training classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import ConfigError


def similarities(embeddings_BD: Tensor) -> Tensor:
    """Pearson correlations between embeddings, the negative ones and the diagonal set to zero (their section 3.2)."""
    centred_BD = F.normalize(embeddings_BD - embeddings_BD.mean(-1, keepdim=True), dim=-1)
    positive_BB = (centred_BD @ centred_BD.T).relu()
    return positive_BB * (1 - torch.eye(len(positive_BB), dtype=positive_BB.dtype, device=positive_BB.device))


def anchors_of(labels_B: Tensor, per_class: int) -> Tensor:
    """Which samples keep their label: the first `per_class` of each class, but never all samples of a class."""
    same_BB = labels_B[:, None] == labels_B[None, :]
    place_B, size_B = same_BB.tril(-1).sum(1), same_BB.sum(1)
    return (place_B < per_class) & (place_B < size_B - 1)


class GroupLoss(nn.Module):
    """Cross-entropy of the samples that are not anchors, after `steps` of replicator dynamics.

    Defaults are those of the authors' settings for CUB-200-2011: one step, two anchors a class, and a temperature that
    makes the prior soft. It fits embeddings as they leave the backbone, not normalised.
    """

    def __init__(
        self, num_classes: int, dim: int = 512, *, steps: int = 1, anchors: int = 2, temperature: float = 24.0
    ) -> None:
        super().__init__()
        for name, value, least in (("steps", steps, 1), ("anchors", anchors, 0)):
            if value < least:
                raise ConfigError(f"group loss: {name} is {value}; expected at least {least}")
        if temperature <= 0:
            raise ConfigError(f"group loss: temperature is {temperature}; expected more than 0")
        self.steps, self.anchors, self.temperature = steps, anchors, temperature
        self.classify = nn.Linear(dim, num_classes)

    def logits(self, embeddings_BD: Tensor) -> Tensor:
        logits_BC: Tensor = self.classify(embeddings_BD) / self.temperature
        return logits_BC

    def log_assignments(self, embeddings_BD: Tensor, labels_B: Tensor) -> Tensor:
        """Log of the refined assignments (B, C); an anchor's is its label throughout.

        A step is X <- X * (W X), rows divided by their sum. In logarithms that is a log-softmax, which neither
        underflows nor divides by zero: a sample that resembles nobody keeps its assignment.
        """
        weights_BB = similarities(embeddings_BD)
        is_anchor_B1 = anchors_of(labels_B, self.anchors)[:, None]
        given_BC = F.one_hot(labels_B, self.classify.out_features).to(embeddings_BD.dtype)
        log_BC = self.logits(embeddings_BD).log_softmax(-1)
        for _ in range(self.steps):
            support_BC = weights_BB @ torch.where(is_anchor_B1, given_BC, log_BC.exp())
            log_BC = (log_BC + support_BC.clamp_min(torch.finfo(support_BC.dtype).tiny).log()).log_softmax(-1)
        return torch.where(is_anchor_B1, given_BC.log(), log_BC)

    def forward(self, embeddings_BD: Tensor, labels_B: Tensor) -> Tensor:
        learning_B = ~anchors_of(labels_B, self.anchors)
        return F.nll_loss(self.log_assignments(embeddings_BD, labels_B)[learning_B], labels_B[learning_B])
