"""Crops from stored and streamed images against torchvision on each image alone."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from intrabatch.config import BatchConfig, ImageConfig
from intrabatch.data.batches import plan_epoch
from intrabatch.data.image_set import ImageSet, synthetic_images
from intrabatch.data.pixels import (
    DevicePixels,
    HostPixels,
    StoredImages,
    boxes_on_canvas,
    crop_each,
    crop_together,
    erase,
    open_pixels,
    recolour,
    roomiest,
)

CPU = torch.device("cpu")
CONFIG = ImageConfig(crop=24, resize=32, erase=0.5)


class OddSizes:
    """Photos of different shapes, smooth enough to compare resampling."""

    def read(self, name, smallest_side=0):
        seed = int(name)
        size = 30 + 7 * seed, 48 - 3 * seed
        y, x = np.mgrid[: size[0], : size[1]]
        return np.stack([(y * 4 + seed * 30) % 256, (x * 4) % 256, (x + y) * 2 % 256], -1).astype(np.uint8)


def odd_images():
    labels = np.repeat(np.arange(3), 2)
    return ImageSet(tuple("012345"), labels, ("a", "b", "c"), OddSizes())


def plan_for(images, pixels):
    batch = BatchConfig(classes=3, images=2)
    return plan_epoch(images.labels, pixels.sizes_N2, batch, CONFIG, seed=0, epoch=0)


def test_train_crops_equal_torchvision_image_by_image():
    images = odd_images()
    pixels = open_pixels(images, CONFIG, CPU)
    plan = plan_for(images, pixels)
    (crops,) = pixels.train_crops(plan, 0)
    for row, (index, (top, left, high, wide)) in enumerate(zip(plan.indices_SB[0], plan.boxes_SB4[0], strict=True)):
        stored = torch.from_numpy(images.read(index)).permute(2, 0, 1)
        if min(stored.shape[1:]) > CONFIG.resize:
            stored = v2.functional.resize(stored, [CONFIG.resize], antialias=True)
        expected = v2.functional.resized_crop(stored, top, left, high, wide, [24, 24], antialias=True)
        if plan.flips_SB[0, row]:
            expected = v2.functional.horizontal_flip(expected)
        expected = expected.float() / 255
        y, x, h, w = plan.erased_SB4[0, row]
        kept = torch.ones(24, 24, dtype=torch.bool)
        kept[y : y + h, x : x + w] = False
        assert torch.allclose(crops[row][:, kept], expected[:, kept], atol=1.01 / 255)
        if h:
            assert torch.allclose(crops[row][:, y, x], torch.tensor([0.485, 0.456, 0.406]))


def test_test_crops_cover_all_images_in_order():
    images = odd_images()
    pixels = open_pixels(images, CONFIG, CPU)
    crops = list(pixels.test_crops(4))
    assert [len(part) for part in crops] == [4, 2]
    side = 24  # image 0 is 30 x 48: its shorter side times 24 / 32
    high = round(30 * side / 32)
    stored = torch.from_numpy(images.read(0)).permute(2, 0, 1)
    expected = v2.functional.resized_crop(stored, (30 - high) // 2, (48 - high) // 2, high, high, [24, 24])
    assert torch.allclose(crops[0][0], expected / 255, atol=1.01 / 255)


@pytest.mark.parametrize("first_step", [0, 1])
def test_streamed_crops_equal_stored_ones(first_step):
    images = synthetic_images(6, 4, size=40)
    stored, streamed = open_pixels(images, CONFIG, CPU), HostPixels.streamed(images, CONFIG, CPU)
    plan = plan_epoch(images.labels, stored.sizes_N2, BatchConfig(classes=3, images=2), CONFIG, seed=0, epoch=0)
    pairs = zip(stored.train_crops(plan, first_step), streamed.train_crops(plan, first_step), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert all(torch.equal(a, b) for a, b in zip(stored.test_crops(5), streamed.test_crops(5), strict=True))


def test_where_images_are_kept_is_chosen_by_size():
    assert roomiest(1000, CPU) == "memory"
    assert roomiest(10**15, CPU) == "stream"
    images = synthetic_images(2, 2)
    assert open_pixels(images, CONFIG, CPU).where == "memory"
    assert open_pixels(images, ImageConfig(crop=24, resize=32, store="stream"), CPU).where == "stream"


def test_crops_of_a_whole_batch_at_once_equal_crops_one_by_one():
    """The GPU's way, on the CPU: gathered canvases and two matrix products; shrinking, enlarging and flipped crops."""
    images = odd_images()
    pixels = DevicePixels(StoredImages.decoded(images, ImageConfig(crop=24, resize=200)), CONFIG, CPU)
    indices = np.array([0, 5, 3, 1, 5, 2])
    canvas = pixels.canvas(torch.from_numpy(indices))
    for row, index in enumerate(indices):
        image = torch.from_numpy(images.read(index)).permute(2, 0, 1)
        assert torch.equal(canvas[row, :, : image.shape[1], : image.shape[2]], image)
    rng = np.random.default_rng(0)
    for _ in range(10):
        sizes = pixels.sizes_N2[indices]
        high, wide = (rng.integers(3, sizes[:, axis] + 1) for axis in (0, 1))
        top, left = rng.integers(0, sizes[:, 0] - high + 1), rng.integers(0, sizes[:, 1] - wide + 1)
        boxes, flips = np.stack([top, left, high, wide], 1), rng.random(6) < 0.5
        views = [torch.from_numpy(images.read(i)).permute(2, 0, 1) for i in indices]
        expected = crop_each(views, boxes, flips, 24)
        found = crop_together(canvas, torch.from_numpy(boxes), torch.from_numpy(flips), 24)
        assert (found - expected).abs().max() <= 1.01 / 255  # bytes are rounded once on one side
        sent, moved = boxes_on_canvas(views, torch.from_numpy(boxes))
        assert sent.shape[2:] == (high.max(), wide.max())
        assert torch.allclose(crop_together(sent, moved, torch.from_numpy(flips), 24), found, atol=1e-5)


