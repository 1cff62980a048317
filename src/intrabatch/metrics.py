"""Figures of retrieval and of clustering, from arrays alone.

Every retrieval figure follows from one thing: the ranks of a query's positives, the gallery images of its class, among
the gallery with the query itself left out. A rank is the number of images ahead, counted from 0; of equally near images
the lower index is ahead. Ranks come from counting block by block how many scores lie above each positive's, so that
no list is kept. On a CPU quick scores bound the ranks first, one block serving the queries of its rows and of its
columns, and exact keys decide those that stay open, as queries with many positives would; a GPU counts exact keys.
This module does not know models, files or how the vectors came about.
Shapes: N images, Q queries, G gallery, B rows of a block, P positives, T thresholds, K clusters, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import EvaluationError, did_you_mean
from .scores import LARGEST, Block, Points, Vectors, in_parallel, points, room, slices
from .statistics import information_by_chance

ROWS = 2048
"""Queries, and gallery images, of a block."""
ROLES = ("query", "gallery", "both")
FAR = 2**62
"""The rank of a positive that is not there."""
LOWEST_KEY = torch.iinfo(torch.int64).min
SETTLED = 1e-6
"""A query is looked up exactly when rounding could move one of its figures by more than this."""
MANY = 1 / 24
"""Share of the gallery above which positives are so many that a CPU sorts a query's exact keys at once."""
COMPARED = 256
"""Thresholds up to which a GPU compares all scores with each of them; more are quicker looked up in sorted scores."""
HELD = 1 << 25
"""Positives of all queries that may be counted at once; with more, each block of queries is finished by itself."""


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
        if figure not in self.values:
            raise EvaluationError(f"unknown figure '{figure}'{did_you_mean(figure, self.values)}")
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
    _check_ks(ks, len(search.gallery) - bool((search.own >= 0).all()))
    if not search.num_positives.any():
        raise EvaluationError(
            f"none of {len(search.queries)} queries has another image of its class in the gallery; "
            f"retrieval needs classes with two or more images, or a gallery that holds the queries' classes"
        )
    figures = _all_figures(search, ks)
    order = np.argsort(search.queries)
    order = order[search.num_positives[order] > 0]
    queries = search.queries[order]
    values = {name: figure[order] for name, figure in figures.items()}
    return Retrieval(values, queries, labels[queries], len(search.queries) - len(queries))


def checked_labels(labels_N: Sequence[int] | NDArray[np.integer] | Tensor, length: int) -> NDArray[np.int64]:
    labels = np.asarray(labels_N.cpu() if isinstance(labels_N, Tensor) else labels_N)
    if labels.shape != (length,):
        raise EvaluationError(f"labels have shape {labels.shape} for {length} vectors; each vector needs one label")
    if labels.dtype.kind not in "iu":
        raise EvaluationError(f"labels are of type {labels.dtype}; expected whole numbers, one for each class")
    return labels.astype(np.int64)


def _check_ks(ks: Sequence[int], available: int) -> None:
    if available < 1:
        raise EvaluationError("a single image has no other to find; retrieval needs two or more")
    if len(ks) == 0 or not all(isinstance(k, Integral) and 1 <= k <= available for k in ks):
        raise EvaluationError(
            f"recall at {', '.join(map(str, ks)) or 'no K'} asked for; expected K from 1 to {available}, "
            f"in whole numbers up to that of the gallery images a query can find"
        )


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

    def to_device(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.images.device)


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
    unknown = sorted(set(np.unique(given).tolist()) - set(ROLES))
    if unknown:
        raise EvaluationError(f"unknown role '{unknown[0]}'{did_you_mean(unknown[0], ROLES)}")
    is_query, is_gallery = given != "gallery", given != "query"
    if not is_query.any() or not is_gallery.any():
        raise EvaluationError(f"{is_query.sum()} queries and {is_gallery.sum()} gallery images; at least one of each")
    return is_query, is_gallery


@dataclass(eq=False)
class _Rows:
    """A block of queries while it is being counted."""

    queries: slice
    block: Block
    thresholds_BT: Tensor
    """Just above the score of each positive, nearest first and padded; then just below."""
    above_BT: Tensor
    """Scores counted above each threshold so far."""


