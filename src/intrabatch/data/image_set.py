"""An image set: named images with labels, and where they come from.

Every source of images (a folder, a table, a benchmark, the built-in glyphs, an array) becomes one `ImageSet`;
everything after it sees only that. It does not know models, nor how pixels are decoded: its `source` reads one image
by name.
Shapes: N images, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

SPLITS = ("train", "val", "test")
ROLES = ("query", "gallery", "both")


class Source(Protocol):
    """Where pixels come from: one small method, so that a test or a user can put an array in its place."""

    def read(self, name: str, smallest_side: int = 0) -> NDArray[np.uint8]:
        """The image called `name` as RGB pixels of shape (H, W, 3).

        A source may return a smaller version, if its shorter side still has `smallest_side` pixels; 0 asks for all.
        """
        ...


@dataclass(frozen=True)
class ArraySource:
    """Pixels already in memory: the built-in glyphs, or a user's own arrays."""

    pixels_NHW3: NDArray[np.uint8]
    rows: dict[str, int]

    def read(self, name: str, smallest_side: int = 0) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self.pixels_NHW3[self.rows[name]]
        return image


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Names, labels and classes of N images, their split and role if they have one, and the source of their pixels."""

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    """Index into `classes` for each image."""
    classes: tuple[str, ...]
    source: Source
    splits: NDArray[np.str_] | None = None
    """For each image one of SPLITS; None when the set came without a split."""
    roles: NDArray[np.str_] | None = None
    """For each image one of ROLES in evaluation: queries look among gallery images; None means both for all."""

    def __post_init__(self) -> None:
        for name in ("labels", "splits", "roles"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.names):
                raise DataError(f"image set: {len(values)} {name} for {len(self.names)} names; each image needs one")

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int, smallest_side: int = 0) -> NDArray[np.uint8]:
        return self.source.read(self.names[index], smallest_side)

    def class_sizes(self) -> NDArray[np.int64]:
        return np.bincount(self.labels, minlength=len(self.classes))

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> ImageSet:
        """These images only, with only the classes that still have an image, in the same order of classes."""
        chosen = np.asarray(indices, dtype=np.int64)
        kept, labels = np.unique(self.labels[chosen], return_inverse=True)
        return replace(
            self,
            names=tuple(self.names[i] for i in chosen),
            labels=labels.astype(np.int64),
            classes=tuple(self.classes[c] for c in kept),
            splits=None if self.splits is None else self.splits[chosen],
            roles=None if self.roles is None else self.roles[chosen],
        )

    def only(self, split: str) -> ImageSet:
        """The images of one split."""
        if self.splits is None:
            raise DataError(f"image set has no split; asked for '{split}': split it first with split_classes()")
        return self.subset(np.flatnonzero(self.splits == split))


def split_classes(images: ImageSet, val: float, test: float, seed: int) -> ImageSet:
    """Give whole classes to train, val and test at random; a class with one image becomes test gallery.

    Classes, not images, are split: evaluation is on classes never seen in training. `val` and `test` are
    fractions of the classes that have at least two images. Among images of one class all neighbours are right, and the
    figures say nothing: at least two classes test, and a fraction to validate that comes to one class holds none out.
    """
    sizes = images.class_sizes()
    usable = np.flatnonzero(sizes >= 2)
    num_test = max(2, round(test * len(usable))) if test > 0 else 0
    num_val = round(val * len(usable)) if round(val * len(usable)) > 1 else 0
    if len(usable) - num_test - num_val < 2:
        raise DataError(
            f"{len(usable)} classes with two or more images are too few to split: {num_val} would validate, {num_test} "
            f"test, and at least 2 must train; add classes, hold out none to validate (data.val_fraction=0), "
            f"or give a split of your own (train/, val/, test/ folders)"
        )
    order = np.random.default_rng([seed, 0x5B117]).permutation(usable)
    of_class = np.full(len(images.classes), "test", dtype="<U5")
    of_class[order] = "train"
    of_class[order[:num_test]] = "test"
    of_class[order[num_test : num_test + num_val]] = "val"
    splits = of_class[images.labels]
    roles = np.full(len(images), "both", dtype="<U7") if images.roles is None else images.roles.copy()
    roles[(sizes == 1)[images.labels]] = "gallery"
    return replace(images, splits=splits, roles=roles if (roles != "both").any() else None)


def synthetic_images(num_classes: int = 8, per_class: int = 6, size: int = 32, seed: int = 0) -> ImageSet:
    """Small coloured squares, a colour a class: for tests and for trying one's own code without any data."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(num_classes), per_class)
    colours = rng.integers(40, 216, (num_classes, 1, 1, 3))
    noise = rng.normal(0, 25, (len(labels), size, size, 3))
    pixels = np.clip(colours[labels] + noise, 0, 255).astype(np.uint8)
    names = tuple(f"class{label}/{i:03d}" for i, label in enumerate(labels))
    source = ArraySource(pixels, {name: i for i, name in enumerate(names)})
    return ImageSet(names, labels.astype(np.int64), tuple(f"class{c}" for c in range(num_classes)), source)
