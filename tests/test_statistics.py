"""Intervals and comparisons against tables, exhaustive enumeration, and simulated experiments."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from intrabatch import statistics
from intrabatch.errors import EvaluationError
from intrabatch.statistics import compared, over_classes, over_seeds


def simulated(
    rng: np.random.Generator, num_classes: int, gain: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Gains of queries that depend mostly on their class, 5 to 14 queries a class."""
    labels = np.repeat(np.arange(num_classes), rng.integers(5, 15, num_classes))
    return gain + 0.3 * rng.normal(size=num_classes)[labels] + 0.1 * rng.normal(size=len(labels)), labels


def test_interval_over_seeds_is_students() -> None:
    values = [63.6, 62.8, 64.1, 63.0, 63.5]
    found = over_seeds(values)
    half = 2.7764 * np.std(values, ddof=1) / np.sqrt(5)  # the table's 97.5 % point for 4 degrees of freedom
    assert (found.mean, found.low, found.high) == pytest.approx((63.4, 63.4 - half, 63.4 + half), abs=1e-4)
    assert over_seeds([1.0, 1.0]).low == over_seeds([1.0, 1.0]).high == 1.0
    assert over_seeds([0.0, 1.0]).high == pytest.approx(0.5 + 12.7062 * 0.5, abs=1e-3)


def test_bootstrap_equals_a_loop_that_draws_classes() -> None:
    rng = np.random.default_rng(0)
    values, labels = simulated(rng, 30)
    found = over_classes(values, labels, draws=4000)
    means = []
    for _ in range(4000):
        drawn = rng.integers(0, 30, 30)
        means.append(np.concatenate([values[labels == label] for label in drawn]).mean())
    assert found.mean == pytest.approx(values.mean())
    tail = 0.0188  # beyond 2.0452 (the table's point for 29 degrees of freedom) times the root of 30/29, of the normal
    assert (found.low, found.high) == pytest.approx(np.quantile(means, [tail, 1 - tail]), abs=0.015)


@pytest.mark.parametrize("num_classes", [5, 50])
def test_bootstrap_covers_the_truth_as_often_as_it_says(num_classes: int) -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        found = over_classes(*simulated(rng, num_classes, gain=0.7), draws=400)
        covered += found.low <= 0.7 <= found.high
    assert 0.89 <= covered / 200 <= 0.99


def test_p_value_equals_the_share_of_all_swaps() -> None:
    rng = np.random.default_rng(2)
    gains, labels = simulated(rng, 8, gain=0.2)
    sums = np.array([gains[labels == label].sum() for label in range(8)])
    exact = np.mean([abs(np.dot(signs, sums)) >= abs(sums.sum()) - 1e-9 for signs in product((-1, 1), repeat=8)])
    assert compared(np.zeros_like(gains), gains, labels, draws=20_000).p_value == pytest.approx(exact, abs=0.01)


def test_without_a_difference_few_comparisons_claim_one() -> None:
    rng = np.random.default_rng(3)
    claims = 0
    for _ in range(200):
        gains, labels = simulated(rng, 40)
        claims += compared(np.zeros_like(gains), gains, labels, draws=300).verdict != "undecided"
    assert claims / 200 <= 0.09


def test_a_real_difference_is_seen_from_both_sides() -> None:
    gains, labels = simulated(np.random.default_rng(4), 60, gain=0.3)
    first = np.random.default_rng(5).random(len(gains))
    forward, backward = compared(first, first + gains, labels), compared(first + gains, first, labels)
    assert (forward.verdict, backward.verdict) == ("better", "worse")
    assert forward.difference.mean == pytest.approx(gains.mean())
    assert forward.second - forward.first == pytest.approx(gains.mean())
    assert forward.difference.low > 0 > backward.difference.high
    assert forward.p_value < 0.01
    assert (forward.num_queries, forward.num_classes) == (len(labels), 60)


def test_equal_runs_are_undecided() -> None:
    values, labels = simulated(np.random.default_rng(6), 10)
    found = compared(values, values, labels)
    assert (found.verdict, found.p_value, found.difference.low, found.difference.high) == ("undecided", 1.0, 0.0, 0.0)


def test_many_queries_of_few_classes_prove_little() -> None:
    """A thousand queries would make any gain significant if they were taken one by one."""
    labels = np.repeat([0, 1, 2, 3], 250)
    gains = np.array([1.0, 0.6, 0.4, -0.3])[labels]
    assert compared(np.zeros(1000), gains, labels).verdict == "undecided"


def test_seed_and_memory_change_little_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    values, labels = simulated(np.random.default_rng(7), 30)
    first = over_classes(values, labels, seed=1)
    assert over_classes(values, labels, seed=1) == first
    assert over_classes(values, labels, seed=2) != first
    monkeypatch.setattr(statistics, "HELD", 1000)
    in_parts = over_classes(values, labels, seed=1)
    assert (in_parts.low, in_parts.high) == pytest.approx((first.low, first.high), abs=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: over_seeds([1.0]), "an interval over seeds needs two or more values in a row; got shape (1,)"),
        (lambda: over_seeds([1.0, np.nan]), "an interval over seeds needs finite values; got [1.0, nan]"),
        (lambda: over_classes([1.0, 2.0], [0]), "figures of shape (2,) with labels of shape (1,); one label a query"),
        (lambda: over_classes([1.0, np.inf], [0, 1]), "a bootstrap needs finite figures"),
        (lambda: over_classes([1.0, 2.0], [3, 3]), "an interval over classes needs two or more classes; got 1"),
        (lambda: over_classes([1.0, 2.0], [0, 1], draws=0), "at least one draw; got 0 draws"),
        (lambda: compared([1.0], [1.0, 2.0], [0, 1]), "1 queries in the first run and 2 in the second"),
    ],
)
def test_each_mistake_has_its_line(call: object, message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
