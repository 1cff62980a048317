"""Decoded images and the crops cut from them: kept on the GPU, kept in memory, or decoded for every batch.

Images are decoded once, their shorter side reduced to `image.resize`, and kept as bytes. On a GPU the crops of a whole
batch are made together there, from images that lie there or from the boxes of a batch that threads send ahead; on a CPU
each image is cut by itself.
Shapes: N images, S steps, B images of a batch, H x W pixels of a stored image, C pixels a side of a crop.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import ImageConfig
from .batches import EpochPlan, IntArray, centre_boxes
from .image_set import ImageSet

BATCHES_AHEAD = 4
ERASED_COLOUR = (0.485, 0.456, 0.406)  # ImageNet's mean
TEST_BATCH = {"cpu": 128, "cuda": 512}
T = TypeVar("T")


class Pixels(Protocol):
    """Where crops come from."""

    sizes_N2: IntArray
    where: str

    def train_crops(self, plan: EpochPlan, first_step: int) -> Iterator[Tensor]:
        """For each step from `first_step` on, the crops (B, 3, C, C) in 0..1, on the device."""
        ...

    def test_crops(self, batch: int | None = None) -> Iterator[Tensor]:
        """The centre crops of all images in order, `batch` at a time; by default as many as suit the device."""
        ...


def open_pixels(images: ImageSet, config: ImageConfig, device: torch.device) -> Pixels:
    """Store the images where they fit: `image.store`, or the first of device, memory, stream that has room for them."""
    where: str = config.store
    if where == "auto":
        where = roomiest(estimate_bytes(images, config.resize), device)
    if where == "stream":
        return HostPixels.streamed(images, config, device)
    stored = StoredImages.decoded(images, config)
    if where == "device" and device.type == "cuda":
        return DevicePixels(stored, config, device)
    return HostPixels("memory", stored.sizes_N2, stored.image, config, device)


@dataclass(frozen=True, eq=False)
class StoredImages:
    """All images in one run of bytes, one after the other."""

    bytes: Tensor
    offsets_N: IntArray
    sizes_N2: IntArray

    @staticmethod
    def decoded(images: ImageSet, config: ImageConfig) -> StoredImages:
        with ThreadPoolExecutor(num_threads()) as pool:
            decoded = list(pool.map(lambda i: read_small(images, i, config.resize), range(len(images))))
        sizes_N2 = np.array([image.shape[1:] for image in decoded], np.int64).reshape(-1, 2)
        offsets_N = np.concatenate([[0], np.cumsum(3 * sizes_N2.prod(1))])
        return StoredImages(torch.cat([image.flatten() for image in decoded]), offsets_N, sizes_N2)

    def image(self, index: int) -> Tensor:
        start, stop = self.offsets_N[index], self.offsets_N[index + 1]
        return self.bytes[start:stop].view(3, *self.sizes_N2[index])


class DevicePixels:
    """All images on the GPU; a batch is gathered, cut, flipped, coloured and erased there without the CPU's help."""

    where = "device"

    def __init__(self, stored: StoredImages, config: ImageConfig, device: torch.device) -> None:
        self.config, self.device, self.sizes_N2 = config, device, stored.sizes_N2
        self.bytes = stored.bytes.to(device)
        self.offsets = torch.from_numpy(stored.offsets_N[:-1]).to(device)
        self.sizes = torch.from_numpy(stored.sizes_N2).to(device)
        self.extent = int(stored.sizes_N2[:, 0].max()), int(stored.sizes_N2[:, 1].max())
        self.seen = self.as_seen

    def compile(self) -> None:
        """Gather and cut in fused kernels: a third of the time."""
        self.seen = torch.compile(self.as_seen, dynamic=False)

    def train_crops(self, plan: EpochPlan, first_step: int) -> Iterator[Tensor]:
        sent = Views.of(plan).to(self.device)  # the whole epoch at once, so that no step waits for a copy
        for step in range(first_step, len(plan)):
            yield self.seen(sent.at(step))

    def test_crops(self, batch: int | None = None) -> Iterator[Tensor]:
        views = Views.centred(self.sizes_N2, self.config).to(self.device)
        for rows in batches_of(len(self.sizes_N2), batch or TEST_BATCH[self.device.type]):
            yield self.cut(views.at(rows))

    def as_seen(self, views: Views) -> Tensor:
        """The crops of a batch as training sees them."""
        return finished(self.cut(views), views, self.config)

    def cut(self, views: Views) -> Tensor:
        return crop_together(self.canvas(views.indices), views.boxes, views.flips, self.config.crop)

    def canvas(self, indices_B: Tensor) -> Tensor:
        """Images side by side on canvases of one size, gathered at once; what lies beyond an image is never read."""
        high, wide = self.extent
        high_B1, wide_B1 = self.sizes[indices_B, :1], self.sizes[indices_B, 1:]
        rows_BH = torch.arange(high, device=self.device).minimum(high_B1 - 1) * wide_B1
        columns_BW = torch.arange(wide, device=self.device).minimum(wide_B1 - 1)
        planes_B3 = torch.arange(3, device=self.device) * high_B1 * wide_B1 + self.offsets[indices_B][:, None]
        return self.bytes[planes_B3[:, :, None, None] + rows_BH[:, None, :, None] + columns_BW[:, None, None, :]]


