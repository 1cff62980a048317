"""Which class, split and role an image has by its place; every folder that cannot be used by its message."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from intrabatch.data.folders import list_files, read_folder, read_unlabelled
from intrabatch.data.image_set import ImageSet
from intrabatch.errors import DataError


def fill(root: Path, *names: str) -> Path:
    """Small images, each of its own colour, at these places."""
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (i, 0, 0)).save(root / name, "PNG")
    return root


def by_name(images: ImageSet) -> dict[str, tuple[str, str | None, str | None]]:
    """Class, split and role of each image."""
    splits = [None] * len(images) if images.splits is None else images.splits.tolist()
    roles = [None] * len(images) if images.roles is None else images.roles.tolist()
    labels = [images.classes[label] for label in images.labels]
    return dict(zip(images.names, zip(labels, splits, roles, strict=True), strict=True))


def message(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_folder(root)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(str(root))
    return text.removeprefix(str(root))


def test_a_folder_per_class(tmp_path: Path) -> None:
    images = read_folder(fill(tmp_path, "dogs/b.jpg", "dogs/a.PNG", "cats/deep/er/x.webp", "cats/a.tif"))
    assert images.names == ("cats/a.tif", "cats/deep/er/x.webp", "dogs/a.PNG", "dogs/b.jpg")
    assert images.classes == ("cats", "dogs") and images.labels.tolist() == [0, 0, 1, 1]
    assert images.splits is None and images.roles is None
    assert images.read(3)[0, 0].tolist() == [0, 0, 0] and images.read(0)[0, 0].tolist() == [3, 0, 0]


def test_the_order_is_that_of_names_not_of_creation(tmp_path: Path) -> None:
    names = [f"class {c}/{i}.png" for c in "zaé" for i in (10, 2, 1)]
    forward, backward = fill(tmp_path / "1", *names), fill(tmp_path / "2", *reversed(names))
    assert read_folder(forward).names == read_folder(backward).names == tuple(sorted(names))


@pytest.mark.parametrize("name, split", [("val", "val"), ("valid", "val"), ("Validation", "val"), ("TEST", "test")])
def test_split_folders(tmp_path: Path, name: str, split: str) -> None:
    fill(tmp_path, "train/a/1.png", "train/b/1.png", f"{name}/c/1.png", f"{name}/a/2.png")
    assert by_name(read_folder(tmp_path)) == {
        "train/a/1.png": ("a", "train", None),
        "train/b/1.png": ("b", "train", None),
        f"{name}/a/2.png": ("a", split, None),
        f"{name}/c/1.png": ("c", split, None),
    }


def test_query_and_gallery_folders(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png", "test/query/b/1.png", "test/gallery/b/2.png", "test/gallery/c/deep/3.png")
    assert by_name(read_folder(tmp_path)) == {
        "train/a/1.png": ("a", "train", "both"),
        "test/query/b/1.png": ("b", "test", "query"),
        "test/gallery/b/2.png": ("b", "test", "gallery"),
        "test/gallery/c/deep/3.png": ("c", "test", "gallery"),
    }
    assert by_name(read_folder(tmp_path / "test"))["query/b/1.png"] == ("b", None, "query")
    fill(tmp_path, "val/query/1.png", "val/other/1.png")
    assert by_name(read_folder(tmp_path))["val/query/1.png"] == ("query", "val", "both")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    images = read_folder(fill(tmp_path, "car/1.png", "train/1.png", "plane/1.png"))
    assert images.classes == ("car", "plane", "train") and images.splits is None


def test_hidden_and_other_files_are_ignored_and_named(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "a/.hidden.png", "b/1.png", ".git/x/1.png", "b/.thumbnails/1.png")
    (tmp_path / "readme.txt").touch()
    (tmp_path / "a" / "1.json").touch()
    (tmp_path / "empty").mkdir()
    listing = list_files(tmp_path)
    assert listing.images == ("a/1.png", "b/1.png") == read_folder(tmp_path).names
    assert listing.ignored == ("a/.hidden.png", "a/1.json", "readme.txt")


def test_unicode_and_spaces(tmp_path: Path) -> None:
    names = ("Käse und Brot/été 1.png", "ჩიტი/鳥 🐦.png", " spaced /it's.png")
    images = read_folder(fill(tmp_path / "my photos ü", *names))
    assert set(images.names) == set(names) and images.read(0).shape == (4, 4, 3)


def test_symlink_loops_end(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "b/deep/1.png")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "b" / "deep" / "up").symlink_to("..")
    (tmp_path / "b" / "self").symlink_to("self")
    assert read_folder(tmp_path).names == ("a/1.png", "b/deep/1.png")


def test_links_to_folders_and_files_are_followed(tmp_path: Path) -> None:
    elsewhere = fill(tmp_path / "elsewhere", "c/1.png")
    root = fill(tmp_path / "root", "a/1.png", "b/1.png")
    (root / "aa").symlink_to(root / "b")  # there already, under its real name: nothing is taken from class b
    (root / "c").symlink_to(elsewhere / "c")
    (root / "a" / "2.png").symlink_to(elsewhere / "c" / "1.png")
    (root / "a" / "broken.png").symlink_to("nowhere.png")
    (tmp_path / "link").symlink_to(root)
    assert read_folder(tmp_path / "link").names == ("a/1.png", "a/2.png", "a/broken.png", "b/1.png", "c/1.png")


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(fill(tmp_path, "a/1.png", "b/1.png") / "a" / "pipe.png")
    assert read_folder(tmp_path).names == ("a/1.png", "b/1.png")


def test_one_class_can_be_read(tmp_path: Path) -> None:
    assert read_folder(fill(tmp_path, "only/1.png", "only/2.png")).classes == ("only",)


def test_unlabelled_images(tmp_path: Path) -> None:
    fill(tmp_path, "1.png", "a/2.png", "a/b/3.png")
    images = read_unlabelled(tmp_path)
    assert images.names == ("1.png", "a/2.png", "a/b/3.png") and images.classes == ("unlabelled",)
    one = read_unlabelled(tmp_path / "a" / "2.png")
    np.testing.assert_array_equal(one.read(0), images.read(1))
    assert one.names == ("2.png",)


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    assert message(tmp_path / "missing") == ": nothing there, expected a folder with a folder of images per class"
    fill(tmp_path, "file.png")
    assert message(tmp_path / "file.png") == ": a file, expected a folder with a folder of images per class"
    assert message(tmp_path) == ": 'file.png' lies in no class folder; expected a folder per class, CLASS/file.png"
    (tmp_path / "empty").mkdir()
    kinds = "bmp, gif, jfif, jpeg, jpg, png, tif, tiff, webp"
    assert message(tmp_path / "empty") == f": no images in this folder (no files); expected files ending in {kinds}"
    (tmp_path / "empty" / "IMG_1.heic").touch()
    assert message(tmp_path / "empty") == (
        f": no images in this folder (other files: 1, 'IMG_1.heic' first); expected files ending in {kinds}"
    )


def test_split_folders_that_cannot_be_used(tmp_path: Path) -> None:
    fill(tmp_path / "loose", "train/a/1.png", "test/1.png")
    assert message(tmp_path / "loose") == (
        ": 'test/1.png' lies in no class folder; expected a folder per class, CLASS/1.png"
    )
    fill(tmp_path / "mixed", "train/a/1.png", "test/b/1.png", "extra/1.png")
    assert message(tmp_path / "mixed") == (": 'extra' lies beside the split folder 'test'; move it into a split")


def test_an_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def guarded(folder: str) -> object:
        if str(folder).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    fill(tmp_path, "a/1.png", "locked/1.png")
    monkeypatch.setattr(os, "scandir", guarded)  # root may read everything, whatever the folder's mode says
    assert message(tmp_path) == "/locked: the folder cannot be read (permission denied)"


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png")
    (tmp_path / "a" / os.fsdecode(b"caf\xe9.png")).touch()
    assert "the file name 'a/caf\\udce9.png' is not valid UTF-8; rename the file" in message(tmp_path)
