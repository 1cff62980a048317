"""Batches of P classes x K images, and the random crops that go with them, planned for a whole epoch at once.

Everything is a pure function of (seed, epoch), so a run can be resumed at any step and repeated to the bit.
Shapes: N training images, S steps in an epoch, B = P x K images in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config import BatchConfig, ImageConfig
from ..errors import ConfigError, DataError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BATCHES, CROPS, FACTORS, COLOURS = 1, 2, 3, 4  # streams of randomness under one seed


@dataclass(frozen=True)
class EpochPlan:
    """What every step of an epoch sees: which images, which part, flipped or not, colours, what is erased."""

    indices_SB: IntArray
    boxes_SB4: IntArray
    """top, left, height, width in pixels of the stored image"""
    flips_SB: NDArray[np.bool_]
    erased_SB4: IntArray
    """top, left, height, width in pixels of the crop; height 0 for none"""
    colours_SB3: FloatArray
    """factors of brightness, contrast and saturation; 1 for none"""

    def __len__(self) -> int:
        return len(self.indices_SB)


def num_batches(num_images: int, batch: BatchConfig) -> int:
    """Steps in an epoch: as many whole batches as the images fill, and at least one."""
    return max(1, num_images // batch.size)


def plan_epoch(
    labels_N: IntArray, sizes_N2: IntArray, batch: BatchConfig, image: ImageConfig, seed: int, epoch: int
) -> EpochPlan:
    """The plan of one epoch."""
    classes, per_class = draw_factors(batch, len(np.unique(labels_N)), seed, epoch)
    indices_SB = deal_batches(labels_N, classes, per_class, np.random.default_rng([seed, BATCHES, epoch]))
    rng = np.random.default_rng([seed, CROPS, epoch])
    sizes_M2 = sizes_N2[indices_SB.ravel()]
    shape = indices_SB.shape
    return EpochPlan(
        indices_SB,
        random_boxes(sizes_M2, image.min_scale, image.max_scale, rng).reshape(*shape, 4),
        rng.random(shape) < image.flip,
        random_erasures(len(sizes_M2), image.crop, image.erase, rng).reshape(*shape, 4),
        np.random.default_rng([seed, COLOURS, epoch]).uniform(1 - image.colour, 1 + image.colour, (*shape, 3)),
    )


def draw_factors(batch: BatchConfig, num_classes: int, seed: int, epoch: int) -> tuple[int, int]:
    """P and K of this epoch: as configured, or drawn among the factorisations of P x K with at least 2 of each."""
    if not batch.redraw:
        return batch.classes, batch.images
    size = batch.size
    factors = [(p, size // p) for p in range(2, size // 2 + 1) if size % p == 0 and p <= num_classes]
    if not factors:
        return batch.classes, batch.images
    return factors[np.random.default_rng([seed, FACTORS, epoch]).integers(len(factors))]


def require_classes(num_classes: int, batch: BatchConfig) -> None:
    """Stop before training when a batch asks for more classes than there are."""
    if num_classes < batch.classes:
        raise ConfigError(
            f"batch.classes is {batch.classes}, but there are only {num_classes} training classes; "
            f"set batch.classes to {num_classes} or fewer"
        )


def deal_batches(labels_N: IntArray, classes: int, per_class: int, rng: np.random.Generator) -> IntArray:
    """Image indices (S, P * K): never a class twice in a batch, every image with equal chance.

    Each class is worth a number of hands of K images in proportion to its size. All hands, grouped by class in a
    random order, are dealt to the batches in turn like cards, so the hands of a class fall into different batches.
    """
    num_steps = max(1, len(labels_N) // (classes * per_class))
    hands_C = _draw_hands(np.bincount(labels_N), num_steps, classes, rng)
    members = np.split(np.argsort(labels_N, kind="stable"), np.cumsum(np.bincount(labels_N))[:-1])
    dealt: list[IntArray] = []
    for label in rng.permutation(len(hands_C)):
        dealt.extend(_hands(members[label], int(hands_C[label]), per_class, rng))
    table = np.stack(dealt).reshape(classes, num_steps, per_class).swapaxes(0, 1)
    return table[rng.permutation(num_steps)].reshape(num_steps, -1)


def _draw_hands(sizes_C: IntArray, num_steps: int, classes: int, rng: np.random.Generator) -> IntArray:
    """Hands of each class, P x S in all: its fair share rounded up or down at random, at most one a batch."""
    if np.count_nonzero(sizes_C) < classes:
        raise DataError(f"{np.count_nonzero(sizes_C)} classes cannot fill batches of {classes} different classes")
    share_C = sizes_C / sizes_C.sum() * num_steps * classes
    while (share_C > num_steps + 1e-9).any():  # the largest classes: one hand in every batch
        full = share_C >= num_steps
        rest = num_steps * (classes - full.sum())
        share_C = np.where(full, num_steps, share_C / share_C[~full].sum() * rest)
    order = rng.permutation(len(share_C))
    edges = np.concatenate([[0.0], np.cumsum(share_C[order])]) + rng.random()
    hands_C = np.empty(len(share_C), np.int64)
    hands_C[order] = np.diff(np.floor(edges + 1e-9).astype(np.int64))
    return hands_C


def _hands(members: IntArray, count: int, per_class: int, rng: np.random.Generator) -> list[IntArray]:
    """`count` hands of K images of one class, going round its images in random order; no repeats if it has K."""
    queue: IntArray = np.empty(0, np.int64)
    hands = []
    for _ in range(count):
        while len(queue) < per_class:
            again = rng.permutation(members)
            late: NDArray[np.bool_] = np.isin(again, queue)  # those already in this hand go to the back
            queue = np.concatenate([queue, again[np.argsort(late, kind="stable")]])
        hands.append(queue[:per_class])
        queue = queue[per_class:]
    return hands


def random_boxes(sizes_M2: IntArray, min_scale: float, max_scale: float, rng: np.random.Generator) -> IntArray:
    """Boxes as torchvision's RandomResizedCrop draws them: area, aspect ratio 3/4 to 4/3, ten tries, or the centre."""
    tries = 10
    height_M1, width_M1 = sizes_M2[:, :1], sizes_M2[:, 1:]
    shape = (len(sizes_M2), tries)
    area = height_M1 * width_M1 * rng.uniform(min_scale, max_scale, shape)
    ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), shape))
    high, wide = np.rint(np.sqrt(area / ratio)).astype(np.int64), np.rint(np.sqrt(area * ratio)).astype(np.int64)
    fits = (high > 0) & (wide > 0) & (high <= height_M1) & (wide <= width_M1)
    first = fits.argmax(axis=1, keepdims=True)
    high, wide = np.take_along_axis(high, first, 1), np.take_along_axis(wide, first, 1)
    fallback_high = np.minimum(height_M1, np.rint(width_M1 * (4 / 3)).astype(np.int64))
    fallback_wide = np.minimum(width_M1, np.rint(height_M1 * (4 / 3)).astype(np.int64))
    found = np.logical_or.reduce(fits, axis=1, keepdims=True)
    high, wide = np.where(found, high, fallback_high), np.where(found, wide, fallback_wide)
    top = np.floor(rng.random((len(sizes_M2), 1)) * (height_M1 - high + 1)).astype(np.int64)
    left = np.floor(rng.random((len(sizes_M2), 1)) * (width_M1 - wide + 1)).astype(np.int64)
    top, left = np.where(found, top, (height_M1 - high) // 2), np.where(found, left, (width_M1 - wide) // 2)
    return np.concatenate([top, left, high, wide], axis=1)


def random_erasures(count: int, crop: int, chance: float, rng: np.random.Generator) -> IntArray:
    """Rectangles as torchvision's RandomErasing draws them: 2-33 % of the area, aspect ratio 0.3 to 3.3."""
    area = crop * crop * rng.uniform(0.02, 0.33, count)
    ratio = np.exp(rng.uniform(np.log(0.3), np.log(3.3), count))
    high = np.clip(np.rint(np.sqrt(area * ratio)), 1, crop - 1).astype(np.int64)
    wide = np.clip(np.rint(np.sqrt(area / ratio)), 1, crop - 1).astype(np.int64)
    top = np.floor(rng.random(count) * (crop - high + 1)).astype(np.int64)
    left = np.floor(rng.random(count) * (crop - wide + 1)).astype(np.int64)
    high = np.where(rng.random(count) < chance, high, 0)
    return np.stack([top, left, high, wide], axis=1)


def centre_boxes(sizes_N2: IntArray, image: ImageConfig) -> IntArray:
    """The test-time crop: shorter side to `resize`, centre square of `crop`, in pixels of the image as it is."""
    side = np.maximum(1, np.rint(sizes_N2.min(1) * (image.crop / image.resize))).astype(np.int64)
    top, left = ((sizes_N2 - side[:, None]) // 2).T
    return np.stack([top, left, side, side], axis=1)