class HostPixels:
    """Images in memory, or decoded when a batch needs them, and cut by the CPU.

    For a GPU, and where images must be decoded, threads work some batches ahead.
    """

    def __init__(
        self,
        where: str,
        sizes_N2: IntArray,
        image: Callable[[int], Tensor],
        config: ImageConfig,
        device: torch.device,
    ) -> None:
        self.where, self.sizes_N2, self.image, self.config, self.device = where, sizes_N2, image, config, device

    @staticmethod
    def streamed(images: ImageSet, config: ImageConfig, device: torch.device) -> HostPixels:
        def image(index: int) -> Tensor:
            return read_small(images, index, config.resize)

        # Crops are planned before images are decoded, so every size must be known: one pass over the files.
        with ThreadPoolExecutor(num_threads()) as pool:
            sizes = list(pool.map(lambda index: image(index).shape[1:], range(len(images))))
        return HostPixels("stream", np.array(sizes, np.int64).reshape(-1, 2), image, config, device)

    def train_crops(self, plan: EpochPlan, first_step: int) -> Iterator[Tensor]:
        views = Views.of(plan)
        steps = [views.at(step) for step in range(first_step, len(plan))]
        for crops_B3CC, view in zip(self._cut(steps), steps, strict=True):
            yield finished(crops_B3CC, view.to(self.device), self.config)

    def test_crops(self, batch: int | None = None) -> Iterator[Tensor]:
        views = Views.centred(self.sizes_N2, self.config)
        batches = batches_of(len(self.sizes_N2), batch or TEST_BATCH[self.device.type])
        yield from self._cut([views.at(rows) for rows in batches])

    def _cut(self, batches: list[Views]) -> Iterator[Tensor]:
        """The crops of each batch; with a GPU its boxes are sent there uncut."""
        if self.where == "memory" and self.device.type == "cpu":
            yield from map(self._cut_here, batches)
        elif self.device.type == "cpu":
            yield from ahead(self._cut_here, batches)
        else:
            for (canvas_B3HW, boxes_B4), views in zip(ahead(self._sent, batches), batches, strict=True):
                flips_B = views.flips.to(self.device, non_blocking=True)
                there_B3HW, boxes_B4 = (part.to(self.device, non_blocking=True) for part in (canvas_B3HW, boxes_B4))
                yield crop_together(there_B3HW, boxes_B4, flips_B, self.config.crop)

    def _cut_here(self, views: Views) -> Tensor:
        images = [self.image(int(index)) for index in views.indices]
        return crop_each(images, views.boxes.numpy(), views.flips.numpy(), self.config.crop)

    def _sent(self, views: Views) -> tuple[Tensor, Tensor]:
        """The boxes of a batch in the corners of one canvas, and where they lie on it."""
        canvas_B3HW, boxes_B4 = boxes_on_canvas([self.image(int(index)) for index in views.indices], views.boxes)
        return canvas_B3HW.pin_memory(), boxes_B4.pin_memory()


