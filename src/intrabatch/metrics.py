"""Figures of retrieval and of clustering, from arrays alone.

Every retrieval figure follows from one thing: the ranks of a query's positives, the gallery images of its class, among
the gallery with the query itself left out. A rank is the number of images ahead, counted from 0; of equally near images
the lower index is ahead. Ranks come from counting block by block how many scores lie above each positive's, so that
no list is kept and one block serves the queries of its rows and of its columns.
This module does not know models, files or how the vectors came about.
Shapes: N images, Q queries, G gallery, B rows of a block, P positives, T thresholds, K clusters, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import EvaluationError
from .scores import LARGEST, Block, Points, Vectors, points

ROWS = 1024
"""Queries, and gallery images, of a block."""
FAR = 2**62
"""The rank of a positive that is not there."""


@dataclass(frozen=True, eq=False)
class Retrieval:
    """The figures of every query that has a positive; means, classes and comparisons are made from these."""

    values: dict[str, NDArray[np.float64]]
    """For each figure ('recall@1', 'precision@1', 'r-precision', 'map@r', 'map', ...) one number a query."""
    queries: NDArray[np.int64]
    """Which image each query is."""
    labels: NDArray[np.int64]
    """The label of each query."""
    num_queries_without_match: int
    """Queries left out, since the gallery holds no other image of their class."""

    def summary(self) -> dict[str, float]:
        """The mean of each figure over the queries."""
        return {name: float(values.mean()) for name, values in self.values.items()}

    def per_class(self, figure: str = "map@r") -> dict[int, float]:
        """The mean of a figure over the queries of each class."""
        classes, members = np.unique(self.labels, return_inverse=True)
        means = np.bincount(members, self.values[figure]) / np.bincount(members)
        return {int(label): float(mean) for label, mean in zip(classes, means, strict=True)}

    def hardest(self, count: int = 10, figure: str = "map@r") -> list[tuple[int, float]]:
        """The classes with the lowest mean, lowest first."""
        return sorted(self.per_class(figure).items(), key=lambda pair: pair[1])[:count]


def retrieval_figures(
    vectors_ND: Vectors,
    labels_N: Sequence[int] | NDArray[np.integer] | Tensor,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    roles_N: NDArray[np.str_] | None = None,
    metric: str = "cosine",
    device: str | torch.device = "cpu",
) -> Retrieval:
    """Recall@K, precision@1, R-precision, MAP@R and MAP of each query.

    With roles, images that are 'query' or 'both' look among those that are 'gallery' or 'both'; without, all among all.
    """
    images = points(vectors_ND, metric, device)
    labels = checked_labels(labels_N, len(images))
    search = _search(images, labels, roles_N)
    _check_ks(ks, len(search.gallery))
    if not search.num_positives.any():
        raise EvaluationError(
            f"none of {len(search.queries)} queries has another image of its class in the gallery; "
            f"retrieval needs classes with two or more images, or a gallery that holds the queries' classes"
        )
    parts = list(_figures_of_blocks(search, ks))
    values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    matched = search.num_positives > 0
    order = np.argsort(search.queries[matched])
    queries = search.queries[matched][order]
    return Retrieval(
        {name: value[matched][order] for name, value in values.items()}, queries, labels[queries], int((~matched).sum())
    )


def checked_labels(labels_N: Sequence[int] | NDArray[np.integer] | Tensor, length: int) -> NDArray[np.int64]:
    labels = np.asarray(labels_N)
    if labels.shape != (length,):
        raise EvaluationError(f"labels have shape {labels.shape} for {length} vectors; each vector needs one label")
    if labels.dtype.kind not in "iu":
        raise EvaluationError(f"labels are of type {labels.dtype}; expected whole numbers, one for each class")
    return labels.astype(np.int64)


def _check_ks(ks: Sequence[int], num_gallery: int) -> None:
    if not ks or min(ks) < 1 or max(ks) > num_gallery:
        raise EvaluationError(f"recall at {tuple(ks)} asked of a gallery of {num_gallery}; expected 1 to {num_gallery}")


@dataclass(frozen=True, eq=False)
class _Search:
    """Who looks where. Queries and gallery stand class by class, small classes first: then the positives of a block of
    queries are neighbours in the gallery, and about equally many a query."""

    images: Points
    labels: NDArray[np.int64]
    queries: NDArray[np.int64]
    gallery: NDArray[np.int64]
    first: NDArray[np.int64]
    """Place in the gallery where each query's class begins."""
    size: NDArray[np.int64]
    """Number of gallery images of each query's class, the query itself included where it is one of them."""
    own: NDArray[np.int64]
    """Place of each query itself in the gallery; -1 where it is not in it."""

    @property
    def num_positives(self) -> NDArray[np.int64]:
        return self.size - (self.own >= 0)

    @property
    def symmetric(self) -> bool:
        return np.array_equal(self.queries, self.gallery)


