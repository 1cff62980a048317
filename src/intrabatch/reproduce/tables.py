"""The paper's tables as data: recipes, what is changed of them, how they are measured, the paper's figures in percent.

Rows train on all official training classes and keep the last epoch, except where a table says otherwise. The paper's
own figures, those "chosen without them" apart, were chosen by the test classes; `train.protocol=as-published` does that
too, and says so. Rows of others' methods that the paper cites are left out, the Group Loss apart. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Paper = Mapping[str, tuple[float, ...]]
"""For each recipe the paper's figures: recall@1, then NMI where it has one."""

CUB = "cub_paper"
"""The recipe of the paper's rows on CUB; `cub` is our own."""

ALL_CLASSES = "data.val_fraction=0"
"""No training class is held out to validate."""


@dataclass(frozen=True)
class Row:
    """A line of a table: what is trained, how it is measured, and what the paper says."""

    name: str
    recipe: str
    changes: tuple[str, ...] = ()
    paper: Mapping[str, float] | None = None
    refine: str = "none"
    ensemble: int = 1
    student: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows, and the figures they show."""

    about: str
    rows: tuple[Row, ...]
    figures: tuple[str, ...] = ("recall@1", "nmi")
    baseline: str = "both"
    """The row that others are compared with, seed by seed, when there are several seeds."""
    seeds: int = 1
    paper_on: str = ""
    """What the paper's figures are of, when not of these images."""


def rows_of(name: str, paper: Paper, *changes: str, all_classes: bool = True, **test: Any) -> Iterator[Row]:
    """The same row for every recipe that the paper has it for."""
    changes = (ALL_CLASSES, *changes) if all_classes else changes
    for recipe, figures in paper.items():
        yield Row(name, recipe, changes, dict(zip(("recall@1", "nmi"), figures, strict=False)), **test)


def _group_loss(number: int) -> Iterator[Row]:
    """The Group Loss alone, one network or several; its settings beyond these are our defaults."""
    name = f"Group Loss, ensemble of {number}" if number > 1 else "Group Loss"
    yield from rows_of(name, GROUP_LOSS[number], *GROUP_ALONE, ensemble=number)


def _glyphs(name: str, paper_on_cub: tuple[float, ...], *changes: str, **test: Any) -> Iterator[Row]:
    """A row on the built-in glyphs, which have validation classes of their own."""
    yield from rows_of(name, {"glyphs": paper_on_cub}, *changes, all_classes=False, **test)