@dataclass(frozen=True, eq=False)
class Views:
    """Which part of which images is seen, and how; for a batch, or with one more dimension for an epoch."""

    indices: Tensor
    boxes: Tensor
    flips: Tensor
    erased: Tensor
    colours: Tensor

    @staticmethod
    def of(plan: EpochPlan) -> Views:
        arrays = plan.indices_SB, plan.boxes_SB4, plan.flips_SB, plan.erased_SB4, plan.colours_SB3.astype(np.float32)
        return Views(*map(torch.from_numpy, arrays))

    @staticmethod
    def centred(sizes_N2: IntArray, config: ImageConfig) -> Views:
        num = len(sizes_N2)
        boxes_N4, nothing_N4 = torch.from_numpy(centre_boxes(sizes_N2, config)), torch.zeros(num, 4, dtype=torch.int64)
        return Views(torch.arange(num), boxes_N4, torch.zeros(num, dtype=torch.bool), nothing_N4, torch.ones(num, 3))

    def at(self, place: int | slice) -> Views:
        return Views(*(part[place] for part in self._parts()))

    def to(self, device: torch.device) -> Views:
        return Views(*(part.to(device) for part in self._parts()))

    def _parts(self) -> tuple[Tensor, ...]:
        return self.indices, self.boxes, self.flips, self.erased, self.colours


def batches_of(num: int, batch: int) -> list[slice]:
    return [slice(start, start + batch) for start in range(0, num, batch)]