def _search(images: Points, labels: NDArray[np.int64], roles: NDArray[np.str_] | None) -> _Search:
    is_query, is_gallery = _roles(roles, len(labels))
    classes, members = np.unique(labels, return_inverse=True)
    sizes = np.bincount(members[is_gallery], minlength=len(classes))
    order = np.lexsort((members, sizes[members]))
    queries, gallery = order[is_query[order]], order[is_gallery[order]]
    place = np.full(len(labels), -1)
    place[gallery] = np.arange(len(gallery))
    first_of_class = np.zeros(len(classes), dtype=np.int64)
    first_of_class[members[gallery[::-1]]] = np.arange(len(gallery))[::-1]
    of_query = members[queries]
    return _Search(images, labels, queries, gallery, first_of_class[of_query], sizes[of_query], place[queries])


def _roles(roles: NDArray[np.str_] | None, length: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    given = np.full(length, "both") if roles is None else np.asarray(roles)
    if given.shape != (length,):
        raise EvaluationError(f"roles have shape {given.shape} for {length} vectors; each vector needs one role")
    unknown = sorted(set(given.tolist()) - {"query", "gallery", "both"})
    if unknown:
        raise EvaluationError(f"unknown role '{unknown[0]}'; choose from: query, gallery, both")
    is_query, is_gallery = given != "gallery", given != "query"
    if not is_query.any() or not is_gallery.any():
        raise EvaluationError(f"{is_query.sum()} queries and {is_gallery.sum()} gallery images; at least one of each")
    return is_query, is_gallery


@dataclass(eq=False)
class _Rows:
    """A block of queries while it is being counted."""

    queries: slice
    block: Block
    places_BP: Tensor
    """Where in the gallery the images of a query's class stand, the query itself among them."""
    is_positive_BP: Tensor
    thresholds_BT: Tensor
    """Just above each positive's score, then just below."""
    above_BT: Tensor
    """Scores counted above each threshold so far."""


def _figures_of_blocks(search: _Search, ks: Sequence[int]) -> Iterator[dict[str, NDArray[np.float64]]]:
    """Count over all blocks, then one dictionary of figures for each block of queries, in the order of `search`."""
    tolerance = search.images.tolerance(search.images)
    rows = [_rows(search, slice(i, i + ROWS), tolerance) for i in range(0, len(search.queries), ROWS)]
    _count(search, rows)
    for block in rows:
        yield _figures_of_rows(search, block, ks)


def _rows(search: _Search, queries: slice, tolerance: float) -> _Rows:
    images, device = search.images, search.images.device
    places_BP = search.first[queries, None] + np.arange(search.size[queries].max())
    inside_BP = places_BP < (search.first + search.size)[queries, None]
    places_BP[~inside_BP] = 0
    is_positive_BP = inside_BP & (places_BP != search.own[queries, None])
    rows_B = torch.from_numpy(search.queries[queries]).to(device)
    members_BP = torch.from_numpy(search.gallery[places_BP]).to(device)
    is_positive = torch.from_numpy(is_positive_BP).to(device)
    scores_BP = images.pair_scores(rows_B, images, members_BP)
    near_BP = (scores_BP + tolerance).float().masked_fill_(~is_positive, torch.inf)
    far_BP = (scores_BP - tolerance).float().masked_fill_(~is_positive, torch.inf)
    thresholds_BT = torch.cat([near_BP, far_BP], 1)
    above_BT = torch.zeros(thresholds_BT.shape, dtype=torch.int64, device=device)
    return _Rows(queries, images.block(rows_B), torch.from_numpy(places_BP), is_positive, thresholds_BT, above_BT)


def _count(search: _Search, rows: list[_Rows]) -> None:
    """Add up for each threshold the scores above it, over all blocks of the gallery."""
    own = torch.from_numpy(search.own)
    for start in range(0, len(search.gallery), ROWS):
        places = slice(start, min(start + ROWS, len(search.gallery)))
        number = start // ROWS
        columns = rows[number].block if search.symmetric else search.images.block(
            torch.from_numpy(search.gallery[places]).to(search.images.device)
        )
        for block in rows[: number + 1] if search.symmetric else rows:
            scores_BG = block.block.scores(columns)
            inside = torch.nonzero((own[block.queries] >= start) & (own[block.queries] < places.stop)).flatten()
            scores_BG[inside, own[block.queries][inside] - start] = -torch.inf
            if search.symmetric and block is not rows[number]:
                rows[number].above_BT += counts_above(scores_BG.T.contiguous(), rows[number].thresholds_BT)
            block.above_BT += counts_above(scores_BG, block.thresholds_BT)


def counts_above(scores_BG: Tensor, thresholds_BT: Tensor) -> Tensor:
    """How many scores of each row lie above each of its thresholds. On a CPU the scores are sorted in their place."""
    if thresholds_BT.shape[1] == 0:
        return torch.zeros_like(thresholds_BT, dtype=torch.int64)
    if scores_BG.device.type != "cpu":
        return torch.stack([(scores_BG > t_B[:, None]).sum(1) for t_B in thresholds_BT.T], 1)
    _sort_rows(scores_BG)
    return scores_BG.shape[1] - torch.searchsorted(scores_BG, thresholds_BT, right=True)


def _sort_rows(scores_BG: Tensor) -> None:
    """NumPy sorts floats with vector instructions, an order of magnitude quicker than torch on a CPU."""
    parts = scores_BG.numpy()
    workers = torch.get_num_threads()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda part: part.sort(axis=1), np.array_split(parts, workers)))


