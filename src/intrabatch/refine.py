"""Message passing at test time: every image is refined within a small batch of its own (paper, appendix).

An image is the first node of its batch and its batch mates are neighbours, chosen by one of the eight constructions of
the paper's table; its feature after the last step replaces its embedding. A query's mates come from the gallery, and
the gallery is refined among itself, so that one query never depends on another. The same input gives the same batches.

Where the paper leaves room or its parts differ:
- k-reciprocal: a candidate's set is taken in when *more* than 2/3 of it is inside (released code; the equation has "at
  least"), and sets hold their own image (released code, after Zhong et al. 2017).
- gallery: a query counts as if it had joined the gallery, in its own list and in those of others.
- OPTICS: 0.9 is the largest distance it looks at; spectral clusters are read off by pivoted QR, which is repeatable.
- the others: the paper puts chunks of several clusters, or of several images' neighbours, into one batch; here a batch
  is one chunk: an image, the members of its own cluster, nearest first, then the nearest others. Noise takes its
  nearest neighbours, a query the cluster of its nearest gallery image.

This module knows neither backbones nor figures.
Shapes: N images, M candidates for mates (the images themselves, or the gallery), D embedding size, K neighbours,
S nodes of a small batch, R rows of a block.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN, OPTICS, AgglomerativeClustering, Birch, KMeans, SpectralClustering

from .errors import ConfigError, did_you_mean
from .messages import MessagePassing
from .neighbours import Neighbours, nearest

Construction = Literal["k-reciprocal", "nearest", "k-means", "ward", "spectral", "birch", "dbscan", "optics"]
CONSTRUCTIONS: tuple[str, ...] = get_args(Construction)

NOBODY = -1
PAPER_CLUSTERS, PAPER_EPS, PAPER_MIN_SAMPLES = 900, 0.9, 5
BLOCK_ROWS = 512
HELD = 1 << 25
"""Comparisons of nodes held at once."""

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


def refine(
    vectors_ND: Floats,
    passing: MessagePassing,
    how: str = "k-reciprocal",
    size: int = 7,
    *,
    gallery: Floats | None = None,
    clusters: int | None = None,
    seed: int = 0,
) -> Floats:
    """The vectors (N, D) after message passing, each in its own batch of `size` nodes; see `neighbourhoods`.

    Give embeddings as they leave the backbone: `passing` normalises them itself where it was trained to.
    """
    batches_NS = neighbourhoods(vectors_ND, how, size, gallery=gallery, clusters=clusters, seed=seed)
    candidates_MD = vectors_ND if gallery is None else gallery
    refined_ND = np.empty(vectors_ND.shape, dtype=np.float32)
    was_training = passing.training
    passing.eval()
    try:
        for rows in _blocks(len(vectors_ND), size):
            nodes_RSD = np.concatenate([vectors_ND[rows, None], candidates_MD[batches_NS[rows, 1:]]], axis=1)
            refined_ND[rows] = _first_nodes(nodes_RSD, passing)
    finally:
        passing.train(was_training)
    return refined_ND


@torch.no_grad()
def _first_nodes(nodes_RSD: Floats, passing: MessagePassing) -> Floats:
    """The first node of each batch after the last step."""
    device = next(passing.parameters()).device
    refined_RSD = passing(torch.as_tensor(nodes_RSD, dtype=torch.float32, device=device))[-1]
    first_RD: Floats = refined_RSD[:, 0].cpu().numpy()
    return first_RD


def neighbourhoods(
    vectors_ND: Floats,
    how: str = "k-reciprocal",
    size: int = 7,
    *,
    gallery: Floats | None = None,
    k1: int = 30,
    clusters: int | None = None,
    seed: int = 0,
) -> Indices:
    """The batch of every image as indices (N, size): the image itself, then its mates, those preferred by `how` first.

    With a `gallery` the first column counts rows of `vectors_ND`, the others rows of the gallery. `k1` is the length of
    the k-reciprocal lists. `clusters` is the number of clusters of k-means, Ward, spectral and Birch: by default the
    paper's 900, or a quarter of the images when that is fewer. `seed` is for k-means and spectral.
    """
    num_candidates = len(vectors_ND if gallery is None else gallery)
    _check(how, size, k1, largest=num_candidates + (gallery is not None))
    k1, num_mates = min(k1, num_candidates - 1), size - 1
    plain = nearest(vectors_ND, max(k1, num_mates) if how == "k-reciprocal" else num_mates, gallery_GD=gallery)
    vectors_ND, gallery = _normalised(vectors_ND), None if gallery is None else _normalised(gallery)
    if how == "nearest" or k1 == 0:  # k1 is 0 for a gallery of one image
        preferred_NK = np.empty((len(vectors_ND), 0), dtype=np.int64)
    elif how == "k-reciprocal":
        preferred_NK = _reciprocal_mates(vectors_ND, plain, gallery, k1, num_mates)
    else:
        among_MD = vectors_ND if gallery is None else gallery
        labels_M = cluster_labels(among_MD, how, _num_clusters(clusters, num_candidates), seed)
        labels_N = labels_M if gallery is None else labels_M[plain.indices_Nk[:, 0]]
        preferred_NK = _cluster_mates(vectors_ND, labels_N, gallery, labels_M, num_mates)
    mates_NK = _filled_up(preferred_NK, plain.indices_Nk, num_mates)
    return np.column_stack([np.arange(len(vectors_ND)), mates_NK])


def _filled_up(preferred_NK: Indices, plain_NK: Indices, count: int) -> Indices:
    """For each image the first `count` of its preferred mates, then of its plain neighbours; nobody twice."""
    rest_NK = np.where(_contained(plain_NK, preferred_NK), NOBODY, plain_NK)
    return _moved_left(np.hstack([preferred_NK, rest_NK]))[:, :count]


def _moved_left(indices_NK: Indices) -> Indices:
    """The same rows, their order kept, with all NOBODY at the end."""
    return np.take_along_axis(indices_NK, np.argsort(indices_NK == NOBODY, axis=1, kind="stable"), axis=1)


def _contained(these_NK: Indices, those_NJ: Indices) -> NDArray[np.bool_]:
    """For each row and each of its first indices, whether it is among its second ones."""
    found_NK = np.empty(these_NK.shape, dtype=bool)
    for rows in _blocks(len(these_NK), max(these_NK.shape[1], those_NJ.shape[1])):
        found_NK[rows] = (these_NK[rows, :, None] == those_NJ[rows, None, :]).any(-1)
    return found_NK


def _blocks(num_rows: int, size: int = 1) -> list[slice]:
    """Some rows at a time, fewer where each compares `size` nodes with as many."""
    step = max(1, min(BLOCK_ROWS, HELD // size**2))
    return [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


# k-reciprocal neighbours


def _reciprocal_mates(vectors_ND: Floats, plain: Neighbours, gallery_MD: Floats | None, k1: int, count: int) -> Indices:
    """The expanded k-reciprocal set of each image, nearest first: at most `count`, then NOBODY.

    An image and a candidate are reciprocal when each is among the other's k1 nearest; a query counts as if it had
    joined the gallery.
    """
    if gallery_MD is None:
        lists_NK = lists_MK = _with_self(plain.indices_Nk[:, :k1])
        members_NK = _reciprocal(lists_MK)
    else:
        among = nearest(gallery_MD, k1)
        lists_NK, lists_MK = plain.indices_Nk[:, :k1], _with_self(among.indices_Nk)
        near_enough_NK = plain.scores_Nk[:, :k1] >= among.scores_Nk[lists_NK, -1]
        members_NK = np.where(near_enough_NK, lists_NK, NOBODY)
    short_sets_MH = _reciprocal(lists_MK[:, : round(k1 / 2) + 1])
    mates_NK = np.empty((len(vectors_ND), count), dtype=np.int64)
    for rows in _blocks(len(vectors_ND)):
        set_RX = np.hstack([members_NK[rows], _expansion(members_NK[rows], short_sets_MH)])
        if gallery_MD is None:
            set_RX[set_RX == np.arange(rows.start, rows.stop)[:, None]] = NOBODY
        mates_NK[rows] = _nearest_first(set_RX, plain.indices_Nk[rows], count)
        _add_far_members(mates_NK[rows], set_RX, vectors_ND[rows], vectors_ND if gallery_MD is None else gallery_MD)
    return mates_NK


def _with_self(lists_NK: Indices) -> Indices:
    return np.column_stack([np.arange(len(lists_NK)), lists_NK])


def _reciprocal(lists_NK: Indices) -> Indices:
    """The lists, each holding its own image, with NOBODY for those whose list does not hold the image in return."""
    members_NK = np.full_like(lists_NK, NOBODY)
    for rows in _blocks(len(lists_NK)):
        images_R11 = np.arange(rows.start, rows.stop)[:, None, None]
        in_return_RK = (lists_NK[lists_NK[rows]] == images_R11).any(-1)
        members_NK[rows][in_return_RK] = lists_NK[rows][in_return_RK]
    return members_NK


def _expansion(members_RK: Indices, short_sets_MH: Indices) -> Indices:
    """The short reciprocal sets (R, K * H) of those members who have over 2/3 of theirs inside already."""
    theirs_RKH = np.where(members_RK[..., None] == NOBODY, NOBODY, short_sets_MH[members_RK])
    is_someone_RKH = theirs_RKH != NOBODY
    is_inside_RKH = (theirs_RKH[..., None] == members_RK[:, None, None, :]).any(-1) & is_someone_RKH
    joins_RK = 3 * is_inside_RKH.sum(-1) > 2 * is_someone_RKH.sum(-1)
    return np.where(joins_RK[..., None], theirs_RKH, NOBODY).reshape(len(members_RK), -1)


def _nearest_first(set_RX: Indices, plain_RK: Indices, count: int) -> Indices:
    """Those of the set who are on the list of plain neighbours, in its order."""
    return _moved_left(np.where(_contained(plain_RK, set_RX), plain_RK, NOBODY))[:, :count]


def _add_far_members(mates_RK: Indices, set_RX: Indices, vectors_RD: Floats, candidates_MD: Floats) -> None:
    """Where places are left, put members from beyond the list of plain neighbours there, nearest first (in place)."""
    for row in np.flatnonzero(mates_RK[:, -1] == NOBODY):
        far = np.setdiff1d(set_RX[row], [NOBODY, *mates_RK[row]])
        far = far[np.argsort(-(candidates_MD[far] @ vectors_RD[row]), kind="stable")]
        num_taken = np.count_nonzero(mates_RK[row] != NOBODY)
        free = mates_RK[row, num_taken:]
        free[: len(far)] = far[: len(free)]


# Clusters


def cluster_labels(vectors_ND: Floats, how: str, clusters: int, seed: int = 0) -> Indices:
    """The cluster of each image by scikit-learn, -1 for noise; for vectors of length one, as eps = 0.9 needs."""
    makers: dict[str, Callable[[], Any]] = {
        "k-means": lambda: KMeans(clusters, n_init=1, random_state=seed),
        "ward": lambda: AgglomerativeClustering(clusters, linkage="ward"),
        "spectral": lambda: SpectralClustering(clusters, assign_labels="cluster_qr", random_state=seed),
        "birch": lambda: Birch(n_clusters=clusters),
        "dbscan": lambda: DBSCAN(eps=PAPER_EPS, min_samples=PAPER_MIN_SAMPLES),
        "optics": lambda: OPTICS(max_eps=PAPER_EPS, min_samples=PAPER_MIN_SAMPLES),
    }
    if len(vectors_ND) < PAPER_MIN_SAMPLES:
        return np.full(len(vectors_ND), NOBODY)  # too few to cluster: all noise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer clusters than asked for, all noise: the nearest others fill up
        labels_N = makers[how]().fit_predict(vectors_ND)
    return np.asarray(labels_N, dtype=np.int64)


def _cluster_mates(
    vectors_ND: Floats, labels_N: Indices, gallery_MD: Floats | None, labels_M: Indices, count: int
) -> Indices:
    """For each image the candidates of its own cluster, nearest first: at most `count`, then NOBODY."""
    mates_NK = np.full((len(vectors_ND), count), NOBODY, dtype=np.int64)
    for label in np.unique(labels_N[labels_N != NOBODY]):
        images, members = np.flatnonzero(labels_N == label), np.flatnonzero(labels_M == label)
        found = min(count, len(members) - (gallery_MD is None))
        if found:
            gallery = None if gallery_MD is None else gallery_MD[members]
            mates_NK[images, :found] = members[nearest(vectors_ND[images], found, gallery_GD=gallery).indices_Nk]
    return mates_NK


# Checks


def _num_clusters(clusters: int | None, num_images: int) -> int:
    if clusters is None:
        return max(2, min(PAPER_CLUSTERS, num_images // 4))
    if not 2 <= clusters <= num_images:
        raise ConfigError(f"refine: {clusters} clusters of {num_images} images; expected 2 to {num_images}")
    return clusters


def _check(how: str, size: int, k1: int, largest: int) -> None:
    """`largest` counts an image and all who could be its mates."""
    if how not in CONSTRUCTIONS:
        raise ConfigError(f"refine: unknown construction '{how}'{did_you_mean(how, CONSTRUCTIONS)}")
    if not 2 <= size <= largest:
        raise ConfigError(f"refine: size is {size}; expected 2 to {largest}, an image and all that could be its mates")
    if k1 < 1:
        raise ConfigError(f"refine: k1 is {k1}; expected at least 1 neighbour")


def _normalised(vectors_ND: Floats) -> Floats:
    """Rows of length one; `nearest` has made sure that none is zero or not finite."""
    normalised_ND: Floats = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return normalised_ND
