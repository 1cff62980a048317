"""A trained run put to use: embed images, evaluate them, search among them. The backbone alone does the work.

Message passing works at test time only where `evaluation.refine` asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .config import Config
from .data.image_set import ImageSet
from .data.load import found_by_run, load_images, with_splits_of
from .data.pixels import open_pixels
from .devices import pick_device, pick_precision
from .embed import Embeddings, embed_crops
from .errors import ConfigError, WeightsError
from .evaluate import measure_vectors, protocol_of
from .model import Network
from .neighbours import nearest
from .refine import refine
from .run import Run


@dataclass(frozen=True)
class Hit:
    """One search result."""

    path: str
    label: str
    score: float
    """cosine similarity, 1 for the same image"""


@dataclass(frozen=True, eq=False)
class Trained:
    """A run with its network loaded: `Trained.open("runs/demo").embed(images)`."""

    run: Run
    network: Network
    device: torch.device

    @staticmethod
    def open(path: str | Path, device: str = "auto") -> Trained:
        run = Run.open(Path(path))
        where = pick_device(device)
        return Trained(run, restored_network(run).to(where), where)

    @property
    def config(self) -> Config:
        return self.run.config

    def own_images(self) -> ImageSet:
        """The images the run was trained, validated and tested on, with its split."""
        with found_by_run(self.run.path):
            images = load_images(self.config.data)
        return with_splits_of(images, self.run.path / "splits.csv")

    def vectors(self, images: ImageSet, *, unit: bool = True) -> NDArray[np.float32]:
        """Vectors (N, D), one for each image; of length 1 unless `unit` is off."""
        pixels = open_pixels(images, self.config.image, self.device)
        precision = pick_precision(self.config.train.precision, self.device)
        crops = pixels.test_crops(self.config.evaluation.batch)
        return embed_crops(self.network.embedder, crops, precision, unit=unit)

    def refined_vectors(self, images: ImageSet) -> NDArray[np.float32]:
        """Vectors after message passing among neighbours, as `evaluation.refine` says; queries hear the gallery."""
        passing, settings = self.network.loss.passing, self.config.evaluation
        if passing is None:
            raise ConfigError(f"{self.run.path} was trained without message passing; there is nothing to refine with")
        raw_ND = self.vectors(images, unit=False)
        queries_N = np.zeros(len(images), np.bool_) if images.roles is None else images.roles == "query"
        how, size, clusters = settings.refine, settings.refine_size, settings.refine_clusters
        refined_ND = raw_ND.copy()
        refined_ND[~queries_N] = refine(raw_ND[~queries_N], passing, how, size, clusters=clusters)
        if queries_N.any():
            gallery_GD = raw_ND[~queries_N]
            refined_ND[queries_N] = refine(raw_ND[queries_N], passing, how, size, gallery=gallery_GD, clusters=clusters)
        return refined_ND

    def embed(self, images: ImageSet) -> Embeddings:
        """Vectors with the names, labels and roles of their images."""
        labels = tuple(images.classes[label] for label in images.labels)
        roles = None if images.roles is None else tuple(str(role) for role in images.roles)
        return Embeddings(self.vectors(images), images.names, labels, roles)

    def evaluate(self, images: ImageSet, split: str) -> dict[str, Any]:
        """All figures of labelled images, with their protocol."""
        settings = self.config.evaluation
        vectors_ND = self.vectors(images) if settings.refine == "none" else self.refined_vectors(images)
        device = str(self.device)
        figures = measure_vectors(vectors_ND, images.labels, images.roles, settings, device, images.classes)
        figures["protocol"] |= protocol_of(self.run, self.run.epoch(), split, images) | {"refinement": settings.refine}
        return figures | {"run": str(self.run.path)}

    def search(self, gallery: ImageSet, queries: ImageSet, k: int = 10) -> list[list[Hit]]:
        """For each query the k gallery images most like it, best first."""
        return self.hits(gallery, self.vectors(gallery), self.vectors(queries), k)

    def hits(
        self, gallery: ImageSet, gallery_GD: NDArray[np.float32], queries_QD: NDArray[np.float32], k: int
    ) -> list[list[Hit]]:
        """As `search`, among vectors that are there already."""
        found = nearest(queries_QD, k, gallery_GD=gallery_GD, device=self.device)
        labels = [gallery.classes[label] for label in gallery.labels]
        return [
            [Hit(gallery.names[i], labels[i], float(score)) for i, score in zip(*row, strict=True)]
            for row in zip(found.indices_Nk, found.scores_Nk, strict=True)
        ]


def restored_network(run: Run) -> Network:
    """The trained network of a run, in evaluation mode."""
    network = Network(run.config, len(run.classes), load_weights=False)
    state = run.load_weights()
    for name, tensor in network.state_dict().items():
        if name not in state or state[name].shape != tensor.shape:
            found = f"has shape {tuple(state[name].shape)}" if name in state else "is missing"
            raise WeightsError(
                f"{run.path}/weights.safetensors does not fit the run's config.yaml: '{name}' {found}, "
                f"expected {tuple(tensor.shape)}; the weights belong to another architecture"
            )
    network.load_state_dict(state)
    return network.eval()