FINALLY = (ALL_CLASSES, "train.watch_test=true", "train.validate_every=5")
"""Trained on all training classes; the test classes are measured on the way too, and choose nothing."""
ON_VALIDATION = ("data.hide_test=true", "data.val_fraction=0.5", "train.validate_every=0")
"""Half of the training classes train and the other half judge; nothing is measured on test images."""
NO_MESSAGES = ("loss.messages=0",)
PROXY_ANCHOR = (
    *NO_MESSAGES,
    "loss.proxy_anchor_alpha=32",
    "optim.learning_rate=1e-4",
    "optim.proxy_factor=100",
    "optim.ema=0",
    "train.epochs=30",
    "model.whiten=0",
)
"""From our recipe on CUB to Proxy Anchor with its authors' loss and rates."""
CROSS_ENTROPY = ("loss.auxiliary_head=linear", "optim.head_factor=5")
"""From our recipe on CUB to cross-entropy."""
ON_MESSAGES = (*CROSS_ENTROPY, "loss.auxiliary=0")
"""... which reaches the backbone through messages only."""
FINER = ("model.output_stride=16",)
TRIED: dict[str, tuple[str, ...]] = {
    "Proxy Anchor": PROXY_ANCHOR,
    "our recipe without messages": NO_MESSAGES,
    "our recipe": (),
    "a finer feature map, without messages": (*FINER, *NO_MESSAGES),
    "a finer feature map": FINER,
    "heads first": ("optim.frozen_epochs=3", "optim.frozen_factor=5"),
    "whitened more": ("model.whiten=0.25",),
    "not whitened": ("model.whiten=0",),
    "cross-entropy": (*CROSS_ENTROPY, *NO_MESSAGES),
    "cross-entropy and messages": CROSS_ENTROPY,
    "cross-entropy on messages only": ON_MESSAGES,
    "... and a fifth on the embedding": (*CROSS_ENTROPY, "loss.auxiliary=0.2"),
    "... at half the temperature": (*ON_MESSAGES, "loss.temperature=0.5"),
    "... at twice the temperature": (*ON_MESSAGES, "loss.temperature=2"),
    "... in two steps": (*ON_MESSAGES, "messages.steps=2"),
    "... by eight attention heads": (*ON_MESSAGES, "messages.heads=8"),
}
"""What our recipe on CUB is to be chosen among next; LOG.md tells of the rounds before."""
BOTH: Paper = {CUB: (70.3, 74.0), "cars196": (88.1, 74.8), "sop": (81.4, 92.6), "inshop": (92.8,)}
ABLATED: Paper = {CUB: BOTH[CUB], "cars196": BOTH["cars196"]}
REFINED: Paper = {CUB: (70.8, 74.5), "cars196": (88.6, 76.2)}
DIMENSIONS: dict[int, Paper] = {
    64: {CUB: (61.8, 68.8), "cars196": (76.3, 68.1), "sop": (73.8, 91.2), "inshop": (87.5,)},
    128: {CUB: (65.1, 69.3), "cars196": (81.6, 69.4), "sop": (79.1, 92.3), "inshop": (91.3,)},
    256: {CUB: (68.4, 73.4), "cars196": (86.3, 72.1), "sop": (80.8, 92.6), "inshop": (92.5,)},
    512: BOTH,
    1024: {CUB: (71.8, 72.8), "cars196": (89.5, 75.0), "sop": (81.4, 92.5), "inshop": (91.7,)},
}
ENSEMBLES: dict[int, Paper] = {
    1: BOTH,
    2: {CUB: (72.2, 74.3), "cars196": (90.9, 74.9), "sop": (81.8, 92.7), "inshop": (92.9,)},
    5: {CUB: (73.1, 74.4), "cars196": (91.5, 75.4), "sop": (82.1, 92.8), "inshop": (93.4,)},
}
GROUP_ALONE = ("loss.messages=0", "loss.auxiliary_head=group")
GROUP_LOSS: dict[int, Paper] = {
    1: {CUB: (65.5, 69.0), "cars196": (85.6, 72.7), "sop": (75.7, 91.1)},
    2: {CUB: (65.8, 68.5), "cars196": (86.2, 72.6), "sop": (75.9, 91.1)},
    5: {CUB: (66.9, 70.0), "cars196": (88.0, 74.2), "sop": (76.3, 91.1)},
}
CONSTRUCTIONS: dict[str, Paper] = {
    "k-means": {CUB: (66.1, 69.6), "cars196": (85.1, 70.5)},
    "ward": {CUB: (67.9, 68.8), "cars196": (86.6, 69.5)},
    "spectral": {CUB: (63.1, 69.6), "cars196": (85.1, 69.2)},
    "birch": {CUB: (65.5, 69.5), "cars196": (86.1, 70.0)},
    "dbscan": {CUB: (65.7, 72.0), "cars196": (85.0, 70.3)},
    "optics": {CUB: (66.5, 71.1), "cars196": (85.4, 69.6)},
    "nearest": {CUB: (62.1, 69.2), "cars196": (84.8, 70.2)},
    "k-reciprocal": REFINED,
}
STUDENTS: dict[str, Paper] = {
    "predictions": {CUB: (65.7, 70.3), "cars196": (85.6, 71.6)},
    "features": {CUB: (65.3, 70.1), "cars196": (85.6, 70.9)},
    "relations": {CUB: (64.9, 68.7), "cars196": (84.7, 70.5)},
}
LARGER: Paper = {
    f"{CUB}_256": (71.7, 74.3),
    "cars196_256": (90.2, 75.4),
    "sop_256": (81.7, 92.3),
    "inshop_256": (92.9,),
}
UNAIDED: Paper = {CUB: (67.1,), "cars196": (86.7,), "sop": (81.1,), "inshop": (92.5,)}
MAIN = (
    {"recall@1": 70.3, "recall@2": 80.3, "recall@4": 87.6, "recall@8": 92.7, "nmi": 74.0},
    {"recall@1": 88.1, "recall@2": 93.3, "recall@4": 96.2, "recall@8": 98.2, "nmi": 74.8},
    {"recall@1": 81.4, "recall@10": 91.3, "recall@100": 95.9, "nmi": 92.6},
    {"recall@1": 92.8, "recall@10": 98.5, "recall@20": 99.1, "recall@40": 99.2},
)


