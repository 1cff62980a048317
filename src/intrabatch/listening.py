"""Whom a run listens to: one batch of its images, and who counts for whom in it, as figures, numbers and pictures.

    OUT/matrices.png     attention, and gradients before and after training; a row for each image of the batch
    OUT/neighbours.png   some of the images, each with those it listens to most
    OUT/matrices.npz     the same matrices as numbers
    OUT/influence.json   the share of the weight that lies on an image's own class, and the neighbours shown

In all of them a row holds shares of what the other images weigh together; the image itself is left out.
Shapes: N images, B of them in the batch, C training classes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .data.image_set import SPLITS, ImageSet
from .data.load import load_images
from .errors import ConfigError, DataError, WeightsError, WriteError, did_you_mean
from .influence import attention_matrix, gradient_matrix, neighbour_shares, neighbours_by_weight, own_class_share
from .model import Network
from .report.content import Grid
from .report.pictures import retrieval_grid_png
from .report.plots import matrices_png
from .trained import Trained

SHOWN_IMAGES, SHOWN_NEIGHBOURS = 6, 8
ATTENTION, TRAINED, UNTRAINED = "attention", "gradient, trained", "gradient, untrained"


@dataclass(frozen=True, eq=False)
class Listening:
    """A batch and its matrices by name, rows in shares."""

    images: ImageSet
    matrices: dict[str, Tensor]
    not_compared: str
    """Why there is no untrained network to compare with; empty when there is."""

    def own_class_shares(self) -> dict[str, float]:
        """How much of its neighbours' weight an image gives to its own class, on average; and were all equal."""
        labels_B = torch.from_numpy(self.images.labels)
        equal_BB = torch.ones(len(labels_B), len(labels_B))
        found = {name: own_class_share(matrix, labels_B) for name, matrix in self.matrices.items()}
        found["all neighbours equal"] = own_class_share(equal_BB, labels_B)
        return {name: share_B.mean().item() for name, share_B in found.items()}

    def neighbours(self, index: int) -> list[tuple[int, float]]:
        """Those that the image listens to most, with their shares."""
        ranked = neighbours_by_weight(self.matrices[ATTENTION], index)
        pairs = zip(ranked.indices_K.tolist(), ranked.weights_K.tolist(), strict=True)
        return list(pairs)[:SHOWN_NEIGHBOURS]

    def shown(self) -> list[int]:
        """The first image of each of the first classes."""
        firsts = np.unique(self.images.labels, return_index=True)[1]
        return [int(first) for first in firsts[:SHOWN_IMAGES]]


def listen(trained: Trained, images: ImageSet, seed: int = 0) -> Listening:
    """Draw a batch and ask the run, and the same network before its first step, who counts for whom."""
    if trained.network.loss.passing is None:
        raise ConfigError(f"{trained.run.path} was trained without message passing; its images listen to nobody")
    config = trained.config
    batch = images.subset(_drawn(images, config.batch.classes, config.batch.images, seed))
    with torch.no_grad():
        feats_BD = torch.from_numpy(trained.vectors(batch, unit=False)).to(trained.device)
    matrices = {ATTENTION: attention_matrix(trained.network.loss.passing, feats_BD)}
    problem = ""
    try:
        before = Trained(trained.run, _untrained(trained), trained.device)
        matrices[UNTRAINED] = _gradients(before, batch)
    except WeightsError as error:
        problem = str(error)
    matrices[TRAINED] = _gradients(trained, batch)
    return Listening(batch, {name: neighbour_shares(found.cpu()) for name, found in matrices.items()}, problem)


def images_to_ask(trained: Trained, data: str | None, split: str) -> ImageSet:
    """A split of the run's own images, or the labelled images at `data`."""
    if data is not None:
        return load_images(replace(trained.config.data, path=data, source="glyphs" if data == "glyphs" else "auto"))
    if split not in SPLITS:
        raise ConfigError(f"unknown --split '{split}'{did_you_mean(split, SPLITS)}")
    return trained.own_images().only(split)


