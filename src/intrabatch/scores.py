"""How near vectors are to each other: quickly for whole blocks in float32, and exactly in float64 where that decides.

On a CPU rankings are made from quick scores; wherever their rounding could change an order, exact keys settle it, so
that figures do not depend on the block size, the device or the number of threads. A GPU goes by exact keys at once.
A score is the cosine, or minus half the squared Euclidean distance after all vectors have been moved to their common
centre and the longest has been scaled to a length of at most 1: higher is nearer, and no score is above 1. This module
does not know labels, ranks or figures.

How small a difference counts: cosines that differ by 1e-9 are tied. Distances are told apart where their squares differ
by 7.3e-12 times the square of the unit, which is the distance of the farthest vector from the centre, rounded up to a
power of two: so all distances below 1.9e-6 units count as 0, and one vector far off blurs the small distances between
the others.
Shapes: N vectors, B rows of a block, G gallery, C candidates, D numbers a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import EvaluationError, did_you_mean

Vectors = NDArray[np.floating] | Tensor
Rows = Tensor | slice
METRICS = ("cosine", "euclidean")
GRIDS = {"cosine": 2.0**-30, "euclidean": 2.0**-38}
"""Exact scores that round to the same multiple of this are tied. Float32 vectors say nothing finer of cosines; of
distances between near vectors they do, so that grid is as fine as float64 sums (1e-16 apart or so for equal distances)
and whole numbers of 64 bits (2**23 images) allow."""
ROWS = 4096
"""Vectors brought to float64 at once to measure their lengths."""
LARGEST = 1 << 22
"""Float64 numbers that one step may hold on a CPU."""
LARGEST_ON_GPU = 1 << 27


@dataclass(frozen=True)
class Block:
    """Rows made ready for quick products."""

    unit_BD: Tensor
    half_squares_B: Tensor | None

    def scores(self, other: Block) -> Tensor:
        """Quick scores of these rows against the rows of another block."""
        scores = products(self.unit_BD, other.unit_BD)
        if self.half_squares_B is not None and other.half_squares_B is not None:
            scores -= self.half_squares_B[:, None]
            scores -= other.half_squares_B
        return scores


@dataclass(frozen=True, eq=False)
class Points:
    """Checked vectors on a device, which are brought into the unit ball some at a time."""

    raw_ND: Tensor
    """In float32, as they were given."""
    lengths_N: Tensor
    """In float64; for the Euclidean distance from the centre."""
    metric: str
    centre_D: Tensor | None = None
    """What is subtracted from all for the Euclidean distance."""
    scale: float = 1.0
    """What all are divided by for the Euclidean distance; for the cosine each is divided by its own length."""

    def __len__(self) -> int:
        return len(self.raw_ND)

    @property
    def device(self) -> torch.device:
        return self.raw_ND.device

    @property
    def grid(self) -> float:
        return GRIDS[self.metric]

    def unit(self, rows: Rows) -> Tensor:
        """Some of the vectors in float64, none longer than 1."""
        if self.centre_D is None:
            return self.raw_ND[rows].double().div_(self.lengths_N[rows, None])
        return self.raw_ND[rows].double().sub_(self.centre_D).div_(self.scale)

    def block(self, rows: Rows) -> Block:
        unit_BD = self.unit(rows)
        halves_B = unit_BD.square().sum(1).div(2).float() if self.metric == "euclidean" else None
        return Block(ready_for_products(unit_BD.float()), halves_B)

    def scores(self, rows: Rows, gallery: Points, columns: Rows) -> Tensor:
        """Exact scores of some rows with some rows of a gallery."""
        unit_BD, near_GD = self.unit(rows), gallery.unit(columns)
        scores_BG = unit_BD @ near_GD.T
        if self.metric == "euclidean":
            scores_BG -= unit_BD.square().sum(1, keepdim=True) / 2
            scores_BG -= near_GD.square().sum(1) / 2
        return scores_BG

    def keys(self, rows: Rows, gallery: Points, columns_C: Tensor) -> Tensor:
        """Keys of some rows with some rows of a gallery."""
        return gallery.keys_of(self.scores(rows, gallery, columns_C), columns_C)

    def keys_of(self, scores_BC: Tensor, indices_BC: Tensor) -> Tensor:
        """Whole numbers that order these vectors, given by their indices: higher score first, then lower index."""
        return scores_BC.div(self.grid).round_().long().mul_(len(self)).sub_(indices_BC)

    def pair_scores(self, rows: Tensor, gallery: Points, indices_BC: Tensor) -> Tensor:
        """Exact scores of each of these rows with its own candidates in the gallery."""
        scores_BC = torch.empty(indices_BC.shape, dtype=torch.float64, device=self.device)
        for part in slices(len(rows), room(self.device) // (indices_BC.shape[1] * self.raw_ND.shape[1])):
            unit_B1D = self.unit(rows[part])[:, None]
            near_BCD = gallery.unit(indices_BC[part].flatten()).view(*indices_BC[part].shape, -1)
            if self.metric == "euclidean":
                scores_BC[part] = near_BCD.sub_(unit_B1D).square_().sum(-1) / -2
            else:
                scores_BC[part] = near_BCD.mul_(unit_B1D).sum(-1)
        return scores_BC

    def tolerance(self, gallery: Points) -> float:
        """How far quick scores may be from exact ones: twice the worst among some of these vectors.

        Measured and not only derived, because it depends on the device, its library and its settings (TF32, bfloat16).
        """
        some = [(part, part.sample()) for part in (self, gallery)]
        raw_ND = torch.cat([part.raw_ND[rows] for part, rows in some])
        lengths_N = torch.cat([part.lengths_N[rows] for part, rows in some])
        sample, everything = replace(self, raw_ND=raw_ND, lengths_N=lengths_N), slice(None)
        block = sample.block(everything)
        worst = float((block.scores(block) - sample.scores(everything, sample, everything)).abs().max())
        steps = 1 if self.metric == "cosine" else 8  # rounding two vectors, two squares and two differences
        rounding: float = (steps + raw_ND.shape[1] ** 0.5) * 2.0**-24
        return max(2 * worst, rounding)

    def sample(self) -> Tensor:
        """Some rows from all over; where lengths are not made equal, the longest too, whose rounding is the worst."""
        spread = torch.linspace(0, len(self) - 1, min(len(self), 256), device=self.device).long()
        if self.metric == "cosine":
            return spread
        return torch.cat([spread, self.lengths_N.topk(min(len(self), 64)).indices])


def points(vectors_ND: Vectors, metric: str, device: str | torch.device, name: str = "vectors") -> Points:
    """The vectors on the device, checked: a figure made from NaN or from a zero vector would be a lie."""
    if metric not in METRICS:
        raise EvaluationError(f"unknown metric '{metric}'{did_you_mean(metric, METRICS)}")
    found = Points(raw_ND := checked(vectors_ND, device, name), _lengths(raw_ND), metric)
    if metric == "euclidean":
        return together(found)[0]
    if (found.lengths_N == 0).any():
        zeros = torch.nonzero(found.lengths_N == 0).flatten()
        raise EvaluationError(
            f"{name}: {len(zeros)} of {len(found)} are zero, the first in row {int(zeros[0])}; they hold only zeros, "
            f"which have no direction: leave these images out (in code, metric='euclidean' can compare them)"
        )
    return found


def together(*parts: Points) -> list[Points]:
    """The same vectors about one centre and on one scale, which Euclidean distances between them need.

    The centre is rounded to some 1/256 of the longest length and the scale is a power of two, so that they round no
    vector in turn: equal distances of whole numbers, say, stay equal.
    """
    sums = [rows_BD.double().sum(0) for part in parts for rows_BD in torch.split(part.raw_ND, ROWS)]
    centre_D = torch.stack(sums).sum(0) / sum(len(part) for part in parts)
    longest = max(float(_lengths(part.raw_ND, centre_D).max()) for part in parts)
    step = 2.0**-8 * _power_of_two(longest)
    centre_D = (centre_D / step).round() * step
    lengths = [_lengths(part.raw_ND, centre_D) for part in parts]
    scale = _power_of_two(max(float(lengths_N.max()) for lengths_N in lengths))
    return [
        replace(part, lengths_N=lengths_N, centre_D=centre_D, scale=scale)
        for part, lengths_N in zip(parts, lengths, strict=True)
    ]


def _lengths(raw_ND: Tensor, centre_D: Tensor | None = None) -> Tensor:
    parts = (rows_BD.double() for rows_BD in torch.split(raw_ND, ROWS))
    return torch.cat([torch.linalg.vector_norm(p if centre_D is None else p.sub_(centre_D), dim=1) for p in parts])


def _power_of_two(length: float) -> float:
    """The lowest that is not below a length; 1 for none."""
    return float(2.0 ** math.ceil(math.log2(length))) if length else 1.0


def checked(vectors_ND: Vectors, device: str | torch.device, name: str = "vectors") -> Tensor:
    """Float32 vectors on the device (Apple's has no float64: the CPU takes its place), finite, and at least one."""
    target = torch.device("cpu" if torch.device(device).type == "mps" else device)
    given = vectors_ND.detach() if isinstance(vectors_ND, Tensor) else torch.from_numpy(_plain(vectors_ND, name))
    if given.is_complex():
        raise EvaluationError(f"{name} are of type {given.dtype}; expected real numbers")
    if given.ndim != 2 or 0 in given.shape:
        raise EvaluationError(f"{name} have shape {tuple(given.shape)}; expected (N, D), at least one row and column")
    raw_ND = given.to(target, torch.float32).contiguous()
    lowest_N, highest_N = raw_ND.aminmax(dim=1)
    broken = torch.nonzero(~(torch.isfinite(lowest_N) & torch.isfinite(highest_N))).flatten()
    if len(broken):
        raise EvaluationError(
            f"{name}: {len(broken)} of {len(raw_ND)} hold NaN or infinite numbers, the first in row {int(broken[0])}; "
            f"look at the model or the file they come from"
        )
    return raw_ND


def room(device: torch.device) -> int:
    """Float64 numbers that one step may hold there."""
    return LARGEST if device.type == "cpu" else LARGEST_ON_GPU


def _plain(array: NDArray[np.floating], name: str) -> NDArray[np.floating]:
    """As torch takes arrays: real numbers of its own kinds and, or it warns, ones that may be written to."""
    plain = np.ascontiguousarray(array)
    if plain.dtype.kind not in "fiub":
        raise EvaluationError(f"{name} are of type {plain.dtype}; expected real numbers")
    if not plain.dtype.isnative or plain.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # infinite numbers are refused later
            plain = plain.astype(np.float64)
    return plain if plain.flags.writeable else plain.copy()


def ready_for_products(block_BD: Tensor) -> Tensor:
    """On x86 that is not Intel's the block in oneDNN's keeping, whose full float32 product is quicker there than MKL's.

    On Intel's MKL is half as quick again, since oneDNN must copy the product out of its keeping.
    """
    quick = block_BD.device.type == "cpu" and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    if not quick or _is_intel() or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return block_BD
    ready_BD: Tensor = block_BD.to_mkldnn()
    return ready_BD


@cache
def _is_intel() -> bool:
    """As Linux tells it; elsewhere no."""
    told = Path("/proc/cpuinfo")
    return told.is_file() and "GenuineIntel" in told.read_text()


def products(left_BD: Tensor, right_GD: Tensor) -> Tensor:
    """All inner products of two blocks made by `ready_for_products`."""
    products_BG = torch.nn.functional.linear(left_BD, right_GD)
    return products_BG.to_dense() if products_BG.is_mkldnn else products_BG


def in_parallel(rows_BC: Tensor, work: Callable[[NDArray[np.generic]], None]) -> None:
    """Let NumPy work on parts of the rows in their place, one for each thread."""
    workers = torch.get_num_threads()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, np.array_split(rows_BC.numpy(), workers)))


def slices(stop: int, step: int, start: int = 0) -> list[slice]:
    """Consecutive slices that cover all from `start` to `stop`, each of at most `step` and at least one."""
    return [slice(first, min(first + max(1, step), stop)) for first in range(start, stop, max(1, step))]
