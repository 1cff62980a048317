"""Tables of images: a CSV or Parquet file with a row for each image.

    path     relative to the folder of the table, or absolute
    label    the name of its class
    split    optional: train, val (or valid, validation), test
    role     optional: query, gallery or both; an empty cell means both

Other columns are not read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ..errors import DataError, did_you_mean
from .files import FileSource
from .image_set import ROLES, ImageSet
from .labelled import SPLIT_OF_WORD, labelled_images

EXTENSIONS = (".csv", ".parquet")
REQUIRED = ("path", "label")
COLUMNS = (*REQUIRED, "split", "role")


def read_table(path: str | Path) -> ImageSet:
    """The image set of a CSV or Parquet file. The first wrong row is named, counted from 1 below the header."""
    path = Path(path)
    columns = _columns(path)
    source = FileSource(path.parent)
    meanings = {"path": _new_file(source), "label": _label, "split": _split, "role": _role}
    words = {name: _meant(path, name, cells, meanings[name]) for name, cells in columns.items()}
    return labelled_images(words["path"], words["label"], source, words.get("split"), words.get("role"))


def _columns(path: Path) -> dict[str, list[str]]:
    """The cells of those COLUMNS that the table has, as text; an empty cell is an empty text."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a table ending in {' or '.join(EXTENSIONS)}")
    try:
        table = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
        columns = {name: table[name].cast(pa.string()) for name in COLUMNS if name in table.column_names}
    except (pa.ArrowException, OSError, KeyError) as error:
        detail = " ".join(str(error).split())
        raise DataError(f"{path}: cannot be read as a table ({detail})") from error
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise DataError(
            f"{path}: column '{missing[0]}' is missing; found {', '.join(map(repr, table.column_names))}; "
            f"expected path and label, and if wanted split and role"
        )
    if not len(table):
        raise DataError(f"{path}: the table has no rows below its header; expected a row per image")
    return {name: [cell or "" for cell in column.to_pylist()] for name, column in columns.items()}


def _read_csv(path: Path) -> pa.Table:
    as_text = pyarrow.csv.ConvertOptions(column_types={name: pa.string() for name in COLUMNS})  # '007' stays '007'
    return pyarrow.csv.read_csv(path, convert_options=as_text)


def _read_parquet(path: Path) -> pa.Table:
    with pyarrow.parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        return file.read([name for name in names if name in COLUMNS] or names[:1])


def _meant(table: Path, column: str, cells: list[str], meaning: Callable[[str], str]) -> list[str]:
    """What each cell of a column means; an error names its row."""
    words = []
    for row, cell in enumerate(cells, start=1):
        try:
            words.append(meaning(cell))
        except DataError as error:
            raise DataError(f"{table}, row {row}, {column} '{cell}': {error}") from None
    return words


def _new_file(source: FileSource) -> Callable[[str], str]:
    """The meaning of a path: a file that exists and that no row above has named."""
    rows: dict[str, int] = {}

    def new_file(cell: str) -> str:
        if cell in rows:
            raise DataError(f"row {rows[cell]} has this path already; each image needs one row")
        if not os.path.isfile(source.path(cell)):
            raise DataError("no such file; paths are absolute or relative to the folder of the table")
        rows[cell] = len(rows) + 1
        return cell

    return new_file


def _label(cell: str) -> str:
    if not cell.strip():
        raise DataError("an empty label; each image needs the name of its class")
    return cell.strip()


def _split(cell: str) -> str:
    word = cell.strip().lower()
    if word not in SPLIT_OF_WORD:
        raise DataError(f"unknown split{did_you_mean(word, SPLIT_OF_WORD)}")
    return SPLIT_OF_WORD[word]


def _role(cell: str) -> str:
    word = cell.strip().lower() or "both"
    if word not in ROLES:
        raise DataError(f"unknown role{did_you_mean(word, ROLES)}")
    return word
