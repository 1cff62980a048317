"""Awkward vectors, and scores and rankings of them by plain loops in Python, for the tests of everything that ranks."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

KINDS = ("random", "clustered", "duplicated", "tied", "collapsed")


def vectors_of(kind: str, labels_N: NDArray[np.int64], seed: int = 0, dim: int = 8) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    num = len(labels_N)
    vectors = rng.normal(size=(num, dim))
    if kind == "clustered":
        vectors += 2 * rng.normal(size=(labels_N.max() + 1, dim))[labels_N]
    if kind == "duplicated":
        vectors = vectors[rng.integers(0, num // 4, num)]
    if kind == "tied":
        vectors = rng.integers(-1, 2, (num, 3))
        vectors[(vectors == 0).all(1)] = 1
    if kind == "collapsed":
        vectors = 1 + 1e-9 * vectors
    return vectors.astype(np.float32)


def labels_of(num: int, num_classes: int, seed: int = 0) -> NDArray[np.int64]:
    """Classes of unequal size, the last two of one image each."""
    labels = np.random.default_rng(seed).integers(0, num_classes, num)
    labels[-2:] = num_classes + 1, num_classes + 2
    return labels


def slow_score(a: NDArray[np.float32], b: NDArray[np.float32], metric: str) -> float:
    x, y = a.tolist(), b.tolist()
    if metric == "euclidean":
        return -math.dist(x, y)
    product = math.fsum(i * j for i, j in zip(x, y, strict=True))
    return product / math.hypot(*x) / math.hypot(*y)


def slow_ranking(
    query: int, vectors: NDArray[np.float32], gallery: list[int], metric: str
) -> tuple[list[int], list[float]]:
    """The gallery without the query, nearest first, of equally near ones the lower index first; and their scores."""
    scored = [(slow_score(vectors[query], vectors[other], metric), other) for other in gallery if other != query]
    ordered = sorted(scored, key=lambda pair: (-round(pair[0], 9), pair[1]))
    return [other for _, other in ordered], [score for score, _ in ordered]