def _all_figures(search: _Search, ks: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """Figures of each query, in the order of `search`."""
    every = np.arange(len(search.queries))
    on_cpu, many = search.images.device.type == "cpu", MANY * len(search.gallery)
    num_bounded = int(np.searchsorted(search.size, many, side="right")) if on_cpu else 0
    found = [(every[num_bounded:], _exact_figures(search, every[num_bounded:], ks))]
    if num_bounded:
        bounded, still_open = _bounded_figures(search, num_bounded, ks)
        found += [(every[:num_bounded], bounded), (still_open, _exact_figures(search, still_open, ks))]
    figures: dict[str, NDArray[np.float64]] = {}
    for queries, values in found:
        for name, figure in values.items():
            figures.setdefault(name, np.empty(len(every)))[queries] = figure.numpy()
    return figures


def _bounded_figures(search: _Search, num: int, ks: Sequence[int]) -> tuple[dict[str, Tensor], NDArray[np.int64]]:
    """Figures of the first queries in the middle of what quick scores allow, and those for which that is too wide."""
    mirrored = search.symmetric and search.size[:num].sum() <= HELD
    step = ROWS if mirrored else min(ROWS, LARGEST // max(1, search.size[num - 1]))
    blocks = slices(num, step)
    end = len(search.gallery)
    places = [*blocks, *slices(end, ROWS, num)] if mirrored else slices(end, 8 * ROWS)
    columns = [search.images.block(search.to_device(search.gallery[part])) for part in places]
    tolerance = search.images.tolerance(search.images)
    bounds = []
    for group in [blocks] if mirrored else [[block] for block in blocks]:
        ready = columns if mirrored else [search.images.block(search.to_device(search.queries[group[0]]))]
        rows = [_rows(search, queries, block, tolerance) for queries, block in zip(group, ready, strict=False)]
        _count(search, rows, columns, places, mirrored)
        bounds += [_bounds(search, block, ks) for block in rows]
    best = {name: torch.cat([part[name] for part, _ in bounds]) for name in bounds[0][0]}
    worst = {name: torch.cat([part[name] for _, part in bounds]) for name in best}
    is_open = torch.stack([(best[name] - worst[name]).abs() > 2 * SETTLED for name in best]).any(0)
    return {name: (best[name] + worst[name]) / 2 for name in best}, torch.nonzero(is_open).flatten().numpy()


def _exact_figures(search: _Search, queries: NDArray[np.int64], ks: Sequence[int]) -> dict[str, Tensor]:
    parts = []
    most, num = search.size[queries].max(initial=1), len(search.gallery)
    in_sorted = search.images.device.type == "cpu" and most > MANY * num
    for part in slices(len(queries), min(ROWS, LARGEST // (num if in_sorted else most))):
        some = queries[part]
        ranks_BP = _ranks_in_sorted(search, some) if in_sorted else _exact_ranks(search, some)
        parts.append(figures_of_ranks(ranks_BP, search.num_positives[some], ks))
    return {name: torch.cat([figures[name] for figures in parts]) for name in (parts[0] if parts else ())}


def _positives(search: _Search, queries: slice | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Places in the gallery of the images of each query's class, padded; and which of these are positives."""
    first_B1, size_B1, own_B1 = (part[queries, None] for part in (search.first, search.size, search.own))
    steps_P = np.arange(max(1, size_B1.max()))
    inside_BP = steps_P < size_B1
    places_BP = first_B1 + np.where(inside_BP, steps_P, 0)
    return places_BP, inside_BP & (places_BP != own_B1)


def _rows(search: _Search, queries: slice, block: Block, tolerance: float) -> _Rows:
    places_BP, is_positive_BP = _positives(search, queries)
    rows_B = search.to_device(search.queries[queries])
    scores_BP = _scores_of_positives(search, rows_B, places_BP)
    scores_BP.masked_fill_(~search.to_device(is_positive_BP), -torch.inf)
    scores_BP = scores_BP.sort(1, descending=True).values
    thresholds_BT = torch.cat([scores_BP + tolerance, scores_BP - tolerance], 1).float()
    outwards_T = thresholds_BT.new_tensor([torch.inf, -torch.inf]).repeat_interleave(scores_BP.shape[1])
    thresholds_BT.nextafter_(outwards_T)  # or float32 could round the tolerance away
    above_BT = torch.zeros(thresholds_BT.shape, dtype=torch.int32, device=thresholds_BT.device)
    return _Rows(queries, block, thresholds_BT, above_BT)


def _scores_of_positives(search: _Search, rows_B: Tensor, places_BP: NDArray[np.int64]) -> Tensor:
    """Exact scores of queries with the images at these places, which lie in one strip for a few queries in a row."""
    parts = []
    for few in slices(len(rows_B), 256):
        start, stop = places_BP[few].min(), places_BP[few].max() + 1
        strip = search.to_device(search.gallery[start:stop])
        scores_BG = search.images.scores(rows_B[few], search.images, strip)
        parts.append(scores_BG.gather(1, search.to_device(places_BP[few] - start)))
    return torch.cat(parts)


def _count(search: _Search, rows: list[_Rows], columns: list[Block], places: list[slice], mirrored: bool) -> None:
    """Add up for each threshold the scores above it; mirrored, a block serves its columns' queries too."""
    for number, (column, place) in enumerate(zip(columns, places, strict=True)):
        for block in rows[: number + 1] if mirrored else rows:
            scores_BG = block.block.scores(column)
            own_B = search.own[block.queries]
            inside = np.flatnonzero((own_B >= place.start) & (own_B < place.stop))
            scores_BG[search.to_device(inside), search.to_device(own_B[inside] - place.start)] = -torch.inf
            if mirrored and number < len(rows) and block is not rows[number]:
                rows[number].above_BT += counts_above(scores_BG.T.contiguous(), rows[number].thresholds_BT)
            block.above_BT += counts_above(scores_BG, block.thresholds_BT)


def counts_above(scores_BG: Tensor, thresholds_BT: Tensor) -> Tensor:
    """How many scores of each row lie above each of its thresholds. On a CPU the scores are sorted in their place."""
    if scores_BG.device.type == "cpu":
        _sort_rows(scores_BG)
    elif thresholds_BT.shape[1] <= COMPARED:
        return _counts_by_comparison(scores_BG, thresholds_BT)
    else:
        scores_BG = scores_BG.sort(1).values
    return scores_BG.shape[1] - torch.searchsorted(scores_BG, thresholds_BT, right=True, out_int32=True)


def _counts_by_comparison(scores_BG: Tensor, thresholds_BT: Tensor) -> Tensor:
    """The same on a GPU, where a pass over all scores costs next to nothing and sorting does not."""
    columns = thresholds_BT.T[..., None]
    return torch.stack([(scores_BG > bars_B1).sum(1, dtype=torch.int32) for bars_B1 in columns], 1)


def _sort_rows(scores_BG: Tensor) -> None:
    """NumPy sorts floats with vector instructions, an order of magnitude quicker than torch on a CPU."""
    in_parallel(scores_BG, lambda part: part.sort(axis=1))


def _bounds(search: _Search, rows: _Rows, ks: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The best and the worst figures that the counts allow; no two positives have the same rank."""
    least_BP, greatest_BP = rows.above_BT.cpu().long().chunk(2, dim=1)
    steps_P = torch.arange(least_BP.shape[1])
    sizes_B = search.num_positives[rows.queries]
    absent_BP = steps_P >= torch.from_numpy(sizes_B)[:, None]
    best_BP = (least_BP - steps_P).masked_fill_(absent_BP, FAR).cummax(1).values + steps_P
    worst_BP = (greatest_BP - 1 - steps_P).masked_fill_(absent_BP, FAR).flip(1).cummin(1).values.flip(1) + steps_P
    return figures_of_ranks(best_BP, sizes_B, ks), figures_of_ranks(worst_BP, sizes_B, ks)


def _exact_ranks(search: _Search, queries: NDArray[np.int64]) -> Tensor:
    """The ranks of the positives of some queries, best first, from exact keys, which break ties by the index."""
    images, rows_B = search.images, search.to_device(search.queries[queries])
    places_BP, is_positive_BP = _positives(search, queries)
    scores_BP = _scores_of_positives(search, rows_B, places_BP)
    keys_BP = images.keys_of(scores_BP, search.to_device(search.gallery[places_BP]))
    keys_BP.masked_fill_(~search.to_device(is_positive_BP), LOWEST_KEY)
    keys_BP = keys_BP.sort(1, descending=True).values
    others_BP = torch.zeros(keys_BP.shape, dtype=torch.int32, device=images.device)
    for part in slices(len(search.gallery), room(images.device) // len(queries)):
        keys_BC = images.keys(rows_B, images, search.to_device(search.gallery[part]))
        _leave_out_own_class(search, queries, keys_BC, part)
        others_BP += counts_above(keys_BC, keys_BP)
    ranks_BP = others_BP.cpu().long() + torch.arange(keys_BP.shape[1])
    is_absent_BP = torch.arange(keys_BP.shape[1]) >= torch.from_numpy(search.num_positives[queries])[:, None]
    return ranks_BP.masked_fill_(is_absent_BP, FAR)


def _ranks_in_sorted(search: _Search, queries: NDArray[np.int64]) -> Tensor:
    """The same on a CPU from all keys of each query sorted at once, their last bit telling positives from others."""
    images, rows_B = search.images, search.to_device(search.queries[queries])
    labels_B1 = search.to_device(search.labels[search.queries[queries], None])
    keys_BG = torch.empty(len(queries), len(search.gallery), dtype=torch.int64)
    for part in slices(len(search.gallery), 4 * ROWS):
        keys_BC = images.keys(rows_B, images, search.to_device(search.gallery[part]))
        keys_BG[:, part] = keys_BC.mul_(2).add_(labels_B1 == search.to_device(search.labels[search.gallery[part]]))
    itself = np.flatnonzero(search.own[queries] >= 0)
    keys_BG[search.to_device(itself), search.to_device(search.own[queries[itself]])] = LOWEST_KEY
    _sort_rows(keys_BG)
    num_positives_B1 = torch.from_numpy(search.num_positives[queries, None])
    is_present_BP = torch.arange(max(1, int(num_positives_B1.max()))) < num_positives_B1
    ranks_BP = torch.full(is_present_BP.shape, FAR)
    ranks_BP[is_present_BP] = torch.nonzero(keys_BG.bitwise_and_(1).flip(1))[:, 1]
    return ranks_BP


def _leave_out_own_class(search: _Search, queries: NDArray[np.int64], keys_BC: Tensor, part: slice) -> None:
    """Put keys of images of a query's own class, itself among them, below all others; they lie in one strip."""
    first, stop = search.first[queries].min(), (search.first + search.size)[queries].max()
    strip = slice(max(first, part.start), min(stop, part.stop))
    if strip.start < strip.stop:
        labels_B = search.to_device(search.labels[search.queries[queries]])
        labels_S = search.to_device(search.labels[search.gallery[strip]])
        keys_BS = keys_BC[:, strip.start - part.start : strip.stop - part.start]
        keys_BS.masked_fill_(labels_B[:, None] == labels_S, LOWEST_KEY)


def figures_of_ranks(ranks_BP: Tensor, num_positives_B: NDArray[np.int64], ks: Sequence[int]) -> dict[str, Tensor]:
    """The figures of each query from the ranks of its positives, best first; `FAR` stands where there are fewer."""
    sizes_B = torch.from_numpy(num_positives_B).double()
    precisions_BP = torch.arange(1, ranks_BP.shape[1] + 1) / (ranks_BP.double() + 1)
    first_B = ranks_BP[:, 0]
    figures = {f"recall@{k}": (first_B < k).double() for k in ks}
    figures["precision@1"] = (first_B < 1).double()
    among_first_BP = ranks_BP < sizes_B[:, None]
    figures["r-precision"] = among_first_BP.sum(1) / sizes_B
    figures["map@r"] = (precisions_BP * among_first_BP).sum(1) / sizes_B
    figures["map"] = (precisions_BP * (ranks_BP < FAR)).sum(1) / sizes_B
    return figures


def agreement(labels_N: NDArray[np.integer], assignments_N: NDArray[np.integer]) -> dict[str, float]:
    """NMI and adjusted mutual information (both by the arithmetic mean of the entropies), and adjusted Rand index."""
    num = len(labels_N)
    if num == 0 or num != len(assignments_N):
        raise EvaluationError(f"{num} labels and {len(assignments_N)} assignments; agreement needs one each an image")
    classes, clusters = (np.unique(part, return_inverse=True)[1] for part in (labels_N, assignments_N))
    sizes_C, sizes_K = np.bincount(classes), np.bincount(clusters)
    shared, cells = np.unique(classes * len(sizes_K) + clusters, return_counts=True)
    by_chance = sizes_C[shared // len(sizes_K)] * sizes_K[shared % len(sizes_K)]
    information = float((cells / num * np.log(num * cells / by_chance)).sum())
    entropy = -sum(float((sizes / num * np.log(sizes / num)).sum()) for sizes in (sizes_C, sizes_K)) / 2
    chance = information_by_chance(sizes_C, sizes_K)
    pairs_cells, pairs_C, pairs_K = (float((sizes * (sizes - 1.0)).sum() / 2) for sizes in (cells, sizes_C, sizes_K))
    pairs_chance = pairs_C * pairs_K / max(1.0, num * (num - 1) / 2)
    return {
        "nmi": _ratio(information, entropy),
        "ami": _ratio(information - chance, entropy - chance),
        "ari": _ratio(pairs_cells - pairs_chance, (pairs_C + pairs_K) / 2 - pairs_chance),
    }


def _ratio(part: float, whole: float) -> float:
    """Never above 1 by rounding; 1 where both sides are one cluster, or both all single images: they agree."""
    return min(1.0, part / whole) if abs(whole) > 1e-12 else 1.0
