"""Decoded images and the crops cut from them: kept on the device, kept in memory, or decoded for every batch.

Images are decoded once, their shorter side reduced to `image.resize`, and kept as bytes; crops, flips and erasures of a
batch are made together on the device. Where bytes do not fit, they are decoded by threads, some batches ahead.
Shapes: N images, B images of a batch, H x W pixels of a stored image, S pixels a side of a crop.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import ImageConfig
from .batches import EpochPlan, IntArray, centre_boxes
from .image_set import ImageSet

BATCHES_AHEAD = 4
ERASED_COLOUR = (0.485, 0.456, 0.406)  # ImageNet's mean


class Pixels(Protocol):
    """Where crops come from."""

    sizes_N2: IntArray
    where: str

    def train_crops(self, plan: EpochPlan, first_step: int) -> Iterator[Tensor]:
        """For each step from `first_step` on, the crops (B, 3, S, S) in 0..1, on the device."""
        ...

    def test_crops(self, batch: int) -> Iterator[Tensor]:
        """The centre crops of all images in order, `batch` at a time."""
        ...


class StoredPixels:
    """All images decoded once into one run of bytes, on the device or in memory."""

    def __init__(self, images: ImageSet, config: ImageConfig, device: torch.device, where: str) -> None:
        self.config, self.device, self.where = config, device, where
        with ThreadPoolExecutor(num_threads()) as pool:
            decoded = list(pool.map(lambda i: read_small(images, i, config.resize), range(len(images))))
        self.sizes_N2 = np.array([image.shape[1:] for image in decoded], np.int64).reshape(-1, 2)
        self.offsets_N = np.concatenate([[0], np.cumsum(3 * self.sizes_N2.prod(1))])
        home = device if where == "device" else torch.device("cpu")
        self.bytes = torch.empty(int(self.offsets_N[-1]), dtype=torch.uint8, device=home)
        for start, image in zip(self.offsets_N, decoded, strict=False):
            self.bytes[start : start + image.numel()] = image.flatten().to(home)

    def train_crops(self, plan: EpochPlan, first_step: int) -> Iterator[Tensor]:
        for step in range(first_step, len(plan)):
            crops_B3SS = self._crops(plan.indices_SB[step], plan.boxes_SB4[step], plan.flips_SB[step])
            yield erase(crops_B3SS, plan.erased_SB4[step])

    def test_crops(self, batch: int) -> Iterator[Tensor]:
        boxes_N4 = centre_boxes(self.sizes_N2, self.config)
        for rows in np.array_split(np.arange(len(boxes_N4)), range(batch, len(boxes_N4), batch)):
            yield self._crops(rows, boxes_N4[rows], np.zeros(len(rows), np.bool_))

    def _crops(self, indices_B: IntArray, boxes_B4: IntArray, flips_B: np.ndarray) -> Tensor:
        if self.where == "device" and self.device.type == "cuda":
            boxes, flips = (torch.from_numpy(given).to(self.device) for given in (boxes_B4, flips_B))
            return crop_together(self.canvas(indices_B), boxes, flips, self.config.crop)
        views = [self._image(i) for i in indices_B]
        return crop_each(views, boxes_B4, flips_B, self.config.crop).to(self.device)

    def canvas(self, indices_B: IntArray) -> Tensor:
        """Images side by side on canvases of one size, gathered at once; what lies beyond an image is never read."""
        high, wide = (int(edge) for edge in self.sizes_N2.max(0))
        sizes_B2 = torch.from_numpy(self.sizes_N2[indices_B]).to(self.bytes.device)
        offsets_B = torch.from_numpy(self.offsets_N[indices_B]).to(self.bytes.device)
        high_B1, wide_B1 = sizes_B2[:, :1], sizes_B2[:, 1:]
        rows_BH = torch.arange(high, device=self.bytes.device).minimum(high_B1 - 1) * wide_B1
        columns_BW = torch.arange(wide, device=self.bytes.device).minimum(wide_B1 - 1)
        planes_B3 = torch.arange(3, device=self.bytes.device) * high_B1 * wide_B1 + offsets_B[:, None]
        return self.bytes[planes_B3[:, :, None, None] + rows_BH[:, None, :, None] + columns_BW[:, None, None, :]]

    def _image(self, index: int) -> Tensor:
        start, stop = self.offsets_N[index], self.offsets_N[index + 1]
        return self.bytes[start:stop].view(3, *self.sizes_N2[index])


class StreamedPixels:
    """Images decoded when a batch needs them, by threads, a few batches ahead."""

    where = "stream"

    def __init__(self, images: ImageSet, config: ImageConfig, device: torch.device) -> None:
        self.images, self.config, self.device = images, config, device
        # Crops are planned before images are decoded, so every size must be known: one pass over the files.
        with ThreadPoolExecutor(num_threads()) as pool:
            sizes = list(pool.map(lambda i: read_small(images, i, config.resize).shape[1:], range(len(images))))
        self.sizes_N2 = np.array(sizes, np.int64).reshape(-1, 2)

    def train_crops(self, plan: EpochPlan, first_step: int) -> Iterator[Tensor]:
        steps = [(plan.indices_SB[s], plan.boxes_SB4[s], plan.flips_SB[s]) for s in range(first_step, len(plan))]
        for step, crops_B3SS in enumerate(self._ahead(steps), first_step):
            yield erase(crops_B3SS, plan.erased_SB4[step])

    def test_crops(self, batch: int) -> Iterator[Tensor]:
        boxes_N4 = centre_boxes(self.sizes_N2, self.config)
        rows = np.array_split(np.arange(len(boxes_N4)), range(batch, len(boxes_N4), batch))
        yield from self._ahead([(r, boxes_N4[r], np.zeros(len(r), np.bool_)) for r in rows])

    def _ahead(self, jobs: list[tuple[IntArray, IntArray, np.ndarray]]) -> Iterator[Tensor]:
        waiting: deque[list[Future[Tensor]]] = deque()
        with ThreadPoolExecutor(num_threads()) as pool:
            for number in range(len(jobs) + BATCHES_AHEAD):
                if number < len(jobs):
                    waiting.append([pool.submit(self._crop, *one) for one in zip(*jobs[number], strict=True)])
                if number >= BATCHES_AHEAD:
                    yield torch.stack([done.result() for done in waiting.popleft()]).to(self.device)

    def _crop(self, index: int, box_4: IntArray, flip: bool) -> Tensor:
        image = read_small(self.images, int(index), self.config.resize)
        return crop_each([image], box_4[None], np.array([flip]), self.config.crop)[0]


def open_pixels(images: ImageSet, config: ImageConfig, device: torch.device) -> Pixels:
    """Store the images where they fit: `image.store`, or the first of device, memory, stream that has room for them."""
    where: str = config.store
    if where == "auto":
        where = roomiest(estimate_bytes(images, config), device)
    if where == "stream":
        return StreamedPixels(images, config, device)
    return StoredPixels(images, config, device, where)


def estimate_bytes(images: ImageSet, config: ImageConfig) -> int:
    """Bytes of all images once decoded, from a sample of at most 64."""
    sample = np.linspace(0, len(images) - 1, min(64, len(images))).astype(int)
    return int(np.mean([read_small(images, int(i), config.resize).numel() for i in sample]) * len(images))


def roomiest(num_bytes: int, device: torch.device) -> str:
    """Half of the free memory may hold images; the other half is for the work."""
    if device.type == "cuda" and num_bytes < torch.cuda.mem_get_info(device)[0] / 2:
        return "device"
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return "memory" if num_bytes < free / 2 else "stream"


def num_threads() -> int:
    return min(32, os.cpu_count() or 1)


def read_small(images: ImageSet, index: int, side: int) -> Tensor:
    """An image as bytes (3, H, W), its shorter side reduced to `side` if it is longer."""
    image_3HW = torch.from_numpy(np.array(images.read(index, side))).permute(2, 0, 1)
    short = min(image_3HW.shape[1:])
    if short > side:
        size = [edge * side // short for edge in image_3HW.shape[1:]]
        image_3HW = F.interpolate(image_3HW[None], size=size, mode="bilinear", antialias=True)[0]
    return image_3HW.contiguous()


def crop_each(images: list[Tensor], boxes_B4: IntArray, flips_B: np.ndarray, side: int) -> Tensor:
    """Cut a box from each image and scale it to a square, smoothly (antialiased), in 0..1."""
    crops = []
    for image_3HW, (top, left, high, wide), flip in zip(images, boxes_B4, flips_B, strict=True):
        crop_3HW = image_3HW[:, top : top + high, left : left + wide]
        if (high, wide) != (side, side):
            crop_3HW = F.interpolate(crop_3HW[None], size=(side, side), mode="bilinear", antialias=True)[0]
        crops.append(crop_3HW.flip(-1) if flip else crop_3HW)
    return torch.stack(crops).float() / 255


def crop_together(canvas_B3HW: Tensor, boxes_B4: Tensor, flips_B: Tensor, side: int) -> Tensor:
    """The same crops by two matrix products for the whole batch, as a GPU likes it: rows first, then columns.

    Each output row is a weighted mean of the input rows under a triangle: bilinear interpolation, widened when the crop
    shrinks (antialiasing). A flip reverses the order of the columns.
    """
    top_B, left_B, high_B, wide_B = boxes_B4.float().unbind(1)
    rows_BSH = _triangles(top_B, high_B, side, canvas_B3HW.shape[2])
    columns_BSW = _triangles(left_B, wide_B, side, canvas_B3HW.shape[3])
    columns_BSW = torch.where(flips_B[:, None, None], columns_BSW.flip(1), columns_BSW)
    return rows_BSH[:, None] @ canvas_B3HW.to(rows_BSH.dtype) @ columns_BSW[:, None].transpose(-1, -2) / 255


def _triangles(start_B: Tensor, length_B: Tensor, side: int, extent: int) -> Tensor:
    """Weights (B, S, extent) of input pixels in each output pixel, for the stretch from `start` of `length` pixels."""
    scale_B11 = (length_B / side)[:, None, None]
    outputs_S1 = torch.arange(side, device=start_B.device)[:, None] + 0.5
    inputs_E = torch.arange(extent, device=start_B.device) + 0.5
    offset_BSE = inputs_E - start_B[:, None, None] - outputs_S1 * scale_B11
    weights_BSE = (1 - offset_BSE.abs() / scale_B11.clamp(min=1)).clamp(min=0)
    end_B = start_B + length_B
    inside_BE = (inputs_E > start_B[:, None]) & (inputs_E < end_B[:, None])
    weights_BSE = weights_BSE * inside_BE[:, None]
    return weights_BSE / weights_BSE.sum(-1, keepdim=True)


def erase(crops_B3SS: Tensor, erased_B4: IntArray) -> Tensor:
    """Paint each crop's rectangle in ImageNet's mean colour."""
    if not erased_B4[:, 2].any():
        return crops_B3SS
    top_B, left_B, high_B, wide_B = torch.from_numpy(erased_B4).to(crops_B3SS.device)[:, :, None].unbind(1)
    places_S = torch.arange(crops_B3SS.shape[-1], device=crops_B3SS.device)
    rows_BS = (places_S >= top_B) & (places_S < top_B + high_B)
    columns_BS = (places_S >= left_B) & (places_S < left_B + wide_B)
    colour_311 = torch.tensor(ERASED_COLOUR, device=crops_B3SS.device).view(3, 1, 1)
    return torch.where((rows_BS[:, :, None] & columns_BS[:, None, :])[:, None], colour_311, crops_B3SS)
