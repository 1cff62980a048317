"""What a user points at, read: a folder, a table, or for embedding and search also loose images.

The one place that chooses a reader by the kind of a path.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import DataError
from .folders import has_loose_images, read_folder, read_unlabelled
from .image_set import ImageSet
from .tables import EXTENSIONS, read_table


def read_images(data: str | Path) -> ImageSet:
    """The labelled images of a folder per class, or of a CSV or Parquet table."""
    return _read_labelled(data, "a folder per class")


def _read_labelled(data: str | Path, expected: str) -> ImageSet:
    data = _named(data)
    if data.is_dir():
        return read_folder(data)
    if data.is_file() and _is_table(data):
        return read_table(data)
    found = "neither a folder nor a table" if data.exists() else "no such folder or file"
    raise DataError(f"{data}: {found}; expected {expected}, or a table ending in {' or '.join(EXTENSIONS)}")


def read_any_images(data: str | Path) -> ImageSet:
    """As `read_images`, and also one image file, or a folder with loose images: these are all 'unlabelled'."""
    data = _named(data)
    loose = has_loose_images(data) if data.is_dir() else data.is_file() and not _is_table(data)
    return read_unlabelled(data) if loose else _read_labelled(data, "an image, a folder of images")


def _named(data: str | Path) -> Path:
    """An empty text names nothing, though Python takes it for the folder that one is in."""
    if not str(data):
        raise DataError("an empty path to images; give a folder, a table or an image, or . for this folder")
    return Path(data)


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS
