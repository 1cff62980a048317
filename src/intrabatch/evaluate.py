"""Figures of an embedding on classes it has never seen, with the protocol they were measured under.

Arrays go to `metrics` and `clustering`; this module decides what is embedded, which images are queries, and what is
stamped on the result. It does not know training.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
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
from .errors import EvaluationError
from .metrics import Retrieval, retrieval_figures
from .run import Run
from .statistics import over_classes

WITH_INTERVAL = ("recall@1", "map@r")
HARDEST = 10
"""Classes named, lowest MAP@R first."""
EPOCH_CHOSEN = {
    "final": "the last",
    "validation": "best on the validation classes",
    "as-published": "best on the TEST classes: for comparison with the paper only, not an honest figure",
}
BEST_TEST_EPOCH = "chosen by the TEST classes: to stand beside papers that report it, never a headline"
AS_PUBLISHED = "the TEST classes chose the epoch (train.protocol=as-published): compare with the paper, not a headline"


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
        """None when the image set has nothing to evaluate in that split."""
        if not is_measurable(images, split):
            return None
        chosen = images.only(split)
        return Evaluator(chosen, split, open_pixels(chosen, config.image, device), config, device)

    def vectors(self, embedder: Embedder, precision: torch.dtype) -> NDArray[np.float32]:
        return embed_crops(embedder, self.pixels.test_crops(self.config.evaluation.batch), precision)

    def retrieval(self, embedder: Embedder, precision: torch.dtype) -> dict[str, float]:
        """Retrieval figures only: quick enough for every epoch."""
        vectors_ND = self.vectors(embedder, precision)
        return retrieval_of(
            vectors_ND, self.images.labels, self.images.roles, self.config.evaluation, str(self.device)
        ).summary()

    def measure(self, embedder: Embedder, precision: torch.dtype, run: Run, epoch: int) -> dict[str, Any]:
        """All figures, with the protocol they were measured under."""
        vectors_ND = self.vectors(embedder, precision)
        figures = measure_vectors(
            vectors_ND,
            self.images.labels,
            self.images.roles,
            self.config.evaluation,
            str(self.device),
            self.images.classes,
        )
        figures["protocol"] |= protocol_of(run, epoch, self.split, self.images)
        return figures


def is_measurable(images: ImageSet, split: str) -> bool:
    """Whether that split has two classes, and a class with two images."""
    if images.splits is None or not (images.splits == split).any():
        return False
    chosen = images.only(split)
    return len(chosen.classes) > 1 and int(chosen.class_sizes().max()) > 1


def protocol_of(run: Run, epoch: int, split: str, images: ImageSet) -> dict[str, Any]:
    """What figures of a run mean: which images, which epoch and how it was chosen, sizes, recipe, versions."""
    config = run.config
    protocol: dict[str, Any] = {
        "split": split,
        "protocol": config.train.protocol,
        "epoch": epoch,
        "epochs": config.train.epochs,
        "epoch_chosen": EPOCH_CHOSEN[config.train.protocol],
        "classes_seen_in_training": len(set(run.classes) & set(images.classes)),
        "backbone": config.model.backbone,
        "image_size": config.image.crop,
        "seed": config.train.seed,
        "split_seed": config.data.split_seed,
        "recipe": config.recipe,
        "refinement": "none",
    }
    protocol |= {"whitened": config.model.whiten} if config.model.whiten else {}
    protocol |= {"warning": AS_PUBLISHED} if config.train.protocol == "as-published" else {}
    return protocol | describe_set(images)


def describe_set(images: ImageSet) -> dict[str, Any]:
    """Counts, and the hash of the test list."""
    labels = [images.classes[label] for label in images.labels]
    return describe_list(images.names, labels, None if images.roles is None else images.roles.tolist())


def describe_list(names: Sequence[str], labels: Sequence[str], roles: Sequence[str] | None) -> dict[str, Any]:
    """Counts, and a hash of the names, labels and roles: equal hashes mean the same test."""
    columns = [names, labels] if roles is None else [names, labels, roles]
    listing = "\n".join("\t".join(row) for row in zip(*columns, strict=True))
    return {
        "num_images": len(names),
        "num_classes": len(set(labels)),
        "test_list_sha256": hashlib.sha256(listing.encode()).hexdigest(),
    }


def measure_vectors(
    vectors_ND: NDArray[np.float32],
    labels_N: NDArray[np.int64],
    roles_N: NDArray[np.str_] | None,
    config: EvalConfig,
    device: str = "cpu",
    classes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """All figures of labelled vectors, and the part of their protocol that arrays can tell.

    The hardest classes are named where `classes` gives their names.
    """
    retrieval = retrieval_of(vectors_ND, labels_N, roles_N, config, device)
    seeds, restarts = range(config.nmi_seeds), config.nmi_restarts
    how: dict[str, Any] = {"recipe": config.nmi_recipe, "seeds": seeds, "restarts": restarts, "device": device}
    clusters = nmi_figures(vectors_ND, labels_N, **how)
    hardest = retrieval.hardest(HARDEST) if classes else []
    return {
        "metrics": retrieval.summary() | clusters.summary(),
        "intervals": intervals(retrieval),
        "hardest": {classes[label]: figure for label, figure in hardest} if classes else {},
        "protocol": {
            "interval": "95 % bootstrap over classes",
            "num_queries": len(retrieval.queries),
            "num_queries_without_match": retrieval.num_queries_without_match,
            "embedding_size": vectors_ND.shape[1],
            "nmi_recipe": clusters.recipe,
            "versions": versions(),
        }
        | left_out(config, retrieval),
    }


def versions() -> dict[str, str]:
    """Of what the figures are computed with."""
    return {
        "intrabatch": VERSION,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def left_out(config: EvalConfig, retrieval: Retrieval) -> dict[str, Any]:
    """The K that were asked for and could not be, for `retrieval_of` leaves them out."""
    ks = [k for k in config.recall_at if f"recall@{k}" not in retrieval.values]
    return {"recall_left_out": f"at {', '.join(map(str, ks))}: more than there are gallery images"} if ks else {}


def intervals(retrieval: Retrieval) -> dict[str, list[float]]:
    """Low and high end of some figures' intervals over classes; none where only one class has queries."""
    names = [name for name in WITH_INTERVAL if name in retrieval.values and len(np.unique(retrieval.labels)) > 1]
    found = {name: over_classes(retrieval.values[name], retrieval.labels) for name in names}
    return {name: [interval.low, interval.high] for name, interval in found.items()}


def retrieval_of(
    vectors_ND: NDArray[np.float32],
    labels_N: NDArray[np.int64],
    roles_N: NDArray[np.str_] | None,
    config: EvalConfig,
    device: str = "cpu",
) -> Retrieval:
    """Retrieval figures at those K that the gallery is large enough for, a query itself not counted in it."""
    if len(np.unique(labels_N)) < 2:
        raise EvaluationError("all images are of one class, so every figure would be 100 %; bring two or more")
    roles = np.full(len(vectors_ND), "both") if roles_N is None else roles_N
    available = int((roles != "query").sum()) - (not (roles == "query").any())
    ks = [k for k in config.recall_at if k <= available] or [1]
    return retrieval_figures(vectors_ND, labels_N, ks=ks, roles_N=roles_N, device=device)