@pytest.mark.parametrize("colour", [0.0, 0.4])
def test_crops_made_on_a_device_equal_those_of_the_cpu(colour):
    """The same class that a GPU uses, whole epochs at a time, training and testing, from any step on."""
    images, config = odd_images(), ImageConfig(crop=24, resize=32, erase=0.5, colour=colour)
    there = DevicePixels(StoredImages.decoded(images, config), config, CPU)
    here = open_pixels(images, config, CPU)
    batch = BatchConfig(classes=3, images=1)
    plan = plan_epoch(images.labels, here.sizes_N2, batch, config, seed=0, epoch=0)
    for first_step in (0, 1):
        pairs = list(zip(there.train_crops(plan, first_step), here.train_crops(plan, first_step), strict=True))
        assert len(pairs) == 2 - first_step
        assert all((a - b).abs().max() < 2.6 / 255 for a, b in pairs)
    assert all((a - b).abs().max() < 1.01 / 255 for a, b in zip(there.test_crops(4), here.test_crops(4), strict=True))


def test_colours_equal_torchvision():
    crops, factors = torch.rand(3, 3, 8, 8), torch.tensor([[1.3, 0.7, 1.2], [0.6, 1.4, 0.1], [1.0, 1.0, 1.0]])
    for crop, found, (brightness, contrast, saturation) in zip(crops, recolour(crops, factors), factors, strict=True):
        expected = v2.functional.adjust_brightness(crop, brightness)
        expected = v2.functional.adjust_contrast(expected, contrast)
        assert torch.allclose(found, v2.functional.adjust_saturation(expected, saturation), atol=1e-5)


def test_erasing_touches_its_rectangle_only():
    crops = torch.full((2, 3, 6, 6), 2.0)
    erased = erase(crops, torch.tensor([[1, 2, 3, 4], [0, 0, 0, 5]]))
    assert torch.equal(erased[1], crops[1])
    assert (erased[0, :, 1:4, 2:6] < 1).all() and (erased[0] == 2).sum() == 3 * (36 - 12)
