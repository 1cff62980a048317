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
    assert message(folder / "empty.csv").startswith(": cannot be read as a table (Empty CSV file")
    (folder / "false.parquet").write_text("no parquet")
    assert message(folder / "false.parquet").startswith(": cannot be read as a table (")
    (folder / "latin.csv").write_bytes("path,label\na.png,café".encode("latin-1"))
    assert "invalid UTF8 data" in message(folder / "latin.csv")
    assert "Expected 2 columns, got 3" in message(csv(folder, "path,label", "a.png,x,y"))
    assert message(csv(folder, "path,label")) == (": the table has no rows below its header; expected a row per image")


def test_missing_columns(folder: Path) -> None:
    wanted = "expected path and label, and if wanted split and role"
    assert message(csv(folder, "file,label", "a.png,x")) == (
        f": column 'path' is missing; found 'file', 'label'; {wanted}"
    )
    assert message(csv(folder, "path;label", "a.png;x")) == f": column 'path' is missing; found 'path;label'; {wanted}"
    assert message(parquet(folder, path=["a.png"], kind=["x"])) == (
        f": column 'label' is missing; found 'path'; {wanted}"
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
