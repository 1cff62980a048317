"""k-means on a CPU or a GPU, and the figures that follow from it.

The seeding decides the figure: on the same vectors greedy seeding gives an NMI five points above random seeds when
classes are many and small. So greedy k-means++ (each new centre the best of 2 + log k candidates, drawn in proportion
to the squared distance from the centres so far) is the default, and every figure carries its recipe.
This module does not know models or files; labels only where assignments are compared with them.
Shapes: N vectors, K centres, M proposals, T trials, D numbers a vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import EvaluationError, did_you_mean
from .metrics import agreement, checked_labels
from .scores import ROWS, Points, Vectors, points, products, ready_for_products, slices

RECIPES = {"greedy": "greedy k-means++ seeds", "random": "random images as seeds"}
HELD = 1 << 24
"""Distances held at once."""
RECORDED = 1000
"""Choices still to be made that are worth recording one as a graph."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """One clustering of N vectors."""

    assignments: NDArray[np.int64]
    centres_KD: NDArray[np.float32]
    inertia: float
    """Sum of the squared distances of the vectors from their centres."""
    num_iterations: int
    recipe: str
    """How it was made, in words, to stand beside every figure that follows from it."""


@dataclass(frozen=True, eq=False)
class ClusteringFigures:
    """Agreement of clusters with labels, a value a seed; the spread over seeds is part of the figure."""

    values: dict[str, NDArray[np.float64]]
    recipe: str

    def summary(self) -> dict[str, float]:
        """Means over seeds, and, of two seeds or more, the distance from the lowest to the highest NMI."""
        means = {name: float(values.mean()) for name, values in self.values.items()}
        return means | ({"nmi-spread": float(np.ptp(self.values["nmi"]))} if len(self.values["nmi"]) > 1 else {})


def nmi_figures(
    vectors_ND: Vectors,
    labels_N: Sequence[int] | NDArray[np.integer] | Tensor,
    *,
    recipe: str = "greedy",
    seeds: Sequence[int] = (0,),
    restarts: int = 1,
    metric: str = "cosine",
    device: str | torch.device = "cpu",
) -> ClusteringFigures:
    """NMI (arithmetic mean), adjusted mutual information and adjusted Rand of k-means with k = number of classes.

    For the metric 'cosine' the vectors are brought to length 1 first. Each seed is the best of some restarts.
    """
    if not seeds:
        raise EvaluationError("k-means needs at least one seed; got none")
    labels = checked_labels(labels_N, len(vectors_ND))
    prepared_ND = _units(points(vectors_ND, metric, device)) if metric == "cosine" else vectors_ND
    num_classes = len(np.unique(labels))
    how: dict[str, Any] = {"recipe": recipe, "restarts": restarts, "device": device}
    found = [cluster(prepared_ND, num_classes, seed=seed, **how) for seed in seeds]
    agreements = [agreement(labels, clusters.assignments) for clusters in found]
    values = {name: np.array([figures[name] for figures in agreements]) for name in agreements[0]}
    kind, numbers = "unit vectors" if metric == "cosine" else "vectors as they are", ", ".join(map(str, seeds))
    return ClusteringFigures(values, f"{found[0].recipe}; {kind}; seeds {numbers}; NMI by the arithmetic mean")


def cluster(
    vectors_ND: Vectors,
    k: int,
    *,
    recipe: str = "greedy",
    restarts: int = 1,
    seed: int = 0,
    max_iterations: int = 300,
    device: str | torch.device = "cpu",
) -> Clusters:
    """The best of some restarts of k-means; the same seed gives the same clusters on a CPU."""
    if recipe not in RECIPES:
        raise EvaluationError(f"unknown k-means recipe '{recipe}'{did_you_mean(recipe, RECIPES)}")
    given = points(vectors_ND, "euclidean", device)
    if not isinstance(k, Integral) or not 1 <= k <= len(given):
        whole = "" if isinstance(k, Integral) else "a whole number, "
        raise EvaluationError(f"k = {k} clusters asked of {len(given)} vectors; expected {whole}1 to their number")
    if restarts < 1 or max_iterations < 1:
        raise EvaluationError(f"k-means with {restarts} restarts of {max_iterations} iterations; expected 1 or more")
    data = _Data.of(_units(given))
    seeded = _greedy_seeds if recipe == "greedy" else _random_seeds
    words = f"k-means, k = {k}, {RECIPES[recipe]}, best of {restarts}"
    found = []
    for restart in range(restarts):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + restart)
        centres_KD = data.vectors_ND[seeded(data, k, generator)]
        found.append(_converged(data, centres_KD, max_iterations, words))
    best = min(found, key=lambda clusters: clusters.inertia)
    centres_KD = best.centres_KD.astype(np.float64) * given.scale + given.centre_D.cpu().numpy()
    return replace(best, centres_KD=centres_KD.astype(np.float32), inertia=best.inertia * given.scale**2)


def _units(given: Points) -> Tensor:
    """The vectors in float32 as the metric compares them: about their centre, none longer than 1, so that neither a
    common offset nor their scale is lost in rounding or overflows; or each of length 1."""
    units_ND = torch.empty_like(given.raw_ND)
    for rows in slices(len(given), ROWS):
        units_ND[rows] = given.unit(rows)
    return units_ND


@dataclass(frozen=True, eq=False)
class _Data:
    """The vectors, and what every product with them needs."""

    vectors_ND: Tensor
    squares_N: Tensor
    ready_ND: Tensor

    @classmethod
    def of(cls, vectors_ND: Tensor) -> _Data:
        return cls(vectors_ND, vectors_ND.square().sum(1), ready_for_products(vectors_ND))

    def distances(self, rows_M: Tensor) -> Tensor:
        """Squared distances of some of the vectors (M) from all (N)."""
        distances_MN = products(ready_for_products(self.vectors_ND[rows_M] * -2), self.ready_ND)
        return distances_MN.add_(self.squares_N).add_(self.squares_N[rows_M, None])


def _random_seeds(data: _Data, k: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(len(data.vectors_ND), generator=generator)[:k].to(data.vectors_ND.device)


def _greedy_seeds(data: _Data, k: int, generator: torch.Generator) -> Tensor:
    """Each new centre is the candidate that lowers the sum of squared distances most.

    Candidates are proposed in batches, so that their distances are one matrix product. A batch is drawn from the
    distances as they stand then; a proposal counts later only with probability (distance now / distance then), which
    makes it a draw from the distances as they stand now.
    """
    num_vectors, trials = len(data.vectors_ND), 2 + int(math.log(k))
    first = torch.randint(num_vectors, (1,), generator=generator).to(data.vectors_ND.device)
    seeding, num_chosen = _Seeding.begun(data, first, k, trials), 1
    largest = max(2 * trials, HELD // num_vectors)
    while num_chosen < k and seeding.nearest_N.any():
        size = max(2 * trials, min(largest, 32 * num_chosen))
        seeding.propose(*_proposals(seeding.nearest_N, size, generator))
        if size == largest and k - num_chosen > RECORDED:
            seeding.record()
        seeding.choose(min(size // trials, k - num_chosen))
        num_chosen = int(seeding.num_chosen_1)
    rest = torch.randint(num_vectors, (k - num_chosen,), generator=generator).to(first.device)
    return torch.cat([seeding.chosen_K[:num_chosen], rest])


@dataclass(eq=False)
class _Seeding:
    """Greedy seeding under way. A choice is always the same operations, which write in place and ask the device
    nothing: so a GPU is not waited for, and can replay them as one graph."""

    data: _Data
    turns_T: Tensor
    """1, 2, ... up to the number of trials."""
    nearest_N: Tensor
    """Squared distance of each vector from the nearest centre so far."""
    chosen_K: Tensor
    num_chosen_1: Tensor
    batch: tuple[Tensor, Tensor, Tensor]
    """Proposals (M), their bars (M), and their squared distances from all vectors (M, N)."""
    graph: torch.cuda.CUDAGraph | None = None

    @classmethod
    def begun(cls, data: _Data, first: Tensor, k: int, trials: int) -> _Seeding:
        distances_MN = data.distances(first)
        nearest_N = distances_MN[0].clamp_min(0).index_fill_(0, first, 0)
        turns_T = torch.arange(1, trials + 1, device=first.device)
        return cls(data, turns_T, nearest_N, first.repeat(k), torch.ones_like(first), (first, nearest_N, distances_MN))

    def propose(self, proposals_M: Tensor, bars_M: Tensor) -> None:
        batch = proposals_M, bars_M, self.data.distances(proposals_M)
        if self.graph is None:
            self.batch = batch
        else:
            for recorded, new in zip(self.batch, batch, strict=True):
                recorded.copy_(new)

    def record(self) -> None:
        """On a CUDA device, from now on replay a choice instead of launching its two dozen operations one by one."""
        if self.graph is None and self.nearest_N.device.type == "cuda":
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.choose_one()

    def choose(self, times: int) -> None:
        """So many choices; those for which too few proposals still count change nothing."""
        for _ in range(times):
            if self.graph is not None:
                self.graph.replay()
                continue
            chosen_1 = self.choose_one()
            if chosen_1.device.type == "cpu" and not chosen_1:
                return

    def choose_one(self) -> Tensor:
        """Choose the best of the first proposals that still count, if there are enough, and say whether."""
        proposals_M, bars_M, distances_MN = self.batch
        counted_M = (self.nearest_N.index_select(0, proposals_M) > bars_M).cumsum(0)
        picks_T = torch.searchsorted(counted_M, self.turns_T).clamp_max_(len(bars_M) - 1)
        enough_1 = counted_M[-1:] >= self.turns_T[-1:]
        gains_T = (self.nearest_N - distances_MN.index_select(0, picks_T)).clamp_min_(0).sum(1)
        best_1 = picks_T.gather(0, gains_T.argmax(0, keepdim=True))
        centre_1 = proposals_M.gather(0, best_1)
        nearer_N = distances_MN.index_select(0, best_1)[0].clamp_min_(0).index_fill_(0, centre_1, 0)
        torch.minimum(self.nearest_N, nearer_N.masked_fill_(~enough_1, torch.inf), out=self.nearest_N)
        bars_M.index_fill_(0, picks_T, torch.inf)
        self.chosen_K.index_copy_(0, self.num_chosen_1, centre_1)
        self.num_chosen_1 += enough_1
        return enough_1


def _proposals(weights_N: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws in proportion to the weights, and for each the bar that its weight must still exceed to count."""
    draws_M, chances_M = torch.rand(2, size, generator=generator, dtype=torch.float64).to(weights_N.device)
    sums_N = weights_N.double().cumsum(0)
    proposals_M = torch.searchsorted(sums_N, draws_M * sums_N[-1]).clamp_max_(len(weights_N) - 1)
    return proposals_M, (chances_M * weights_N[proposals_M]).float()


