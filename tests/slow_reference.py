"""Awkward vectors, and scores and rankings of them by plain loops in Python, for the tests of everything that ranks."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

KINDS = ("random", "clustered", "duplicated", "tied", "collapsed", "offset", "outlier")
GRIDS = {"cosine": 2.0**-30, "euclidean": 2.0**-38}


def vectors_of(kind: str, labels_N: NDArray[np.int64], seed: int = 0, dim: int = 8) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    num = len(labels_N)
    vectors = rng.normal(size=(num, dim))
    if kind == "clustered":
        vectors += 2 * rng.normal(size=(labels_N.max() + 1, dim))[labels_N]
    if kind == "duplicated":
        vectors = vectors[rng.integers(0, max(1, num // 4), num)]
    if kind == "tied":
        vectors = rng.integers(-1, 2, (num, 3))
        vectors[(vectors == 0).all(1)] = 1
    if kind == "collapsed":
        vectors = 1 + 1e-9 * vectors
    if kind == "offset":
        vectors += 1000
    if kind == "outlier":
        vectors[num // 2] *= 1000
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


def ties_of(scores: NDArray[np.float64], vectors: NDArray[np.float32], metric: str) -> NDArray[np.float64]:
    """Scores (or minus distances) as they are documented to be tied: half of squared distances in units of the farthest
    vector from the centre, that rounded up to a power of two."""
    if metric == "cosine":
        return (scores / GRIDS[metric]).round()
    points = vectors.astype(np.float64)
    farthest = np.sqrt(((points - points.mean(0)) ** 2).sum(1).max())
    unit = 2.0 ** np.ceil(np.log2(farthest)) if farthest else 1.0
    return (-((scores / unit) ** 2) / 2 / GRIDS[metric]).round()


def slow_ranking(
    query: int, vectors: NDArray[np.float32], gallery: list[int], metric: str
) -> tuple[list[int], list[float]]:
    """The gallery without the query, nearest first, of equally near ones the lower index first; and their scores."""
    others = [other for other in gallery if other != query]
    scores = np.array([slow_score(vectors[query], vectors[other], metric) for other in others])
    order = np.lexsort((others, -ties_of(scores, vectors, metric)))
    return [others[place] for place in order], [float(scores[place]) for place in order]