def ahead(make: Callable[[Views], T], batches: list[Views]) -> Iterator[T]:
    """What `make` gives for each batch, in order, made by threads some batches before it is asked for."""
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(num_threads()) as pool:
        for batch in batches:
            waiting.append(pool.submit(make, batch))
            if len(waiting) > max(BATCHES_AHEAD, num_threads()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def finished(crops_B3CC: Tensor, views: Views, config: ImageConfig) -> Tensor:
    """Crops with their colours changed and their rectangles erased, where the settings ask for it."""
    if config.colour:
        crops_B3CC = recolour(crops_B3CC, views.colours)
    if config.erase:
        crops_B3CC = erase(crops_B3CC, views.erased)
    return crops_B3CC


def estimate_bytes(images: ImageSet, side: int) -> int:
    """Bytes of all images once decoded, from a sample of at most 64."""
    sample = np.linspace(0, len(images) - 1, min(64, len(images))).astype(int)
    return int(np.mean([read_small(images, int(i), side).numel() for i in sample]) * len(images))


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


def boxes_on_canvas(images: list[Tensor], boxes_B4: Tensor) -> tuple[Tensor, Tensor]:
    """The boxes cut from their images, each in the corner of a canvas for the largest, and where they are now."""
    high, wide = (int(edge) for edge in boxes_B4[:, 2:].amax(0))
    canvas_B3HW = torch.zeros(len(images), 3, high, wide, dtype=torch.uint8)
    for row, (image_3HW, (top, left, h, w)) in enumerate(zip(images, boxes_B4.tolist(), strict=True)):
        canvas_B3HW[row, :, :h, :w] = image_3HW[:, top : top + h, left : left + w]
    return canvas_B3HW, torch.cat([torch.zeros_like(boxes_B4[:, :2]), boxes_B4[:, 2:]], 1)


def crop_together(canvas_B3HW: Tensor, boxes_B4: Tensor, flips_B: Tensor, side: int) -> Tensor:
    """The same crops by two matrix products for the whole batch, as a GPU likes it: rows first, then columns.

    Each output row is a weighted mean of the input rows under a triangle: bilinear interpolation, widened when the crop
    shrinks (antialiasing). A flip reverses the order of the columns. Half precision on a GPU holds bytes exactly and
    weights to a 4,000th: less is lost than by rounding to bytes.
    """
    quick = torch.float16 if canvas_B3HW.is_cuda else torch.float32
    top_B, left_B, high_B, wide_B = boxes_B4.float().unbind(1)
    rows_BCH = _triangles(top_B, high_B, side, canvas_B3HW.shape[2]).to(quick)
    columns_BCW = _triangles(left_B, wide_B, side, canvas_B3HW.shape[3])
    columns_BCW = torch.where(flips_B[:, None, None], columns_BCW.flip(1), columns_BCW).to(quick)
    crops_B3CC = rows_BCH[:, None] @ canvas_B3HW.to(quick) @ columns_BCW[:, None].transpose(-1, -2)
    return crops_B3CC.float() / 255


def _triangles(start_B: Tensor, length_B: Tensor, side: int, extent: int) -> Tensor:
    """Weights (B, C, extent) of input pixels in each output pixel, for the stretch from `start` of `length` pixels."""
    scale_B11 = (length_B / side)[:, None, None]
    outputs_C1 = torch.arange(side, device=start_B.device)[:, None] + 0.5
    inputs_E = torch.arange(extent, device=start_B.device) + 0.5
    offset_BCE = inputs_E - start_B[:, None, None] - outputs_C1 * scale_B11
    weights_BCE = (1 - offset_BCE.abs() / scale_B11.clamp(min=1)).clamp(min=0)
    end_B = start_B + length_B
    inside_BE = (inputs_E > start_B[:, None]) & (inputs_E < end_B[:, None])
    weights_BCE = weights_BCE * inside_BE[:, None]
    return weights_BCE / weights_BCE.sum(-1, keepdim=True)


def recolour(crops_B3CC: Tensor, factors_B3: Tensor) -> Tensor:
    """Brightness, contrast and saturation times the factors of each crop, in this order, as torchvision has them."""
    brightness_B111, contrast_B111, saturation_B111 = factors_B3[..., None, None, None].unbind(1)
    crops_B3CC = (crops_B3CC * brightness_B111).clamp(0, 1)
    mean_B111 = grey(crops_B3CC).mean((-1, -2), keepdim=True)
    crops_B3CC = torch.lerp(mean_B111, crops_B3CC, contrast_B111).clamp(0, 1)
    return torch.lerp(grey(crops_B3CC), crops_B3CC, saturation_B111).clamp(0, 1)


def grey(crops_B3CC: Tensor) -> Tensor:
    """Luma (B, 1, C, C) after ITU-R 601."""
    red_B1CC, green_B1CC, blue_B1CC = crops_B3CC.split(1, dim=1)  # type: ignore[no-untyped-call]
    luma_B1CC: Tensor = 0.2989 * red_B1CC + 0.587 * green_B1CC + 0.114 * blue_B1CC
    return luma_B1CC


def erase(crops_B3CC: Tensor, erased_B4: Tensor) -> Tensor:
    """Paint each crop's rectangle in ImageNet's mean colour."""
    top_B, left_B, high_B, wide_B = erased_B4[:, :, None].unbind(1)
    places_C = torch.arange(crops_B3CC.shape[-1], device=crops_B3CC.device)
    rows_BC = (places_C >= top_B) & (places_C < top_B + high_B)
    columns_BC = (places_C >= left_B) & (places_C < left_B + wide_B)
    inside_BCC = rows_BC[:, :, None] & columns_BC[:, None, :]
    planes = [torch.where(inside_BCC, colour, crops_B3CC[:, i]) for i, colour in enumerate(ERASED_COLOUR)]
    return torch.stack(planes, dim=1)
