"""What a path is taken for."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from intrabatch.data.reading import read_any_images, read_images
from intrabatch.errors import DataError


def image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)
    return path


def test_folders_and_tables_keep_their_labels(tmp_path: Path) -> None:
    image(tmp_path / "cats" / "1.png")
    table = tmp_path / "images.CSV"
    table.write_text("path,label\ncats/1.png,felix\n")
    for read in (read_images, read_any_images):
        assert read(tmp_path).classes == ("cats",)
        assert read(str(table)).classes == ("felix",)


def test_loose_images_are_for_embedding_and_search_only(tmp_path: Path) -> None:
    loose = image(tmp_path / "1.png")
    image(tmp_path / "cats" / "2.png")
    assert read_any_images(loose).names == ("1.png",)
    assert read_any_images(tmp_path).names == ("1.png", "cats/2.png")
    assert read_any_images(tmp_path).classes == ("unlabelled",)
    with pytest.raises(DataError, match=r"'1\.png' lies in no class folder"):
        read_images(tmp_path)


def test_anything_else_is_one_line(tmp_path: Path) -> None:
    labelled, any_image = "a folder per class", "an image, a folder of images"
    (tmp_path / "photo.heic").write_text("....ftypheic")
    for read, name, found, wanted in (
        (read_images, "missing", "no such folder or file", labelled),
        (read_any_images, "missing.png", "no such folder or file", any_image),
        (read_images, "photo.heic", "neither a folder nor a table", labelled),
    ):
        with pytest.raises(DataError) as caught:
            read(tmp_path / name)
        assert str(caught.value) == (
            f"{tmp_path / name}: {found}; expected {wanted}, or a table ending in .csv or .parquet"
        )
    with pytest.raises(DataError, match=r"photo\.heic: not a JPEG, PNG, WebP, GIF, BMP or TIFF image: the file begins"):
        read_any_images(tmp_path / "photo.heic").read(0)


@pytest.mark.parametrize("read", [read_images, read_any_images])
def test_an_empty_text_is_not_the_current_folder(read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image(tmp_path / "cats" / "1.png")
    monkeypatch.chdir(tmp_path)
    assert read(".").classes == ("cats",)
    with pytest.raises(DataError, match=r"^an empty path to images; give a folder, a table or an image, or \. for"):
        read("")
