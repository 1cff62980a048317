"""Batches and crops: what must hold for every epoch, and distributions against torchvision's own transforms."""

from collections import Counter

import numpy as np
import pytest
import torch
from torchvision.transforms import RandomErasing, RandomResizedCrop

from intrabatch.config import BatchConfig, ImageConfig
from intrabatch.data.batches import (
    centre_boxes,
    deal_batches,
    draw_factors,
    num_batches,
    plan_epoch,
    random_boxes,
    random_erasures,
    require_classes,
)
from intrabatch.errors import ConfigError

UNEVEN = np.repeat(np.arange(12), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])


def deal(labels, p, k, seed=0):
    return deal_batches(labels, p, k, np.random.default_rng(seed))


@pytest.mark.parametrize(("p", "k"), [(2, 2), (4, 3), (6, 9), (12, 1)])
def test_every_batch_has_p_classes_of_k_images(p, k):
    for seed in range(20):
        batches = deal(UNEVEN, p, k, seed)
        assert batches.shape == (num_batches(len(UNEVEN), BatchConfig(classes=p, images=k)), p * k)
        for batch in batches:
            assert sorted(Counter(UNEVEN[batch]).values()) == [k] * p


def test_an_image_comes_twice_in_a_batch_only_if_its_class_is_too_small():
    for seed in range(20):
        for batch in deal(UNEVEN, 4, 3, seed):
            for index, count in Counter(batch).items():
                assert count == 1 or (UNEVEN[index] == UNEVEN).sum() < 3


def test_every_image_has_equal_chance_whatever_its_class_size():
    seen = np.zeros(len(UNEVEN))
    epochs = 3000
    for epoch in range(epochs):
        batches = deal(UNEVEN, 4, 3, epoch)
        seen += np.bincount(batches.ravel(), minlength=len(UNEVEN))
    expected = epochs * batches.size / len(UNEVEN)
    assert np.abs(seen / expected - 1).max() < 0.06  # 3000 epochs: a standard error of about 1.5 %


def test_a_class_with_most_of_the_images_is_in_every_batch_once():
    labels = np.repeat([0, 1, 2, 3], [60, 4, 4, 4])
    for batch in deal(labels, 3, 2):
        assert Counter(labels[batch])[0] == 2


def test_one_epoch_shows_every_image_of_even_classes_once():
    labels = np.repeat(np.arange(8), 6)
    assert sorted(deal(labels, 4, 3).ravel()) == list(range(48))


def test_plans_are_functions_of_seed_and_epoch():
    sizes = np.full((len(UNEVEN), 2), 40)
    arguments = (UNEVEN, sizes, BatchConfig(classes=4, images=3), ImageConfig(crop=32, resize=40))
    first, same = plan_epoch(*arguments, seed=1, epoch=2), plan_epoch(*arguments, seed=1, epoch=2)
    for name, value in vars(first).items():
        assert np.array_equal(value, getattr(same, name))
    for seed, epoch in [(1, 3), (2, 2)]:
        assert not np.array_equal(first.indices_SB, plan_epoch(*arguments, seed=seed, epoch=epoch).indices_SB)


def test_redraw_keeps_the_batch_size():
    batch = BatchConfig(classes=6, images=9, redraw=True)
    drawn = {draw_factors(batch, 100, 0, epoch) for epoch in range(200)}
    assert drawn == {(2, 27), (3, 18), (6, 9), (9, 6), (18, 3), (27, 2)}
    assert {p for p, _ in (draw_factors(batch, 10, 0, epoch) for epoch in range(50))} == {2, 3, 6, 9}


def test_too_few_classes_is_one_line():
    with pytest.raises(ConfigError, match=r"batch\.classes is 6, but there are only 4 training classes; set"):
        require_classes(4, BatchConfig())


def test_boxes_are_distributed_as_torchvisions():
    sizes = np.tile([[60, 97]], (20_000, 1))
    ours = random_boxes(sizes, 0.08, 1.0, np.random.default_rng(0))
    torch.manual_seed(0)
    image = torch.zeros(3, 60, 97)
    theirs = np.array([RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(20_000)])
    for column, name in enumerate(["top", "left", "height", "width"]):
        ranks = np.quantile(ours[:, column], np.linspace(0.02, 0.98, 25))
        expected = np.quantile(theirs[:, column], np.linspace(0.02, 0.98, 25))
        assert np.abs(ranks - expected).max() <= 2, name  # pixels
    assert (ours[:, 0] + ours[:, 2] <= 60).all() and (ours[:, 1] + ours[:, 3] <= 97).all()


def test_boxes_of_extreme_images_fall_back_to_the_centre_as_torchvisions():
    boxes = random_boxes(np.array([[10, 200], [200, 10]]), 0.9, 1.0, np.random.default_rng(0))
    for size, box in zip([(10, 200), (200, 10)], boxes, strict=True):
        theirs = RandomResizedCrop.get_params(torch.zeros(3, *size), [0.9, 1.0], [3 / 4, 4 / 3])
        assert tuple(box) == tuple(theirs)


def test_erasures_are_distributed_as_torchvisions():
    ours = random_erasures(20_000, 64, 1.0, np.random.default_rng(0))
    torch.manual_seed(0)
    image = torch.zeros(3, 64, 64)
    theirs = [RandomErasing.get_params(image, (0.02, 0.33), (0.3, 3.3), [0.0])[:4] for _ in range(20_000)]
    area, expected = ours[:, 2] * ours[:, 3], np.array([h * w for _, _, h, w in theirs])
    assert abs(area.mean() / expected.mean() - 1) < 0.05
    assert (ours[:, 0] + ours[:, 2] <= 64).all() and (ours[:, 1] + ours[:, 3] <= 64).all()
    assert (random_erasures(1000, 64, 0.0, np.random.default_rng(0))[:, 2] == 0).all()


def test_centre_boxes_are_the_test_crop_scaled_to_the_image():
    image = ImageConfig(crop=224, resize=256)
    assert centre_boxes(np.array([[256, 300], [512, 512], [100, 64]]), image).tolist() == [
        [16, 38, 224, 224],
        [32, 32, 448, 448],
        [22, 4, 56, 56],
    ]
