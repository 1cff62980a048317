"""How near vectors are to each other: quickly for whole blocks in float32, and exactly in float64 where that decides.

Rankings are made from quick scores; wherever their rounding could change an order, exact keys settle it, so that
figures do not depend on the block size, the device or the number of threads.
A score is the cosine, or minus half the squared Euclidean distance after the largest vector has been scaled to
length 1: higher is nearer, and no score is above 1. This module does not know labels, ranks or figures.
Shapes: N vectors, Q queries, G gallery, B rows of a block, C candidates, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

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
LARGEST = 1 << 24
"""Numbers held at once by a step in float64."""


@dataclass(frozen=True)
class Block:
    """Rows made ready for quick products."""

    unit_BD: Tensor
    half_squares_B: Tensor | None

    def scores(self, other: Block) -> Tensor:
        """Quick scores of these rows against the rows of another block."""
        scores = torch.nn.functional.linear(self.unit_BD, other.unit_BD)
        scores = scores.to_dense() if scores.is_mkldnn else scores
        if self.half_squares_B is not None and other.half_squares_B is not None:
            scores -= self.half_squares_B[:, None]
            scores -= other.half_squares_B
        return scores


@dataclass(frozen=True, eq=False)
class Points:
    """N checked vectors on a device, each with the factor that brings it into the unit ball."""

    raw_ND: Tensor
    factors_N: Tensor
    metric: str

    def __len__(self) -> int:
        return len(self.raw_ND)

    @property
    def device(self) -> torch.device:
        return self.raw_ND.device

    def unit(self, rows: Rows) -> Tensor:
        """These rows in float64: of length 1 for the cosine, within length 1 for the distance."""
        return self.raw_ND[rows].double() * self.factors_N[: len(self)][rows, None]

    def block(self, rows: Rows) -> Block:
        unit_BD = self.unit(rows)
        halves_B = unit_BD.square().sum(1).div(2).float() if self.metric == "euclidean" else None
        return Block(ready_for_products(unit_BD.float()), halves_B)

    def scores(self, rows: Rows, columns: Rows, others: Points | None = None) -> Tensor:
        """Exact scores of these rows with rows of the same or of other points."""
        unit_BD, near_GD = self.unit(rows), (others or self).unit(columns)
        scores_BG = unit_BD @ near_GD.T
        if self.metric == "euclidean":
            scores_BG -= unit_BD.square().sum(1, keepdim=True) / 2
            scores_BG -= near_GD.square().sum(1) / 2
        return scores_BG

    def keys(self, rows: Rows, columns: Tensor, others: Points | None = None) -> Tensor:
        """Whole numbers that order the columns for each row: the higher score first, then the earlier column."""
        parts = [columns[part] for part in slices(len(columns), 8192)]
        keys = [self.scores(rows, part, others).div_(GRID).round_().long() for part in parts]
        return torch.cat(keys, 1).mul_(len(columns)).sub_(torch.arange(len(columns), device=self.device))

    def pair_scores(self, rows: Tensor, gallery: Points, indices_BC: Tensor) -> Tensor:
        """Exact scores of each of these rows with its own candidates in the gallery."""
        scores_BC = torch.empty(indices_BC.shape, dtype=torch.float64, device=self.device)
        for part in slices(len(rows), LARGEST // (indices_BC.shape[1] * self.raw_ND.shape[1])):
            unit_B1D = self.unit(rows[part])[:, None]
            near_BCD = gallery.unit(indices_BC[part].flatten()).view(*indices_BC[part].shape, -1)
            if self.metric == "euclidean":
                scores_BC[part] = (near_BCD - unit_B1D).square_().sum(-1) / -2
            else:
                scores_BC[part] = near_BCD.mul_(unit_B1D).sum(-1)
        return scores_BC

    def tolerance(self, gallery: Points) -> float:
        """How far quick scores may be from exact ones: four times the worst seen among up to 2 x 256 of these vectors.

        Measured and not derived, because it depends on the device, its library and its settings (TF32, bfloat16).
        """
        samples = [p.unit(torch.linspace(0, len(p) - 1, min(len(p), 256)).long()) for p in (self, gallery)]
        sample = Points(torch.cat(samples).float(), torch.ones_like(self.factors_N[:1]).expand(512), self.metric)
        everything = slice(0, len(sample))
        block = sample.block(everything)
        worst = (block.scores(block) - sample.scores(everything, everything)).abs().max()
        floor = (1 + self.raw_ND.shape[1] ** 0.5) * 2.0**-24
        return float(4 * worst.clamp(min=floor))


def points(vectors_ND: Vectors, metric: str, device: str | torch.device, name: str = "vectors") -> Points:
    """The vectors on the device, checked: a figure made from NaN or from a zero vector would be a lie."""
    if metric not in METRICS:
        raise EvaluationError(f"unknown metric '{metric}'{did_you_mean(metric, METRICS)}")
    raw_ND = checked(vectors_ND, device, name)
    norms_N = raw_ND.double().square().sum(1).sqrt()
    if metric == "euclidean":
        return Points(raw_ND, 1 / norms_N.max().clamp(min=1e-300).expand(len(norms_N)), metric)
    if (norms_N == 0).any():
        zeros = torch.nonzero(norms_N == 0).flatten()
        raise EvaluationError(
            f"{name}: {len(zeros)} of {len(norms_N)} are zero, the first in row {int(zeros[0])}; the cosine needs a "
            f"direction: leave these rows out, or use metric='euclidean'"
        )
    return Points(raw_ND, 1 / norms_N, metric)


def checked(vectors_ND: Vectors, device: str | torch.device, name: str = "vectors") -> Tensor:
    """Float32 vectors on the device (Apple's has no float64, so the CPU takes its place); finite, and at least one."""
    target = torch.device("cpu" if torch.device(device).type == "mps" else device)
    given = vectors_ND.detach() if isinstance(vectors_ND, Tensor) else torch.as_tensor(np.asarray(vectors_ND))
    if given.ndim != 2 or 0 in given.shape:
        raise EvaluationError(f"{name} have shape {tuple(given.shape)}; expected (N, D), at least one row and column")
    raw_ND = given.to(target, torch.float32).contiguous()
    broken = torch.nonzero(~torch.isfinite(raw_ND).all(1)).flatten()
    if len(broken):
        raise EvaluationError(
            f"{name}: {len(broken)} of {len(raw_ND)} hold NaN or infinite numbers, the first in row {int(broken[0])}; "
            f"look at the model or the file they come from"
        )
    return raw_ND


def ready_for_products(block_BD: Tensor) -> Tensor:
    """On x86 the block in oneDNN's keeping: its float32 product is full precision, and twice as quick on AMD as MKL."""
    quick = block_BD.device.type == "cpu" and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return block_BD.to_mkldnn() if quick and torch.backends.mkldnn.is_available() else block_BD  # type: ignore[no-untyped-call]


def slices(length: int, step: int) -> list[slice]:
    """Consecutive slices that cover `length`, each of at most `step` and at least one."""
    return [slice(start, min(start + max(1, step), length)) for start in range(0, length, max(1, step))]
