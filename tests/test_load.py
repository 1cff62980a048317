"""From what a user names to a set with a class-disjoint split."""

from dataclasses import replace

import numpy as np
import pytest

from intrabatch.config import DataConfig
from intrabatch.data.image_set import split_classes, synthetic_images
from intrabatch.data.load import found_by_run, load_images, singletons, with_splits, with_splits_of
from intrabatch.errors import DataError, RunError
from intrabatch.run import splits_table

HALF = DataConfig(val_fraction=0.25, test_fraction=0.25)


def classes_of(images, split):
    return set(images.only(split).classes)


def uneven():
    """8 classes of 4, and two classes of which one image is left."""
    images = synthetic_images(10, 4)
    return images.subset(np.flatnonzero((images.labels < 8) | (np.arange(40) % 4 == 0)))


def test_without_a_split_whole_classes_are_held_out():
    images = with_splits(synthetic_images(12, 4), HALF)
    found = [classes_of(images, split) for split in ("train", "val", "test")]
    assert [len(classes) for classes in found] == [6, 3, 3]
    assert not (found[0] & found[1] or found[0] & found[2] or found[1] & found[2])


def test_the_split_follows_its_seed():
    splits = [split_classes(synthetic_images(12, 4), 0.25, 0.25, seed).splits.tolist() for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]


def test_a_class_with_one_image_is_gallery_and_never_trains():
    images = with_splits(uneven(), HALF)
    alone = (images.class_sizes() == 1)[images.labels]
    assert alone.sum() == 2 == singletons(images)
    assert (images.splits[alone] == "test").all() and (images.roles[alone] == "gallery").all()
    assert (images.roles[~alone] == "both").all()


def test_own_split_is_kept_and_training_classes_validate():
    images = uneven()
    images = replace(images, splits=np.where(images.labels < 2, "test", "train"))
    split = with_splits(images, HALF)
    assert classes_of(split, "test") == {"class0", "class1"}
    assert len(classes_of(split, "val")) == 2 and len(classes_of(split, "train")) == 4
    assert (split.splits == "").sum() == 2 == singletons(split)
    assert with_splits(images, replace(HALF, val_fraction=0.0)).splits.tolist().count("val") == 0


def test_a_split_without_training_is_refused():
    images = replace(synthetic_images(4, 2), splits=np.full(8, "test"))
    with pytest.raises(DataError, match=r"the data has a split \(test\) but nothing in train"):
        with_splits(images, HALF)


def test_too_few_classes_to_split_says_how_many():
    with pytest.raises(DataError, match="3 classes with two or more images are too few to split: 0 would validate, 2 "):
        with_splits(synthetic_images(3, 4), HALF)


def test_a_few_classes_still_test_on_two():
    """On one class every figure is 100 %."""
    for num, val, expected in [(4, 0.1, [2, 0, 2]), (14, 0.1, [10, 0, 4]), (15, 0.1, [9, 2, 4]), (6, 0.3, [2, 2, 2])]:
        images = with_splits(synthetic_images(num, 4), DataConfig(val_fraction=val))
        assert [len(classes_of(images, split)) for split in ("train", "val", "test")] == expected


def test_hidden_test_images_are_in_no_split():
    shown, hidden = (with_splits(synthetic_images(12, 4), replace(HALF, hide_test=hide)) for hide in (False, True))
    assert set(hidden.splits) == {"", "train", "val"}
    assert (shown.splits[hidden.splits != ""] == hidden.splits[hidden.splits != ""]).all()
    assert (shown.splits[hidden.splits == ""] == "test").all()


def test_a_runs_table_restores_its_split(tmp_path):
    images = with_splits(uneven(), HALF)
    (tmp_path / "splits.csv").write_text(splits_table(images))
    again = with_splits_of(replace(images, splits=None, roles=None), tmp_path / "splits.csv")
    assert again.names == images.names
    assert again.splits.tolist() == images.splits.tolist() and again.roles.tolist() == images.roles.tolist()
    with pytest.raises(DataError) as caught:
        with_splits_of(images.subset(range(1, 34)), tmp_path / "splits.csv")
    assert str(caught.value) == (
        f"1 of 34 images of {tmp_path}/splits.csv are no longer in the data, first 'class0/000'; the run's images are "
        f"to be at data.path of {tmp_path}/config.yaml; put them back, or say where they are now: "
        f"intrabatch train --resume {tmp_path} DATA"
    )


def test_a_run_whose_images_are_gone_says_who_named_them(tmp_path):
    run = tmp_path / "my run"
    with pytest.raises(DataError) as caught, found_by_run(run):
        load_images(DataConfig(path=f"{tmp_path}/gone"))
    start, end = str(caught.value).split("; the run's images are to be at ")
    assert start.startswith(f"{tmp_path}/gone: no such folder or file")
    assert end.startswith(f"data.path of {run}/config.yaml; put") and end.endswith(f"train --resume '{run}' DATA")


@pytest.mark.parametrize("text", ["", "path,label,split,role\n", "a,b\n1,2\n", "path,label,split,role\nx,y,train"])
def test_a_runs_table_that_is_torn_is_named(tmp_path, text):
    (tmp_path / "splits.csv").write_text(text)
    with pytest.raises(RunError) as caught:
        with_splits_of(synthetic_images(2, 2), tmp_path / "splits.csv")
    assert str(caught.value) == (
        f"{tmp_path}/splits.csv cannot be read; expected a row per image under path, label, split and role, "
        f"as training wrote it: put it back, or train anew"
    )


def test_data_that_is_not_what_was_asked_for(tmp_path):
    table = tmp_path / "images.csv"
    table.write_text("path,label\n")
    for path, source, said in [
        (tmp_path, "glyphs", "a folder, but data.source=glyphs asks for the built-in glyphs"),
        (tmp_path / "gone", "glyphs", "no such folder or file, but data.source=glyphs asks for the built-in glyphs"),
        (tmp_path, "table", "a folder, but data.source=table asks for a file"),
        (table, "folder", "a file, but data.source=folder asks for a folder"),
    ]:
        with pytest.raises(DataError) as caught:
            load_images(DataConfig(path=str(path), source=source))
        assert str(caught.value) == f"{path}: {said}; give other DATA, or set data.source=auto"


def test_a_folder_may_be_called_glyphs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^glyphs: no such folder or file; expected a folder per class"):
        load_images(DataConfig(path="glyphs", source="folder"))


def test_nothing_named():
    with pytest.raises(DataError, match="no images named; give DATA"):
        load_images(DataConfig())
