"""From what a user names (glyphs, a folder, a table, a benchmark) to an image set with a class-disjoint split."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..config import DataConfig
from ..errors import DataError, RunError
from .benchmarks import BENCHMARKS
from .glyphs import glyphs
from .image_set import ImageSet, split_classes
from .reading import read_images


def load_images(config: DataConfig) -> ImageSet:
    """The images at `data.path`, read as `data.source` says."""
    if (config.source, config.path) in (("auto", "glyphs"), ("glyphs", "glyphs"), ("glyphs", "")):
        return glyphs(config.glyph_classes, config.glyph_images, config.glyph_size, config.split_seed)
    if not config.path:
        raise DataError("no images named; give DATA: a folder per class, a CSV or Parquet table, or glyphs")
    if config.source in BENCHMARKS:
        return BENCHMARKS[config.source].read(Path(config.path))
    _require_source(config)
    return read_images(config.path)


def _require_source(config: DataConfig) -> None:
    """What `data.source` asks for and `data.path` is not must not be passed over."""
    path = Path(config.path)
    found = "a folder" if path.is_dir() else "a file" if path.exists() else "no such folder or file"
    asked = {"glyphs": "the built-in glyphs", "folder": "a folder", "table": "a file"}.get(config.source, found)
    if found != asked and (path.exists() or config.source == "glyphs"):
        raise DataError(
            f"{path}: {found}, but data.source={config.source} asks for {asked}; "
            f"give other DATA, or set data.source=auto"
        )


def with_splits(images: ImageSet, config: DataConfig) -> ImageSet:
    """The set with train, val and test, or without test where the settings hide it."""
    split = _split(images, config)
    if config.hide_test:
        assert split.splits is not None
        split = replace(split, splits=np.where(split.splits == "test", "", split.splits))
    return split


def _split(images: ImageSet, config: DataConfig) -> ImageSet:
    """The set's own split where it has one, whole classes held out where it has none.

    Without a val split, some classes of the training half validate; test classes are never touched for that. Training
    classes with one image have nothing to be compared with: they are in no split.
    """
    if images.splits is None:
        return split_classes(images, config.val_fraction, config.test_fraction, config.split_seed)
    if "train" not in images.splits:
        raise DataError(f"the data has a split ({', '.join(sorted(set(images.splits)))}) but nothing in train")
    splits = images.splits.copy()
    inside = np.flatnonzero(splits == "train")
    train = replace(images.subset(inside), splits=None, roles=None)
    alone = (train.class_sizes() == 1)[train.labels]
    splits[inside[alone]] = ""
    if "val" not in splits and config.val_fraction:
        halved = split_classes(train, config.val_fraction, 0.0, config.split_seed)
        assert halved.splits is not None
        splits[inside[~alone]] = halved.splits[~alone]
    return replace(images, splits=splits)


def with_splits_of(images: ImageSet, table: Path) -> ImageSet:
    """The images listed in a run's splits.csv, with the split and role written there."""
    listed = _listed(table)
    rows = {name: row for row, name in enumerate(images.names)}
    missing = [name for name in listed if name not in rows]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(listed)} images of {table} are no longer in the data, first '{missing[0]}'; "
            f"{_way_back(table.parent)}"
        )
    kept = images.subset([rows[name] for name in listed])
    splits = np.array([row["split"] for row in listed.values()])
    roles = np.array([row["role"] for row in listed.values()])
    return replace(kept, splits=splits if splits.any() else None, roles=roles if roles.any() else None)


def _listed(table: Path) -> dict[str, dict[str, str]]:
    """The rows of a run's splits.csv by the name of their image."""
    try:
        with table.open(newline="", encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        listed = {row["path"]: {name: row[name] for name in ("split", "role")} for row in rows}
        whole = bool(listed) and all(None not in row.values() for row in listed.values())
    except (OSError, UnicodeDecodeError, csv.Error, KeyError):
        whole = False
    if not whole:
        raise RunError(
            f"{table} cannot be read; expected a row per image under path, label, split and role, as training wrote "
            f"it: put it back, or train anew"
        )
    return listed


@contextmanager
def found_by_run(run: Path) -> Iterator[None]:
    """While the images of a run are loaded: whoever resumes or measures it has not named them, so say who did."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; {_way_back(run)}") from None


def _way_back(run: Path) -> str:
    return (
        f"the run's images are to be at data.path of {run / 'config.yaml'}; put them back, or say where they are now: "
        f"intrabatch train --resume {shlex.quote(str(run))} DATA"
    )


def singletons(images: ImageSet) -> int:
    """How many classes with one image a split set keeps out of training: in no split, or in the gallery only."""
    assert images.splits is not None
    alone = (images.class_sizes() == 1)[images.labels]
    gallery = np.zeros(len(images), np.bool_) if images.roles is None else images.roles == "gallery"
    return int((alone & ((images.splits == "") | gallery)).sum())
