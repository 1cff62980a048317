"""How near vectors are to each other: quickly for whole blocks in float32, and exactly in float64 where that decides.

On a CPU rankings are made from quick scores; wherever their rounding could change an order, exact keys settle it, so
that figures do not depend on the block size, the device or the number of threads. A GPU goes by exact keys at once.
A score is the cosine, or minus half the squared Euclidean distance after the largest vector has been scaled to
length 1: higher is nearer, and no score is above 1. This module does not know labels, ranks or figures.
Shapes: N vectors, B rows of a block, G gallery, C candidates, D numbers a vector.
"""

from __future__ import annotations

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
GRID = 2.0**-30
"""Exact scores that round to the same multiple of this are tied; float32 vectors say nothing finer."""
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
    """In float64."""
    metric: str
    scale: float
    """What all are divided by for the Euclidean distance; for the cosine each is divided by its own length."""

    def __len__(self) -> int:
        return len(self.raw_ND)

    @property
    def device(self) -> torch.device:
        return self.raw_ND.device

    def rescaled(self, scale: float) -> Points:
        return replace(self, scale=scale)

    def unit(self, rows: Rows) -> Tensor:
        """Some of the vectors in float64, none longer than 1."""
        lengths = self.lengths_N[rows, None] if self.metric == "cosine" else self.scale
        return self.raw_ND[rows].double().div_(lengths)

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
        return keys(self.scores(rows, gallery, columns_C), columns_C, len(gallery))

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

        Measured and not derived, because it depends on the device, its library and its settings (TF32, bfloat16).
        """
        some = [(part, torch.linspace(0, len(part) - 1, min(len(part), 256)).long()) for part in (self, gallery)]
        raw_ND = torch.cat([part.raw_ND[rows] for part, rows in some])
        lengths_N = torch.cat([part.lengths_N[rows] for part, rows in some])
        sample, everything = Points(raw_ND, lengths_N, self.metric, self.scale), slice(None)
        block = sample.block(everything)
        worst = float((block.scores(block) - sample.scores(everything, sample, everything)).abs().max())
        rounding: float = (1 + raw_ND.shape[1] ** 0.5) * 2.0**-24
        return max(2 * worst, rounding)


def points(vectors_ND: Vectors, metric: str, device: str | torch.device, name: str = "vectors") -> Points:
    """The vectors on the device, checked: a figure made from NaN or from a zero vector would be a lie."""
    if metric not in METRICS:
        raise EvaluationError(f"unknown metric '{metric}'{did_you_mean(metric, METRICS)}")
    raw_ND = checked(vectors_ND, device, name)
    lengths_N = torch.cat([torch.linalg.vector_norm(part.double(), dim=1) for part in torch.split(raw_ND, ROWS)])
    if metric == "cosine" and (lengths_N == 0).any():
        zeros = torch.nonzero(lengths_N == 0).flatten()
        raise EvaluationError(
            f"{name}: {len(zeros)} of {len(lengths_N)} are zero, the first in row {int(zeros[0])}; the cosine needs a "
            f"direction: leave these rows out, or use metric='euclidean'"
        )
    return Points(raw_ND, lengths_N, metric, float(lengths_N.max()) or 1.0)


def checked(vectors_ND: Vectors, device: str | torch.device, name: str = "vectors") -> Tensor:
    """Float32 vectors on the device (Apple's has no float64: the CPU takes its place), finite, and at least one."""
    target = torch.device("cpu" if torch.device(device).type == "mps" else device)
    given = vectors_ND.detach() if isinstance(vectors_ND, Tensor) else torch.from_numpy(_writable(vectors_ND))
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


def keys(scores_BC: Tensor, indices_BC: Tensor, num: int) -> Tensor:
    """Whole numbers that order candidates, given by their indices below `num`: higher score first, then lower index."""
    return scores_BC.div(GRID).round_().long().mul_(num).sub_(indices_BC)


def room(device: torch.device) -> int:
    """Float64 numbers that one step may hold there."""
    return LARGEST if device.type == "cpu" else LARGEST_ON_GPU


def _writable(array: NDArray[np.floating]) -> NDArray[np.floating]:
    """Torch warns of arrays that must not be written to, which is what files and tables hand out."""
    plain = np.ascontiguousarray(array)
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


def slices(length: int, step: int) -> list[slice]:
    """Consecutive slices that cover `length`, each of at most `step` and at least one."""
    return [slice(start, min(start + max(1, step), length)) for start in range(0, length, max(1, step))]
