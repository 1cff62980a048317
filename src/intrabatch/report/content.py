"""What a report says, as plain data. Whoever ran the training fills this in; the page and the pictures only draw it.

Shapes: N images, H x W pixels; a picture is uint8 of shape (H, W, 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class Row:
    """One line of the table of figures: a model and what was measured of it."""

    name: str
    """A run of the same name in `Report.histories` is drawn in the same colour."""
    metrics: dict[str, float]
    """Fractions of one for recall@k, map@r, r_precision, nmi and their like; any other figure is shown as it is."""
    note: str = ""
    """A few words under the name."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """(low, high) around a metric, where known; the protocol says of what kind."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Queries and their nearest neighbours, nearest first."""

    queries: list[Picture]
    query_classes: list[str]
    neighbours: list[list[Picture]]
    neighbour_classes: list[list[str]]
    correct: list[list[bool]]
    """Whether a neighbour is of its query's class."""
    note: str = ""
    """How the queries were chosen."""

    def __post_init__(self) -> None:
        num = len(self.queries)
        lengths = {
            name: len(getattr(self, name)) for name in ("query_classes", "neighbours", "neighbour_classes", "correct")
        }
        for name, length in lengths.items():
            if length != num:
                raise DataError(f"retrieval grid: {length} {name} for {num} queries; give one per query")
        for row, (images, names, right) in enumerate(
            zip(self.neighbours, self.neighbour_classes, self.correct, strict=True)
        ):
            if not len(images) == len(names) == len(right):
                raise DataError(
                    f"retrieval grid, query {row}: {len(images)} neighbours, {len(names)} neighbour_classes, "
                    f"{len(right)} correct; give as many of each"
                )

    def num_correct(self) -> int:
        return sum(map(sum, self.correct))

    def num_neighbours(self) -> int:
        return sum(map(len, self.correct))


@dataclass(frozen=True, eq=False)
class SpaceMap:
    """N images as points in the plane: the embedding space seen from above."""

    points_N2: NDArray[np.floating]
    labels_N: NDArray[np.int64]
    """Index into `classes` for each point."""
    classes: tuple[str, ...]
    thumbnails: list[Picture] | None = None
    """The image of each point, shown under the pointer."""
    note: str = ""
    """Which images these are, and how they were projected."""

    def __post_init__(self) -> None:
        num = len(self.points_N2)
        if self.points_N2.shape != (num, 2) or not np.isfinite(self.points_N2).all():
            raise DataError(f"map: expected N finite points of two numbers, got an array {self.points_N2.shape}")
        for name, values in (("labels", self.labels_N), ("thumbnails", self.thumbnails)):
            if values is not None and len(values) != num:
                raise DataError(f"map: {len(values)} {name} for {num} points; each point needs one")
        if num and not 0 <= self.labels_N.min() <= self.labels_N.max() < len(self.classes):
            raise DataError(
                f"map: labels from {self.labels_N.min()} to {self.labels_N.max()} for {len(self.classes)} classes"
            )


@dataclass(frozen=True, eq=False)
class Report:
    """Everything on the page, from top to bottom; what is empty is left out. Texts may set `code` in backticks."""

    title: str
    summary: list[str]
    """What was found, in plain words, the main point first."""
    rows: list[Row]
    """The table of figures; the first metric is drawn as bars as well."""
    protocol: dict[str, str]
    """How the figures were measured, in plain words: the data, the split, who chose what, the seed."""
    grid: Grid | None = None
    histories: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """For each run one mapping per epoch, such as {"epoch": 1, "loss": 2.3, "val/recall@1": 0.41}."""
    space: SpaceMap | None = None
    hardest: list[tuple[str, float]] = field(default_factory=list)
    """Classes and their `hardest_metric`, the worst first."""
    hardest_metric: str = "recall@1"
    next_steps: list[str] = field(default_factory=list)
    """What to try next."""