TABLES = {
    "training-losses": Table(
        "which losses train, and message passing at test time (table 3)",
        (
            *rows_of("cross-entropy only", {CUB: (67.5, 69.8), "cars196": (84.2, 68.7)}, "loss.messages=0"),
            *rows_of("message passing only", {CUB: (68.1, 72.0), "cars196": (87.2, 72.1)}, "loss.auxiliary=0"),
            *rows_of("both", ABLATED),
            *rows_of("both, messages at test time", REFINED, refine="k-reciprocal"),
        ),
    ),
    "main": Table(
        "the method on the four data sets (tables 1 and 2)",
        tuple(Row("both", recipe, (ALL_CLASSES,), paper) for recipe, paper in zip(BOTH, MAIN, strict=True)),
        figures=tuple(dict.fromkeys(name for paper in MAIN for name in paper)),
    ),
    "ensembles": Table(
        "one network, two and five, beside the Group Loss (table 4)",
        (
            *(row for n, paper in ENSEMBLES.items() for row in rows_of(f"ensemble of {n}", paper, ensemble=n)),
            *(row for n in GROUP_LOSS for row in _group_loss(n)),
        ),
        baseline="ensemble of 1",
    ),
    "embedding-sizes": Table(
        "64 to 1024 numbers an embedding (appendix)",
        tuple(
            row
            for d, paper in DIMENSIONS.items()
            for row in rows_of(f"{d} numbers", paper, *([f"model.dim={d}"] if d != 512 else []))
        ),
        baseline="512 numbers",
    ),
    "larger-images": Table(
        "256-pixel crops of 288 (appendix)",
        (*rows_of("227 pixels", BOTH), *rows_of("256 pixels", LARGER)),
        baseline="227 pixels",
    ),
    "test-time": Table(
        "eight ways to pass messages at test time, and three students (appendix)",
        (
            *rows_of("backbone only", ABLATED),
            *(row for how, paper in CONSTRUCTIONS.items() for row in rows_of(how, paper, refine=how)),
            *(row for how, paper in STUDENTS.items() for row in rows_of(f"student of {how}", paper, student=how)),
        ),
        baseline="backbone only",
    ),
    "no-test-feedback": Table(
        "the epoch chosen by a tenth of the training classes, which do not train (appendix, the reality check: "
        "the paper gives ± 0.7, 0.5, 0.1, 0.1)",
        (
            *rows_of("chosen by the test classes", BOTH, "train.protocol=as-published"),
            *rows_of("chosen without them", UNAIDED, "train.protocol=validation", all_classes=False),
        ),
        figures=("recall@1",),
        baseline="chosen without them",
        seeds=5,
    ),
    "cub": Table(
        "the paper's method, Proxy Anchor and our recipe on classes 101-200 of CUB-200-2011, which chose nothing",
        (
            *rows_of("cross-entropy only", {CUB: (67.5, 69.8)}, *NO_MESSAGES, *FINALLY, all_classes=False),
            *rows_of("the method as published", {CUB: BOTH[CUB]}, *FINALLY, all_classes=False),
            Row("Proxy Anchor", "cub", (*PROXY_ANCHOR, *FINALLY)),
            Row("our recipe without messages", "cub", (*NO_MESSAGES, *FINALLY)),
            Row("our recipe", "cub", FINALLY),
        ),
        figures=("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "nmi"),
        baseline="our recipe without messages",
        seeds=5,
    ),
    "cub-choice": Table(
        "what our recipe on CUB-200-2011 is to be chosen among, judged by 50 of the 100 training classes",
        (
            *(Row(name, "cub", (*changes, *ON_VALIDATION)) for name, changes in TRIED.items()),
            *(Row(f"student of {how}", "cub", ON_VALIDATION, student=how) for how in STUDENTS),
        ),
        figures=("recall@1", "map@r", "nmi"),
        baseline="our recipe without messages",
        seeds=2,
    ),
    "glyphs": Table(
        "the paper's comparisons in small: built-in letter shapes, a small network from scratch, unseen scripts",
        (
            *_glyphs("both", BOTH[CUB]),
            *_glyphs("cross-entropy only", (67.5, 69.8), "loss.messages=0"),
            *_glyphs("message passing only", (68.1, 72.0), "loss.auxiliary=0"),
            *_glyphs("both, messages at test time", REFINED[CUB], refine="k-reciprocal"),
            *_glyphs("ensemble of 2", ENSEMBLES[2][CUB], ensemble=2),
            *(row for how, paper in STUDENTS.items() for row in _glyphs(f"student of {how}", paper[CUB], student=how)),
            *_glyphs("Group Loss", GROUP_LOSS[1][CUB], *GROUP_ALONE),
        ),
        figures=("recall@1", "map@r", "nmi"),
        seeds=5,
        paper_on="CUB-200-2011",
    ),
}


def list_tables() -> dict[str, str]:
    """Every table's name and what it is about."""
    return {name: table.about for name, table in TABLES.items()}


def tables_lines() -> list[str]:
    """The tables for a person."""
    return [f"{name:<18}{len(table.rows):>3} rows: {table.about}" for name, table in TABLES.items()]
