"""The report on a folder whose faults are known, and what training refuses to start on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from intrabatch.data.check import check, drop_broken, require_trainable, require_unbroken
from intrabatch.data.folders import read_folder
from intrabatch.data.image_set import ArraySource, ImageSet, synthetic_images
from intrabatch.errors import BrokenImages, DataError


@pytest.fixture
def faulty(tmp_path: Path) -> ImageSet:
    """Three classes, one of a single image; three broken files, an image in two classes and one twice in its class."""
    for i, name in enumerate(("a/1.png", "a/2.png", "a/3.jpg", "b/1.png", "b/2.png", "single/1.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.effect_noise((32, 32), 20 + i).save(tmp_path / name)
    (tmp_path / "b/same as a1.png").write_bytes((tmp_path / "a/1.png").read_bytes())
    (tmp_path / "b/same as b2.png").write_bytes((tmp_path / "b/2.png").read_bytes())
    whole = (tmp_path / "a/3.jpg").read_bytes()
    (tmp_path / "a/cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b/empty.png").touch()
    (tmp_path / "a/empty.png").touch()
    (tmp_path / "notes.txt").touch()
    return read_folder(tmp_path)


def test_the_report_of_a_faulty_folder(faulty: ImageSet) -> None:
    report = check(faulty)
    assert (report.num_images, report.num_classes) == (11, 3)
    assert (report.class_size_min, report.class_size_median, report.class_size_max) == (1, 5, 5)
    assert report.single_image_classes == ("single",)
    reasons = dict(report.broken)
    assert set(reasons) == {"a/cut.jpg", "a/empty.png", "b/empty.png"}
    assert reasons["a/empty.png"] == "the file is empty (0 bytes)" and "cut short" in reasons["a/cut.jpg"]
    assert report.duplicates_across == (("a/1.png", "b/same as a1.png"),)
    assert report.duplicates_within == (("b/2.png", "b/same as b2.png"),)
    assert report.ignored == ("notes.txt",)
    assert report.shared_classes == () and report.num_images_by_split == {}


def test_the_report_in_lines_and_as_json(faulty: ImageSet) -> None:
    report = check(faulty)
    lines = report.lines()
    assert lines[:3] == [
        "11 images in 3 classes",
        "images per class: 1 to 5, median 5",
        "classes with one image, for the gallery and not for training: 1 (single)",
    ]
    assert lines[3].startswith("files that cannot be read: 3 (a/cut.jpg: damaged or cut short (")
    assert lines[4:] == [
        "identical files in different classes: 1 (a/1.png = b/same as a1.png)",
        "identical files in one class: 1 (b/2.png = b/same as b2.png)",
        "other files, ignored: 1 (notes.txt)",
    ]
    assert json.loads(json.dumps(report.as_dict()))["broken"][1] == ["a/empty.png", "the file is empty (0 bytes)"]


def test_a_sound_set_has_a_short_report() -> None:
    images = synthetic_images(num_classes=3, per_class=4)
    assert check(images).lines() == ["12 images in 3 classes", "images per class: 4 to 4, median 4"]


def test_identical_pixels_in_memory_are_duplicates_too() -> None:
    images = synthetic_images(num_classes=2, per_class=2)
    assert isinstance(images.source, ArraySource)
    pixels = images.source.pixels_NHW3.copy()
    pixels[3] = pixels[0]
    report = check(replace(images, source=ArraySource(pixels, images.source.rows)))
    assert report.duplicates_across == ((images.names[0], images.names[3]),)


def test_classes_shared_by_splits_are_reported() -> None:
    images = synthetic_images(num_classes=3, per_class=2)
    images = replace(images, splits=np.array(["train", "train", "train", "test", "test", "test"]))
    report = check(images)
    assert report.shared_classes == ("class1",) and report.num_images_by_split == {"train": 3, "test": 3}
    assert report.lines()[0] == "6 images in 3 classes (train 3, test 3)"


def test_broken_files_stop_training_or_are_left_out(faulty: ImageSet) -> None:
    report = check(faulty)
    with pytest.raises(BrokenImages) as caught:
        require_unbroken(report)
    text = str(caught.value)
    assert text.startswith("3 of 11 images cannot be read (a/cut.jpg: damaged") and "\n" not in text
    assert text.endswith("); mend or remove them, or leave them out with --skip-broken")
    assert [name for name, _ in caught.value.broken] == ["a/cut.jpg", "a/empty.png", "b/empty.png"]
    sound = drop_broken(faulty, report)
    assert set(faulty.names) - set(sound.names) == {"a/cut.jpg", "a/empty.png", "b/empty.png"}
    require_unbroken(check(sound))


def test_many_broken_files_are_counted_and_some_named(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{i:02d}.png").touch()
    images = read_folder(tmp_path)
    report = check(images)
    with pytest.raises(BrokenImages, match=r"^12 of 12 .* a/04\.png: the file is empty .*; and 7 more\); mend"):
        require_unbroken(report)
    with pytest.raises(DataError, match=r"^none of the 12 images can be read; a/00\.png: the file is empty"):
        drop_broken(images, report)


def test_training_needs_two_classes_of_two() -> None:
    require_trainable(synthetic_images(num_classes=2, per_class=2))
    rule = "training compares images within and between classes and needs 2 classes with two images each"
    for num_classes, per_class, found in ((1, 5, "1 such, of 1 (class0)"), (2, 1, "0 such, of 2 (class0; class1)")):
        with pytest.raises(DataError) as caught:
            require_trainable(synthetic_images(num_classes, per_class))
        assert str(caught.value) == f"{rule}; found {found}; add images of more classes"


def test_a_folder_with_a_single_class_is_named(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    for i in range(3):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(tmp_path / "cats" / f"{i}.png")
    with pytest.raises(DataError) as caught:
        require_trainable(read_folder(tmp_path))
    assert str(caught.value).startswith(f"images in {tmp_path}: training compares")
    assert str(caught.value).endswith("found 1 such, of 1 (cats); add images of more classes")