def _figures_of_rows(search: _Search, rows: _Rows, ks: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """Figures from the least and the greatest rank each positive can have; exact ranks where the two disagree."""
    sizes_B = torch.from_numpy(search.num_positives[rows.queries])
    near_BP, far_BP = rows.above_BT.chunk(2, dim=1)
    least_BP = near_BP.masked_fill(~rows.is_positive_BP, FAR).cpu()
    greatest_BP = (far_BP - 1).masked_fill(~rows.is_positive_BP, FAR).cpu()
    best = figures_of_ranks(least_BP, sizes_B, ks)
    worst = figures_of_ranks(greatest_BP, sizes_B, ks)
    unsettled_B = torch.stack([(best[name] - worst[name]) > 1e-6 for name in best]).any(0)
    open_rows = torch.nonzero(unsettled_B).flatten()
    for part in open_rows.split(max(1, LARGEST // len(search.gallery))):
        least_BP[part] = _exact_ranks(search, rows, part)
    return {name: value.numpy() for name, value in figures_of_ranks(least_BP, sizes_B, ks).items()}


def _exact_ranks(search: _Search, rows: _Rows, part: Tensor) -> Tensor:
    """The ranks of the positives of a few queries, from exact keys; these break ties in the order of the images."""
    images = search.images
    gallery = torch.from_numpy(np.sort(search.gallery)).to(images.device)
    place_of_image = np.searchsorted(np.sort(search.gallery), search.gallery)
    queries = torch.from_numpy(search.queries[rows.queries][part])
    subset = Points(images.raw_ND[gallery], images.factors_N[gallery], images.metric)
    keys_BG = images.keys(queries.to(images.device), subset)
    own = search.own[rows.queries][part.numpy()]
    inside = np.flatnonzero(own >= 0)
    keys_BG[inside, place_of_image[own[inside]]] = torch.iinfo(torch.int64).min
    places_BP = torch.from_numpy(place_of_image[rows.places_BP[part].numpy()]).to(images.device)
    ranks_BP = counts_above(keys_BG.clone(), keys_BG.gather(1, places_BP))
    return ranks_BP.masked_fill_(~rows.is_positive_BP[part], FAR).cpu()


def figures_of_ranks(ranks_BP: Tensor, sizes_B: Tensor, ks: Sequence[int]) -> dict[str, Tensor]:
    """The figures of each query from the ranks of its positives; `FAR` stands where a query has fewer."""
    ranks_BP = ranks_BP.sort(1).values.double()
    sizes = sizes_B.double()
    hits_BP = torch.arange(1, ranks_BP.shape[1] + 1) / (ranks_BP + 1)
    within_BP = ranks_BP < sizes[:, None]
    first_B = ranks_BP.amin(1)
    figures = {f"recall@{k}": (first_B < k).double() for k in ks}
    figures["precision@1"] = (first_B < 1).double()
    figures["r-precision"] = within_BP.sum(1) / sizes
    figures["map@r"] = (hits_BP * within_BP).sum(1) / sizes
    figures["map"] = (hits_BP * (ranks_BP < FAR)).sum(1) / sizes
    return figures