def _drawn(images: ImageSet, classes: int, per_class: int, seed: int) -> NDArray[np.int64]:
    """Up to `classes` classes of two images or more and up to `per_class` images of each, class by class."""
    rng = np.random.default_rng(seed)
    usable = np.flatnonzero(images.class_sizes() >= 2)
    if len(usable) < 2:
        raise DataError(f"{len(usable)} classes have two images or more; a batch to look at needs two such classes")
    chosen = np.sort(rng.permutation(usable)[:classes])
    members = (rng.permutation(np.flatnonzero(images.labels == label))[:per_class] for label in chosen)
    return np.concatenate(list(members))


def _untrained(trained: Trained) -> Network:
    """The network as it was before its first step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trained.config.train.seed)
        network = Network(trained.config, len(trained.run.classes))
    return network.to(trained.device).eval()


def _gradients(trained: Trained, batch: ImageSet) -> Tensor:
    """How much each image of the batch moves the prediction of each: the logit of its class.

    For a class that the run was not trained on, the logit of the class it takes the image for.
    """
    loss = trained.network.loss
    feats_BD = torch.from_numpy(trained.vectors(batch, unit=False)).to(trained.device)

    def predict(entered_BD: Tensor) -> Tensor:
        assert loss.refined is not None
        logits_BC: Tensor = loss.refined.logits(loss.refine(entered_BD))
        return logits_BC

    with torch.no_grad():
        likeliest_B = predict(feats_BD).argmax(1)
    number = {name: i for i, name in enumerate(trained.run.classes)}
    own_B = torch.tensor([number.get(batch.classes[label], -1) for label in batch.labels], device=trained.device)
    return gradient_matrix(predict, feats_BD, torch.where(own_B < 0, likeliest_B, own_B))


def save_listening(out: Path, found: Listening, about: dict[str, Any]) -> dict[str, Any]:
    """Write figures, matrices and pictures into the folder `out`; returns the figures."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        return _saved(out, found, about)
    except OSError as error:
        raise WriteError(f"--out {out} cannot be written: {error.strerror or error}") from None


def _saved(out: Path, found: Listening, about: dict[str, Any]) -> dict[str, Any]:
    batch, shares = found.images, found.own_class_shares()
    names = [batch.classes[label] for label in batch.labels]
    arrays = {name.replace(", ", "_"): matrix.numpy() for name, matrix in found.matrices.items()}
    np.savez(out / "matrices.npz", allow_pickle=False, path=np.array(batch.names), label=np.array(names), **arrays)
    titles = {f"{name}: {100 * shares[name]:.1f} % on the own class": m.numpy() for name, m in found.matrices.items()}
    matrices_png(out / "matrices.png", titles, batch.labels)
    retrieval_grid_png(out / "neighbours.png", _grid(found, names))
    listed = [
        {
            "path": batch.names[i],
            "label": names[i],
            "neighbours": [{"path": batch.names[j], "label": names[j], "share": w} for j, w in found.neighbours(i)],
        }
        for i in found.shown()
    ]
    protocol = about | {"num_images": len(batch), "num_classes": len(batch.classes)}
    figures = {"own_class_share": shares, "not_compared": found.not_compared, "protocol": protocol, "images": listed}
    (out / "influence.json").write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return figures


def _grid(found: Listening, names: list[str]) -> Grid:
    """The shown images and their neighbours, each under its share."""
    batch, shown = found.images, found.shown()
    ranked = [found.neighbours(i) for i in shown]
    return Grid(
        [batch.read(i) for i in shown],
        [names[i] for i in shown],
        [[batch.read(j) for j, _ in row] for row in ranked],
        [[f"{100 * share:.1f} % {names[j]}" for j, share in row] for row in ranked],
        [[names[j] == names[i] for j, _ in row] for i, row in zip(shown, ranked, strict=True)],
    )


def listening_lines(figures: dict[str, Any], out: Path) -> list[str]:
    """The figures for a person, in percent."""
    lines = ["weight on the own class, percent of that on all neighbours"]
    lines += [f"  {name:<24}{100 * share:>6.1f}" for name, share in figures["own_class_share"].items()]
    if figures["not_compared"]:
        lines.append(f"the untrained network is not compared: {figures['not_compared']}")
    said = [f"{key.replace('_', ' ')}: {value}" for key, value in figures["protocol"].items()]
    return [*lines, "", *said, f"pictures: {out / 'matrices.png'}, {out / 'neighbours.png'}"]
