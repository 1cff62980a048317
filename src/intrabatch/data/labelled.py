"""An image set from words: a class name, and perhaps a split and a role, for each image.

Where the words were found (folders, a table, a benchmark's lists) it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import DataError
from .image_set import ImageSet, Source

SPLIT_OF_WORD = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""The words people use for a split, and the one of SPLITS that they mean."""


def label_in(cell: str) -> str:
    """The label that a cell of a table means; an empty one is a mistake wherever it is read."""
    if not cell.strip():
        raise DataError("an empty label; each image needs the name of its class")
    return cell.strip()


def role_in(cell: str) -> str:
    """The role that a cell means, not checked further; an empty one means both."""
    return cell.strip().lower() or "both"


def labelled_images(
    names: Sequence[str],
    labels: Sequence[str],
    source: Source,
    splits: Sequence[str] | None = None,
    roles: Sequence[str] | None = None,
) -> ImageSet:
    """An image set from one class name per image; the classes come in sorted order."""
    classes = sorted(set(labels))
    index = {label: i for i, label in enumerate(classes)}
    return ImageSet(
        names=tuple(names),
        labels=np.array([index[label] for label in labels], dtype=np.int64),
        classes=tuple(classes),
        source=source,
        splits=None if splits is None else np.array(splits, dtype="<U5"),
        roles=None if roles is None or set(roles) == {"both"} else np.array(roles, dtype="<U7"),
    )