def _converged(data: _Data, centres_KD: Tensor, max_iterations: int, recipe: str) -> Clusters:
    """Lloyd's iterations until nothing moves any more."""
    tolerance = 1e-4 * float(data.vectors_ND.var(0, correction=0).mean())
    assignments_N, distances_N = _assigned(data, centres_KD)
    num_iterations, at_rest = 0, False
    while num_iterations < max_iterations and not at_rest:
        moved_KD = _means(data, centres_KD, assignments_N, distances_N)
        shift = float((moved_KD - centres_KD).square().sum())
        centres_KD, before_N = moved_KD, assignments_N
        assignments_N, distances_N = _assigned(data, centres_KD)
        num_iterations, at_rest = num_iterations + 1, shift <= tolerance or torch.equal(before_N, assignments_N)
    inertia = float(distances_N.double().sum())
    return Clusters(assignments_N.cpu().numpy(), centres_KD.cpu().numpy(), inertia, num_iterations, recipe)


def _assigned(data: _Data, centres_KD: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of each vector, and the squared distance from it."""
    ready_KD, halves_K = ready_for_products(centres_KD), centres_KD.square().sum(1) / 2
    best = []
    for rows in slices(len(data.vectors_ND), HELD // len(centres_KD)):
        scores_BK = products(ready_for_products(data.vectors_ND[rows]), ready_KD).sub_(halves_K)
        best.append(scores_BK.max(1))
    scores_N, assignments_N = (torch.cat(parts) for parts in zip(*best, strict=True))
    return assignments_N, (data.squares_N - 2 * scores_N).clamp_min_(0)


def _means(data: _Data, centres_KD: Tensor, assignments_N: Tensor, distances_N: Tensor) -> Tensor:
    """The mean of each cluster; an empty cluster starts again from one of the vectors farthest from their centres."""
    counts_K = torch.bincount(assignments_N, minlength=len(centres_KD))
    empty = torch.nonzero(counts_K == 0).flatten()
    if len(empty):
        assignments_N = assignments_N.clone()
        assignments_N[distances_N.topk(len(empty)).indices] = empty
        counts_K = torch.bincount(assignments_N, minlength=len(centres_KD))
    exactly = torch.float32 if centres_KD.device.type == "cpu" else torch.float64  # GPUs add in any order
    sums_KD = torch.zeros_like(centres_KD, dtype=exactly).index_add_(0, assignments_N, data.vectors_ND.to(exactly))
    means_KD = (sums_KD / counts_K.clamp_min(1)[:, None]).float()
    return torch.where(counts_K[:, None] > 0, means_KD, centres_KD)
