"""Figures of an embedding on classes it has never seen, with the protocol they were measured under.

Arrays go to `metrics` and `clustering`; this module decides what is embedded, which images are queries, and what is
stamped on the result. It does not know training.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ._version import VERSION
from .backbone import Embedder
from .clustering import nmi_figures
from .config import Config, EvalConfig
from .data.image_set import ImageSet
from .data.pixels import Pixels, open_pixels
from .embed import embed_crops
from .errors import DataError, EvaluationError
from .metrics import Retrieval, retrieval_figures
from .run import Run


@dataclass(frozen=True)
class Evaluator:
    """A split of an image set, decoded and ready to be embedded again and again."""

    images: ImageSet
    split: str
    pixels: Pixels
    config: Config
    device: torch.device

    @staticmethod
    def for_split(images: ImageSet, split: str, config: Config, device: torch.device) -> Evaluator | None:
        """None when the image set has nothing to evaluate in that split: no image, or no class with two."""
        if images.splits is None or not (images.splits == split).any():
            return None
        chosen = images.only(split)
        if chosen.class_sizes().max() < 2:
            return None
        return Evaluator(chosen, split, open_pixels(chosen, config.image, device), config, device)

    def vectors(self, embedder: Embedder, precision: torch.dtype) -> NDArray[np.float32]:
        return embed_crops(embedder, self.pixels.test_crops(self.config.evaluation.batch), precision)

    def retrieval(self, embedder: Embedder, precision: torch.dtype) -> dict[str, float]:
        """Retrieval figures only: quick enough for every epoch."""
        return self._retrieval(self.vectors(embedder, precision)).summary()

    def measure(self, embedder: Embedder, precision: torch.dtype) -> dict[str, Any]:
        """All figures."""
        vectors_ND = self.vectors(embedder, precision)
        return measure_vectors(
            vectors_ND, self.images.labels, self.images.roles, self.config.evaluation, str(self.device)
        )

    def protocol(self, run: Run, best: dict[str, float]) -> dict[str, Any]:
        """What the figures mean: which images, which epoch and how it was chosen, sizes, recipe, versions."""
        config = run.config
        seen = set(run.classes) & set(self.images.classes)
        chosen = f"best on the validation classes (epoch {best['epoch']:.0f})" if best else "the last"
        return {
            "split": self.split,
            "epoch": int(best.get("epoch", config.train.epochs)),
            "epoch_chosen": f"{chosen} of {config.train.epochs}; test classes chose nothing",
            "classes_seen_in_training": len(seen),
            "backbone": config.model.backbone,
            "image_size": config.image.crop,
            "seed": config.train.seed,
            "recipe": config.recipe,
            "refinement": "none",
            "intrabatch": VERSION,
        } | describe_set(self.images)


def describe_set(images: ImageSet) -> dict[str, Any]:
    """Counts, and a hash of the list of images and labels: equal hashes mean the same test."""
    listing = "\n".join(f"{name}\t{images.classes[label]}" for name, label in zip(images.names, images.labels, strict=True))
    return {
        "num_images": len(images),
        "num_classes": len(images.classes),
        "test_list_sha256": hashlib.sha256(listing.encode()).hexdigest()[:16],
    }


def measure_vectors(
    vectors_ND: NDArray[np.float32],
    labels_N: NDArray[np.int64],
    roles_N: NDArray[np.str_] | None,
    config: EvalConfig,
    device: str = "cpu",
) -> dict[str, Any]:
    """All figures of labelled vectors: {"metrics": ..., "nmi_recipe": ..., "embedding_size": ...}."""
    retrieval = retrieval_of(vectors_ND, labels_N, roles_N, config, device)
    clusters = nmi_figures(vectors_ND, labels_N, recipe=config.nmi_recipe, seeds=range(config.nmi_seeds), device=device)
    return {"metrics": retrieval.summary() | clusters.summary()}
