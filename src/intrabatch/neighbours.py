"""Exact nearest neighbours in blocks: no matrix of all pairs, on a CPU or a GPU, for any number of vectors.

Quick scores propose a few more candidates than asked for; exact scores order them; a query whose order could still
be different is looked up exactly, as all are on a GPU or when k is large. An image is kept out of its own list by its
index, so that copies of it stay in. This module does not know labels.
Shapes: N or Q queries, G gallery, B rows of a block, C candidates, S slots times W groups, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import EvaluationError
from .scores import Block, Points, Vectors, in_parallel, points, room, slices, together

ROWS = 1024
"""Queries looked up together."""
COLUMNS = 8192
"""Gallery images they are compared with at once."""
FEW = 256
"""Scores from one product of all vectors that cost as much time as one of a pair of vectors picked out."""
SPARE = 8
"""Candidates beyond k, so that nearly every list is settled without a full look-up."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """For each query its k nearest in the gallery, nearest first."""

    indices_Nk: NDArray[np.int64]
    scores_Nk: NDArray[np.float32]
    """Cosine, or minus the Euclidean distance: higher is nearer."""


def nearest(
    vectors_ND: Vectors,
    k: int,
    *,
    gallery_GD: Vectors | None = None,
    metric: str = "cosine",
    exclude_self: bool = True,
    device: str | torch.device = "cpu",
) -> Neighbours:
    """The k nearest gallery vectors of each vector; equally near ones in order of their index.

    Distances below 1.9e-6 of the longest from the common centre, that rounded up to a power of two, count as 0.
    Without a gallery the vectors look among themselves, each without itself unless `exclude_self` is off.
    """
    queries, gallery = query_and_gallery(vectors_ND, gallery_GD, metric, device)
    own = exclude_self and gallery is queries
    available = len(gallery) - own
    if not available:
        raise EvaluationError("one vector has no other to be near; expected two or more, or a gallery")
    if not isinstance(k, Integral) or not 1 <= k <= available:
        whole = "" if isinstance(k, Integral) else "a whole number, "
        raise EvaluationError(
            f"k = {k} neighbours asked for; expected {whole}1 to {available}, the images to choose from"
        )
    look = _Look.of(queries, gallery, k, own)
    parts = []
    for rows in slices(len(queries), look.step):
        rows_B = torch.arange(rows.start, rows.stop, device=queries.device)
        parts.append(look.quickly(rows_B) if look.blocks else look.exactly(rows_B))
    indices_Nk = torch.cat([indices for indices, _ in parts])
    scores_Nk = torch.cat([scores for _, scores in parts])
    if metric == "euclidean":
        scores_Nk = scores_Nk.masked_fill(scores_Nk > -queries.grid / 2, 0)  # tied with copies, whose products round
        scores_Nk = 0 - (scores_Nk * -2).sqrt() * queries.scale
    return Neighbours(indices_Nk.cpu().numpy(), scores_Nk.float().cpu().numpy())


def query_and_gallery(
    vectors_ND: Vectors, gallery_GD: Vectors | None, metric: str, device: str | torch.device
) -> tuple[Points, Points]:
    """Both on the device, about one centre; the same object when the vectors are their own gallery."""
    queries = points(vectors_ND, metric, device)
    if gallery_GD is None:
        return queries, queries
    gallery = points(gallery_GD, metric, device, "gallery vectors")
    if queries.raw_ND.shape[1] != gallery.raw_ND.shape[1]:
        raise EvaluationError(
            f"queries have {queries.raw_ND.shape[1]} numbers a vector and the gallery {gallery.raw_ND.shape[1]}; "
            f"both must come from the same model"
        )
    if metric == "euclidean":
        queries, gallery = together(queries, gallery)
    return queries, gallery


@dataclass(frozen=True, eq=False)
class _Look:
    """What is looked for, and where."""

    queries: Points
    gallery: Points
    k: int
    own: bool
    """Whether each query must be left out of its own list."""
    step: int
    blocks: list[tuple[slice, Block]]
    """The gallery made ready for quick scores; empty where all queries are looked up exactly."""
    tolerance: float

    @classmethod
    def of(cls, queries: Points, gallery: Points, k: int, own: bool) -> _Look:
        if queries.device.type != "cpu" or (k + SPARE) * FEW > len(gallery):
            step = min(ROWS, max(64, room(queries.device) // len(gallery)))
            return cls(queries, gallery, k, own, step, [], 0.0)
        blocks = [(columns, gallery.block(columns)) for columns in slices(len(gallery), COLUMNS)]
        return cls(queries, gallery, k, own, ROWS, blocks, queries.tolerance(gallery))

    def quickly(self, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """Indices and exact scores of the k nearest of these queries, by way of quick scores."""
        available = len(self.gallery) - self.own
        candidates_BC, last_B = self.candidates(rows_B, min(self.k + SPARE, available))
        scores_BC = self.queries.pair_scores(rows_B, self.gallery, candidates_BC)
        order_Bk = self.gallery.keys_of(scores_BC, candidates_BC).topk(self.k).indices
        indices_Bk, scores_Bk = candidates_BC.gather(1, order_Bk), scores_BC.gather(1, order_Bk)
        if candidates_BC.shape[1] < available:
            open_rows = torch.nonzero(scores_Bk[:, -1] <= last_B + self.tolerance).flatten()
            for part in slices(len(open_rows), 64):
                some = open_rows[part]
                indices_Bk[some], scores_Bk[some] = self.exactly(rows_B[some])
        return indices_Bk, scores_Bk

    def exactly(self, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """The same from the exact keys of all gallery images; a key tells the index of its image."""
        best_Bk = torch.empty(len(rows_B), 0, dtype=torch.int64, device=rows_B.device)
        scores_Bk = torch.empty(len(rows_B), 0, dtype=torch.float64, device=rows_B.device)
        for columns in slices(len(self.gallery), room(rows_B.device) // len(rows_B)):
            columns_C = torch.arange(columns.start, columns.stop, device=rows_B.device)
            scores_BC = self.queries.scores(rows_B, self.gallery, columns)
            keys_BC = self.gallery.keys_of(scores_BC, columns_C)
            if self.own:
                keys_BC.masked_fill_(rows_B[:, None] == columns_C, torch.iinfo(torch.int64).min)
            new_Bk = _highest(keys_BC, min(self.k, len(columns_C)))
            where_Bk = (-new_Bk).remainder(len(self.gallery)).sub_(columns.start).clamp_(0, len(columns_C) - 1)
            best_Bk, kept_Bk = torch.cat([best_Bk, new_Bk], 1).sort(1, descending=True)
            best_Bk, kept_Bk = best_Bk[:, : self.k], kept_Bk[:, : self.k]
            scores_Bk = torch.cat([scores_Bk, scores_BC.gather(1, where_Bk)], 1).gather(1, kept_Bk)
        return (-best_Bk).remainder(len(self.gallery)), scores_Bk

    def candidates(self, rows_B: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
        """The gallery indices with the highest quick scores, and the lowest of these, for each of the queries."""
        block = self.queries.block(rows_B)
        scores_BC = torch.empty(len(rows_B), 0)
        indices_BC = torch.empty(len(rows_B), 0, dtype=torch.int64)
        for columns, near in self.blocks:
            new_BG = block.scores(near)
            if self.own:
                inside = torch.nonzero((rows_B >= columns.start) & (rows_B < columns.stop)).flatten()
                new_BG[inside, rows_B[inside] - columns.start] = -torch.inf
            top_scores, top_indices = _top(new_BG, min(wanted, new_BG.shape[1]))
            joined_BC = torch.cat([scores_BC, top_scores], 1)
            scores_BC, kept = joined_BC.topk(min(wanted, joined_BC.shape[1]))
            indices_BC = torch.cat([indices_BC, top_indices + columns.start], 1).gather(1, kept)
        return indices_BC, scores_BC[:, -1]


def _highest(keys_BC: Tensor, k: int) -> Tensor:
    """The k highest keys of each row in any order; NumPy finds them with vector instructions, in place."""
    if keys_BC.device.type != "cpu":
        return keys_BC.topk(k).values
    width = keys_BC.shape[1]
    in_parallel(keys_BC, lambda part: part.partition(width - k, axis=1))
    return keys_BC[:, width - k :]


def _top(scores_BG: Tensor, k: int, slots: int = 32) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row, by way of the highest of every 32 columns when that saves looking at most."""
    rows, width = scores_BG.shape
    groups = width // slots
    if width % slots or k * 4 > groups:
        return scores_BG.topk(k)
    scores_BSW = scores_BG.view(rows, slots, groups)
    groups_Bk = scores_BSW.amax(1).topk(k).indices
    inside_B = scores_BSW.gather(2, groups_Bk[:, None].expand(rows, slots, k)).flatten(1)
    best_scores, where = inside_B.topk(k)
    return best_scores, where // k * groups + groups_Bk.gather(1, where % k)
