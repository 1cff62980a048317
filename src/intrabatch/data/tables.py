"""Tables of images: a CSV or Parquet file with a row for each image.

    path     relative to the folder of the table, or absolute
    label    the name of its class
    split    optional: train, val (or valid, validation), test
    role     optional: query, gallery or both; an empty cell means both

Other columns are not read. A null, and a number that is NaN, is an empty cell.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from ..errors import DataError, did_you_mean
from .files import FileSource
from .image_set import ROLES, ImageSet
from .labelled import SPLIT_OF_WORD, label_in, labelled_images, role_in

EXTENSIONS = (".csv", ".parquet")
REQUIRED = ("path", "label")
OPTIONAL = ("split", "role")


def read_table(path: str | Path) -> ImageSet:
    """The image set of a CSV or Parquet file. The first wrong row is named, counted from 1 below the header."""
    path = Path(path)
    _, columns = table_cells(path, REQUIRED, OPTIONAL)
    source = FileSource(path.parent)
    meanings = {"path": _new_file(source), "label": label_in, "split": _split, "role": _role}
    words = {name: meant(path, name, cells, meanings[name]) for name, cells in columns.items()}
    return labelled_images(words["path"], words["label"], source, words.get("split"), words.get("role"))


Table = tuple[list[str], dict[str, list[str]]]
"""The names of all columns, and the cells of those that were asked for, as text."""


def table_cells(path: Path, required: Sequence[str], optional: Sequence[str]) -> Table:
    """The columns of a table, of which the required ones must be there; an empty cell is an empty text."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a table ending in {' or '.join(EXTENSIONS)}")
    read = _read_parquet if path.suffix.lower() == ".parquet" else _read_csv
    try:
        names, columns = read(path, (*required, *optional))
    except (pa.ArrowException, OSError, KeyError, csv.Error) as error:
        detail = " ".join(str(error).split())
        raise DataError(f"{path}: cannot be read as a table ({detail})") from error
    missing = [name for name in required if name not in columns]
    if missing:
        raise DataError(
            f"{path}: column '{missing[0]}' is missing; found {', '.join(map(repr, names)) or 'an empty file'}; "
            f"expected {' and '.join(required)}, and if wanted {' and '.join(optional)}"
        )
    if not columns[required[0]]:
        raise DataError(f"{path}: the table has no rows below its header; expected a row per image")
    return names, columns


def _read_csv(path: Path, wanted: Sequence[str]) -> Table:
    """Everything in a CSV file is text: '007' stays '007'."""
    text = _utf8(path).strip("\r\n")
    header = text.partition("\n")[0]
    separator = next((mark for mark in ";\t|" if mark in header and "," not in header), None)
    if separator:
        raise DataError(f"{path}: the columns are separated by {separator!r}; save it with commas between them")
    first, *rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row] or [[]]
    names = [name.strip() for name in first]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise DataError(
                f"{path}, row {number}: {len(row)} cells, expected {len(names)} as in the header; "
                f"a cell with a comma in it needs quotes around it"
            )
    doubled = [name for name in wanted if names.count(name) > 1]
    if doubled:
        raise DataError(f"{path}: {names.count(doubled[0])} columns are called '{doubled[0]}'; keep one")
    return names, {name: [row[names.index(name)] for row in rows] for name in wanted if name in names}


def _utf8(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # UTF-16 without its mark is valid UTF-8, full of these
        raise DataError(f"{path}: not a text in UTF-8; save it as UTF-8, which spreadsheets call 'CSV UTF-8'")
    return text


def _read_parquet(path: Path, wanted: Sequence[str]) -> Table:
    with pyarrow.parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        table = file.read([name for name in names if name in wanted])
    return names, {name: _as_text(table[name]) for name in table.column_names}


def _as_text(column: pa.ChunkedArray) -> list[str]:
    texts = column.cast(pa.string()).to_pylist()
    empty = pyarrow.compute.is_null(column, nan_is_null=True).to_pylist()
    return ["" if no_value else text for text, no_value in zip(texts, empty, strict=True)]


def meant(table: Path, column: str, cells: list[str], meaning: Callable[[str], str]) -> list[str]:
    """What each cell of a column means; an error names its row."""
    words = []
    for row, cell in enumerate(cells, start=1):
        try:
            words.append(meaning(cell))
        except DataError as error:
            raise DataError(f"{table}, row {row}, {column} {cell!r}: {error}") from None
    return words


def _new_file(source: FileSource) -> Callable[[str], str]:
    """The meaning of a path: a file that exists and that no row above has named, however it was spelled there."""
    rows: dict[str, int] = {}

    def new_file(cell: str) -> str:
        place = os.path.abspath(source.path(cell))
        if place in rows:
            raise DataError(f"row {rows[place]} has this path already; each image needs one row")
        if not os.path.isfile(place):
            raise DataError("no such file; paths are absolute or relative to the folder of the table")
        rows[place] = len(rows) + 1
        return cell

    return new_file


def _split(cell: str) -> str:
    word = cell.strip().lower()
    if word not in SPLIT_OF_WORD:
        raise DataError(f"unknown split{did_you_mean(word, SPLIT_OF_WORD)}")
    return SPLIT_OF_WORD[word]


def _role(cell: str) -> str:
    word = role_in(cell)
    if word not in ROLES:
        raise DataError(f"unknown role{did_you_mean(word, ROLES)}")
    return word
