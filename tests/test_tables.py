"""Tables written by hand and by pyarrow; every wrong one by its message, with the row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from intrabatch.data.tables import read_table
from intrabatch.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with images a.png, b.png, 'c d.png' and sub/é.png."""
    (tmp_path / "sub").mkdir()
    for i, name in enumerate(("a.png", "b.png", "c d.png", "sub/é.png")):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(tmp_path / name)
    return tmp_path


def csv(folder: Path, *lines: str) -> Path:
    path = folder / "images.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def parquet(folder: Path, **columns: object) -> Path:
    path = folder / "images.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


def message(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_table(path)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(str(path))
    return text.removeprefix(str(path))


def test_a_csv_with_paths_and_labels(folder: Path) -> None:
    images = read_table(csv(folder, "label,path,price", "007,sub/é.png,3", "NA,c d.png,", f"007,{folder}/a.png,x"))
    assert images.names == ("sub/é.png", "c d.png", f"{folder}/a.png")
    assert images.classes == ("007", "NA") and images.labels.tolist() == [0, 1, 0]
    assert images.splits is None and images.roles is None
    assert [images.read(i)[0, 0, 0] for i in range(3)] == [3, 2, 0]


def test_splits_and_roles(folder: Path) -> None:
    lines = ("a.png,x,train,", "b.png,x,Validation,", "c d.png,y,test, query ", "sub/é.png,y,test,gallery")
    images = read_table(csv(folder, "path,label,split,role", *lines))
    assert images.splits is not None and images.splits.tolist() == ["train", "val", "test", "test"]
    assert images.roles is not None and images.roles.tolist() == ["both", "both", "query", "gallery"]


def test_a_byte_order_mark_and_quotes(folder: Path) -> None:
    images = read_table(csv(folder, "\ufeffpath,label", '"c d.png","salt, and pepper"', "a.png, spaced "))
    assert images.classes == ("salt, and pepper", "spaced")


def test_parquet_with_any_type_of_label(folder: Path) -> None:
    paths = ["a.png", "b.png", "sub/é.png"]
    for labels in (pa.array([7, 8, 7]), pa.array(["7", "8", "7"]), pa.array(["7", "8", "7"]).dictionary_encode()):
        images = read_table(parquet(folder, path=paths, label=labels, vector=[[1.0]] * 3, split=["test"] * 3))
        assert images.classes == ("7", "8") and images.labels.tolist() == [0, 1, 0]
        assert images.splits is not None and set(images.splits) == {"test"}


def test_tables_that_cannot_be_read(folder: Path) -> None:
    assert message(folder / "nowhere.csv") == ": no such file; expected a table ending in .csv or .parquet"
    (folder / "empty.csv").touch()
    wanted = "expected path and label, and if wanted split and role"
    assert message(folder / "empty.csv") == f": column 'path' is missing; found an empty file; {wanted}"
    (folder / "false.parquet").write_text("no parquet")
    assert message(folder / "false.parquet").startswith(": cannot be read as a table (")
    assert message(csv(folder, "path,label", "a.png,x", "b.png,x,y")) == (
        ", row 2: 3 cells, expected 2 as in the header; a cell with a comma in it needs quotes around it"
    )
    assert message(csv(folder, "path,label", 'a.png,"x')) == ": cannot be read as a table (unexpected end of data)"
    assert message(csv(folder, "path,label,label", "a.png,x,y")) == ": 2 columns are called 'label'; keep one"
    assert message(csv(folder, "path,label")) == (": the table has no rows below its header; expected a row per image")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le"])
def test_a_csv_in_another_encoding(folder: Path, encoding: str) -> None:
    for text in ("path,label\na.png,café", "path,labél\na.png,x"):
        (folder / "other.csv").write_bytes(text.encode(encoding))
        assert message(folder / "other.csv") == (
            ": not a text in UTF-8; save it as UTF-8, which spreadsheets call 'CSV UTF-8'"
        )


def test_spaces_around_the_names_of_columns(folder: Path) -> None:
    images = read_table(csv(folder, "path, label , split", "a.png, 007, test"))
    assert images.classes == ("007",) and images.splits is not None and images.splits.tolist() == ["test"]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_named(folder: Path, separator: str) -> None:
    found = message(csv(folder, f"path{separator}label", f"a.png{separator}salt, and pepper"))
    assert found == f": the columns are separated by {separator!r}; save it with commas between them"


@pytest.mark.parametrize("label", [float("nan"), None])
@pytest.mark.parametrize("coded", [False, True])
def test_a_label_that_is_nan_is_empty(folder: Path, label: float | None, coded: bool) -> None:
    labels = pa.array([1.0, label])
    path = parquet(folder, path=["a.png", "b.png"], label=labels.dictionary_encode() if coded else labels)
    assert message(path) == ", row 2, label '': an empty label; each image needs the name of its class"


def test_one_file_under_two_spellings(folder: Path) -> None:
    for other in ("./a.png", "sub/../a.png", f"{folder}/a.png"):
        assert message(csv(folder, "path,label", "a.png,x", f"{other},x")) == (
            f", row 2, path '{other}': row 1 has this path already; each image needs one row"
        )


def test_missing_columns(folder: Path) -> None:
    wanted = "expected path and label, and if wanted split and role"
    assert message(csv(folder, "file,label", "a.png,x")) == (
        f": column 'path' is missing; found 'file', 'label'; {wanted}"
    )
    assert message(parquet(folder, path=["a.png"], kind=["x"])) == (
        f": column 'label' is missing; found 'path', 'kind'; {wanted}"
    )


def test_wrong_cells_name_their_row(folder: Path) -> None:
    header = "path,label,split,role"
    good = "a.png,x,train,both"
    assert message(csv(folder, header, good, "b.png, ,test,")) == (
        ", row 2, label ' ': an empty label; each image needs the name of its class"
    )
    assert message(csv(folder, header, good, "b.png,x,tset,")) == (
        ", row 2, split 'tset': unknown split; did you mean 'test'?"
    )
    assert message(csv(folder, header, "a.png,x,7,")) == (
        ", row 1, split '7': unknown split; choose from: train, val, valid, validation, test"
    )
    assert message(csv(folder, header, good, "b.png,x,test,querry")) == (
        ", row 2, role 'querry': unknown role; did you mean 'query'?"
    )
    assert message(csv(folder, header, good, good, "B.png,x,test,")) == (
        ", row 2, path 'a.png': row 1 has this path already; each image needs one row"
    )
    assert message(csv(folder, header, good, "nowhere.png,x,test,")) == (
        ", row 2, path 'nowhere.png': no such file; paths are absolute or relative to the folder of the table"
    )
    assert "row 1, path 'sub': no such file" in message(csv(folder, header, "sub,x,test,"))
    assert message(parquet(folder, path=["a.png", "b.png"], label=["x", None])) == (
        ", row 2, label '': an empty label; each image needs the name of its class"
    )
