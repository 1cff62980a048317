"""From what a user names (glyphs, a folder, a table, a benchmark) to an image set with a class-disjoint split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ..config import DataConfig
from ..errors import DataError
from .benchmarks import BENCHMARKS
from .glyphs import glyphs
from .image_set import ImageSet, split_classes
from .reading import read_images


def load_images(data: str, config: DataConfig, seed: int) -> ImageSet:
    """The images called `data`: the word glyphs, or a path that `data.source` says how to read."""
    if data == "glyphs" or config.source == "glyphs":
        return glyphs(config.glyph_classes, config.glyph_images, config.glyph_size, seed)
    if config.source in BENCHMARKS:
        return BENCHMARKS[config.source](Path(data))
    return read_images(Path(data))


def with_splits(images: ImageSet, config: DataConfig) -> ImageSet:
    """The set with train, val and test: its own split where it has one, whole classes held out where it has none.

    Without a val split, some classes of the training half validate; test classes are never touched for that.
    """
    if images.splits is None:
        return split_classes(images, config.val_fraction, config.test_fraction, config.split_seed)
    if "train" not in images.splits:
        raise DataError(f"the data has a split ({', '.join(sorted(set(images.splits)))}) but nothing in train")
    if "val" in images.splits or not config.val_fraction:
        return images
    inside = np.flatnonzero(images.splits == "train")
    halved = split_classes(replace(images.subset(inside), roles=None), config.val_fraction, 0.0, config.split_seed)
    assert halved.splits is not None
    splits = images.splits.copy()
    splits[inside] = np.where(halved.splits == "test", "train", halved.splits)  # one-image classes stay in train
    return replace(images, splits=splits)


def singletons(images: ImageSet) -> int:
    """How many classes have one image only, in the whole set."""
    return int((images.class_sizes() == 1).sum())
