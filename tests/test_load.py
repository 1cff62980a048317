"""From what a user names to a set with a class-disjoint split."""

from dataclasses import replace

import numpy as np
import pytest

from intrabatch.config import DataConfig
from intrabatch.data.image_set import split_classes, synthetic_images
from intrabatch.data.load import load_images, singletons, with_splits, with_splits_of
from intrabatch.errors import DataError
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
    with pytest.raises(DataError, match="3 classes with two or more images are too few to split: 1 would validate, 2 "):
        with_splits(synthetic_images(3, 4), HALF)


def test_a_few_classes_still_test_on_two():
    """On one class every figure is 100 %."""
    five = with_splits(synthetic_images(5, 4), DataConfig())
    assert [len(classes_of(five, split)) for split in ("train", "val", "test")] == [2, 1, 2]
    four = with_splits(synthetic_images(4, 4), DataConfig(val_fraction=0))
    assert len(classes_of(four, "train")) == len(classes_of(four, "test")) == 2


def test_a_runs_table_restores_its_split(tmp_path):
    images = with_splits(uneven(), HALF)
    (tmp_path / "splits.csv").write_text(splits_table(images))
    again = with_splits_of(replace(images, splits=None, roles=None), tmp_path / "splits.csv")
    assert again.names == images.names
    assert again.splits.tolist() == images.splits.tolist() and again.roles.tolist() == images.roles.tolist()
    with pytest.raises(DataError, match=r"1 of 34 images of .* are no longer in the data, first 'class0/000'"):
        with_splits_of(images.subset(range(1, 34)), tmp_path / "splits.csv")


def test_nothing_named():
    with pytest.raises(DataError, match="no images named; give DATA"):
        load_images(DataConfig())
