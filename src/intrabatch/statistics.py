"""How sure a figure is: intervals over seeds and over classes, and whether one run is better than another.

Images of one class succeed and fail together, so whole classes are drawn and swapped, never single queries.
Here too is what random clusters would share with classes, by which mutual information is adjusted.
This module knows only arrays: one number a seed, one number a query with the query's label, sizes of groups.
Shapes: Q queries, C classes, K clusters, R random draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from .errors import EvaluationError

Floats = NDArray[np.float64]
HELD = 1 << 20
"""Random numbers held at once."""


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Comparison:
    """A figure of two runs on the same queries."""

    first: float
    second: float
    difference: Interval
    """Second minus first, with the interval over classes."""
    p_value: float
    """How often a difference as large comes about when the two runs are swapped at random, class by class."""
    num_queries: int
    num_classes: int

    @property
    def verdict(self) -> str:
        """'better', 'worse' or 'undecided': the second run beside the first."""
        if not self.difference.excludes_zero or self.p_value > 0.05:
            return "undecided"
        return "better" if self.difference.mean > 0 else "worse"


def over_seeds(values: Sequence[float] | Floats) -> Interval:
    """Mean of runs that differ only in their seed, and Student's interval for it."""
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim != 1 or len(runs) < 2:
        raise EvaluationError(f"an interval over seeds needs two or more values in a row; got shape {runs.shape}")
    if not np.isfinite(runs).all():
        raise EvaluationError(f"an interval over seeds needs finite values; got {runs.tolist()}")
    half = float(_students_point(len(runs) - 1) * runs.std(ddof=1) / np.sqrt(len(runs)))
    mean = float(runs.mean())
    return Interval(mean, mean - half, mean + half)


def over_classes(values_Q: ArrayLike, labels_Q: ArrayLike, *, seed: int = 0, draws: int = 2000) -> Interval:
    """Mean of a figure over queries, and its bootstrap interval: what other classes of the kind would have given.

    Draws from few classes vary too little, so their tails are cut off as much farther out as Student's points lie
    beyond the normal ones (Hesterberg's expanded percentiles). In simulations the interval held the truth in 93 % of
    cases with 5 to 20 classes (84 to 90 % without), and in 95 % with 100. Of fewer than 5 do not believe it (77 % with
    3): it cannot pass the best and the worst class.
    """
    sums_C, sizes_C = _by_class(values_Q, labels_Q, draws)

    def means_of_drawn_classes(rng: Generator, num: int) -> Floats:
        drawn_RC = rng.integers(0, len(sums_C), (num, len(sums_C)), dtype=np.int32)
        return np.asarray(sums_C[drawn_RC].sum(1) / sizes_C[drawn_RC].sum(1))

    freedom = len(sums_C) - 1
    farther = _students_point(freedom) * math.sqrt(len(sums_C) / freedom)
    tail = 1 - NormalDist().cdf(farther)
    low, high = np.quantile(_drawn(means_of_drawn_classes, len(sums_C), seed, draws), [tail, 1 - tail])
    return Interval(float(sums_C.sum() / sizes_C.sum()), float(low), float(high))


def compared(
    first_Q: ArrayLike, second_Q: ArrayLike, labels_Q: ArrayLike, *, seed: int = 0, draws: int = 2000
) -> Comparison:
    """Whether the second run is better than the first, from a figure of each on the same queries in the same order."""
    first, second = np.asarray(first_Q, dtype=np.float64), np.asarray(second_Q, dtype=np.float64)
    if first.shape != second.shape:
        raise EvaluationError(
            f"{first.shape[0]} queries in the first run and {second.shape[0]} in the second; "
            f"a comparison needs the same queries in the same order"
        )
    gains_C, sizes_C = _by_class(second - first, labels_Q, draws)

    def sums_after_swaps(rng: Generator, num: int) -> Floats:
        return np.asarray((rng.integers(0, 2, (num, len(gains_C))) * 2 - 1) @ gains_C)

    swapped = np.abs(_drawn(sums_after_swaps, len(gains_C), seed, draws))
    as_large = int((swapped >= abs(gains_C.sum()) * (1 - 1e-12)).sum())
    difference = over_classes(second - first, labels_Q, seed=seed, draws=draws)
    p_value = (1 + as_large) / (1 + draws)
    return Comparison(float(first.mean()), float(second.mean()), difference, p_value, len(first), len(sizes_C))


def _students_point(freedom: int) -> float:
    """What Student's distribution exceeds in 2.5 % of cases."""
    from scipy.special import stdtrit  # 12 MiB, of which those who come for the chance alone need nothing

    return float(stdtrit(freedom, 0.975))


def _by_class(values_Q: ArrayLike, labels_Q: ArrayLike, draws: int) -> tuple[Floats, Floats]:
    """Sum and number of the queries' values in each class."""
    values, labels = np.asarray(values_Q, dtype=np.float64), np.asarray(labels_Q)
    if values.ndim != 1 or values.shape != labels.shape:
        raise EvaluationError(f"figures of shape {values.shape} with labels of shape {labels.shape}; one label a query")
    if draws < 1 or not np.isfinite(values).all():
        raise EvaluationError(f"a bootstrap needs finite figures and at least one draw; got {draws} draws")
    members = np.unique(labels, return_inverse=True)[1]
    sizes_C = np.bincount(members).astype(np.float64)
    if len(sizes_C) < 2:
        raise EvaluationError(f"an interval over classes needs two or more classes; got {len(sizes_C)}")
    return np.bincount(members, values).astype(np.float64), sizes_C


def _drawn(draw: Callable[[Generator, int], Floats], num_classes: int, seed: int, draws: int) -> Floats:
    """All draws, a part at a time, so that many classes need little memory."""
    rng = np.random.default_rng(seed)
    step = max(1, HELD // num_classes)
    return np.concatenate([draw(rng, min(step, draws - start)) for start in range(0, draws, step)])


def information_by_chance(sizes_C: NDArray[np.int64], sizes_K: NDArray[np.int64]) -> float:
    """The mutual information that random clusters of the same sizes share with the classes on average.

    Equal sizes give equal terms, so each pair of different sizes is worked out once.
    """
    num = int(sizes_C.sum())
    log_factorial = np.array([math.lgamma(number) for number in range(1, num + 2)])
    unique_K, times_K = np.unique(sizes_K, return_counts=True)
    total = 0.0
    for size, times in zip(*np.unique(sizes_C, return_counts=True), strict=True):
        for other, other_times in zip(unique_K, times_K, strict=True):
            cell = np.arange(max(1, size + other - num), min(size, other) + 1)
            fixed = log_factorial[[size, other, num - size, num - other]].sum() - log_factorial[num]
            parts = np.stack([cell, size - cell, other - cell, num - size - other + cell])
            chances = np.exp(fixed - log_factorial[parts].sum(0))
            total += times * other_times * float((cell / num * np.log(num * cell / (size * other)) * chances).sum())
    return float(total)
