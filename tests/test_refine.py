"""Batches for message passing at test time, against the paper's definitions written with Python lists and sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN, OPTICS, AgglomerativeClustering, Birch, KMeans, SpectralClustering

from intrabatch import refine as module
from intrabatch.errors import ConfigError, EvaluationError
from intrabatch.messages import MessagePassing
from intrabatch.refine import CONSTRUCTIONS, cluster_labels, neighbourhoods, refine

DIM = 8
Vectors = NDArray[np.float32]


def clumps(num_images: int = 60, spread: float = 0.35, seed: int = 0) -> Vectors:
    """Images of six classes, in no order."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(6, DIM))
    vectors = centres[rng.integers(6, size=num_images)] + spread * rng.normal(size=(num_images, DIM))
    return (vectors * rng.uniform(0.5, 2, (num_images, 1))).astype(np.float32)


def ranking(vectors: Vectors, of: Vectors, without: int | None = None) -> list[int]:
    """All images but `without`, nearest to `of` by cosine first."""
    doubles = vectors.astype(np.float64)
    cosines = (doubles @ of.astype(np.float64) / np.sqrt((doubles**2).sum(1))).tolist()
    return sorted((j for j in range(len(vectors)) if j != without), key=lambda j: -cosines[j])


def rankings(vectors: Vectors) -> list[list[int]]:
    return [ranking(vectors, vectors[i], without=i) for i in range(len(vectors))]


def slow_k_reciprocal(ranked: list[list[int]], q: int, size: int, k1: int) -> tuple[list[int], bool]:
    """The batch of image q, and whether a member from beyond its k1 nearest has come in."""

    def near(i: int, k: int) -> set[int]:
        return {i, *ranked[i][:k]}

    def reciprocal(i: int, k: int) -> set[int]:
        return {j for j in near(i, k) if i in near(j, k)}

    inside = reciprocal(q, k1)
    expanded = set(inside)
    for g in inside:
        theirs = reciprocal(g, round(k1 / 2))
        if len(theirs & inside) > 2 / 3 * len(theirs):
            expanded |= theirs
    mates = [j for j in ranked[q] if j in expanded] + [j for j in ranked[q] if j not in expanded]
    return [q, *mates[: size - 1]], bool(set(mates[: size - 1]) & expanded - near(q, k1))


@pytest.mark.parametrize("spread", [0.35, 1.0])
@pytest.mark.parametrize(("size", "k1"), [(7, 30), (7, 6), (5, 7), (9, 3), (12, 6), (20, 9)])
def test_k_reciprocal_is_the_papers(spread: float, size: int, k1: int) -> None:
    vectors = clumps(spread=spread)
    ranked = rankings(vectors)
    expected = [slow_k_reciprocal(ranked, q, size, k1)[0] for q in range(len(vectors))]
    assert neighbourhoods(vectors, "k-reciprocal", size, k1=k1).tolist() == expected


def test_the_oracle_sees_members_from_far_and_choices_unlike_plain_neighbours() -> None:
    vectors = clumps()
    assert sum(slow_k_reciprocal(rankings(vectors), q, 12, 6)[1] for q in range(len(vectors))) > 3
    differ = neighbourhoods(vectors, "k-reciprocal", 7, k1=6) != neighbourhoods(vectors, "nearest", 7)
    assert 0.05 < differ.any(1).mean() < 0.95


@pytest.mark.parametrize(("size", "k1"), [(7, 6), (12, 6)])
def test_k_reciprocal_of_queries_is_as_if_each_had_joined_the_gallery(size: int, k1: int) -> None:
    gallery, queries = clumps(), clumps(9, spread=0.5, seed=1)
    found = neighbourhoods(queries, "k-reciprocal", size, gallery=gallery, k1=k1)
    ranked, own = rankings(gallery), len(gallery)
    short = [{i, *ranked[i][: round(k1 / 2)]} for i in range(len(gallery))]
    short_sets = [{i for i in short[j] if j in short[i]} for j in range(len(gallery))]
    for q, query in enumerate(queries):
        joined = np.vstack([gallery, query])
        order = ranking(gallery, query)
        inside = {j for j in order[:k1] if own in ranking(joined, joined[j], without=j)[:k1]}
        expanded = set(inside)
        for j in inside:
            if len(short_sets[j] & inside) > 2 / 3 * len(short_sets[j]):
                expanded |= short_sets[j]
        mates = [j for j in order if j in expanded] + [j for j in order if j not in expanded]
        assert found[q].tolist() == [q, *mates[: size - 1]]


@pytest.mark.parametrize("how", CONSTRUCTIONS)
def test_a_gallery_of_two_or_one(how: str) -> None:
    gallery = clumps(2)
    assert (np.sort(neighbourhoods(clumps(5, seed=1), how, 3, gallery=gallery)[:, 1:]) == [0, 1]).all()
    assert (neighbourhoods(clumps(5, seed=1), how, 2, gallery=gallery[:1])[:, 1] == 0).all()


@pytest.mark.parametrize("how", ["k-means", "ward", "spectral", "birch", "dbscan", "optics"])
@pytest.mark.parametrize("of_queries", [False, True])
def test_clusters_come_first_then_the_nearest_others(how: str, of_queries: bool) -> None:
    gallery = clumps()
    vectors = clumps(9, spread=0.5, seed=1) if of_queries else gallery
    labels = cluster_labels(gallery / np.linalg.norm(gallery, axis=1, keepdims=True), how, clusters=9)
    found = neighbourhoods(vectors, how, 7, gallery=gallery if of_queries else None, clusters=9)
    for q in range(len(vectors)):
        order = ranking(gallery, vectors[q], without=None if of_queries else q)
        label = labels[order[0]] if of_queries else labels[q]
        own = [j for j in order if labels[j] == label != -1]
        others = [j for j in order if j not in own]
        assert found[q].tolist() == [q, *(own + others)[:6]]


@pytest.mark.parametrize("how", CONSTRUCTIONS)
@pytest.mark.parametrize("num_images", [5, 6, 7])
def test_few_images(how: str, num_images: int) -> None:
    for clusters in (None, 2, num_images):
        batches = neighbourhoods(clumps(num_images), how, num_images, clusters=clusters)
        assert (np.sort(batches) == np.arange(num_images)).all()


@pytest.mark.parametrize("how", CONSTRUCTIONS)
def test_contract_of_constructions(how: str) -> None:
    vectors = clumps(40)
    batches = neighbourhoods(vectors, how, 7)
    assert batches.shape == (40, 7) and batches.dtype == np.int64
    assert (batches[:, 0] == np.arange(40)).all() and batches.min() == 0 and batches.max() == 39
    assert all(len(set(batch)) == 7 for batch in batches.tolist())
    assert (batches == neighbourhoods(vectors, how, 7)).all()
    assert (np.sort(neighbourhoods(vectors, how, 40)) == np.arange(40)).all()

    queries = neighbourhoods(vectors[:5], how, 7, gallery=vectors[5:])
    assert (
        queries.shape == (5, 7)
        and queries.max() < 35
        and all(len(set(mates)) == 6 for mates in queries[:, 1:].tolist())
    )
    alone = [neighbourhoods(vectors[[q]], how, 7, gallery=vectors[5:])[0, 1:] for q in range(5)]
    assert (queries[:, 1:] == alone).all()


@pytest.mark.parametrize("how", CONSTRUCTIONS)
def test_copies_of_an_image_are_its_mates(how: str) -> None:
    vectors = np.repeat(clumps(8, spread=2.0), 3, axis=0)
    batches = neighbourhoods(vectors, how, 3, k1=5)
    assert (batches // 3 == batches[:, :1] // 3).all()


@pytest.mark.filterwarnings("ignore:Number of subclusters")  # of Birch: so few here that it joins none of them
@pytest.mark.parametrize(
    ("how", "theirs"),
    [
        ("k-means", KMeans(9, n_init=1, random_state=3)),
        ("ward", AgglomerativeClustering(n_clusters=9, linkage="ward")),
        ("spectral", SpectralClustering(9, assign_labels="cluster_qr", random_state=3)),
        ("birch", Birch(n_clusters=9)),
        ("dbscan", DBSCAN(eps=0.9, min_samples=5)),
        ("optics", OPTICS(max_eps=0.9, min_samples=5)),
    ],
)
def test_clusters_are_those_of_scikit_learn(how: str, theirs: Any) -> None:
    units = clumps(200, spread=0.15) / np.linalg.norm(clumps(200, spread=0.15), axis=1, keepdims=True)
    expected = theirs.fit_predict(units)
    assert len(set(expected.tolist())) > 1
    assert (cluster_labels(units, how, 9, seed=3) == expected).all()


@pytest.mark.parametrize(("num_images", "expected"), [(20, 5), (6, 2), (3599, 899), (3600, 900), (5924, 900)])
def test_there_are_the_papers_900_clusters_or_a_quarter_of_the_images(num_images: int, expected: int) -> None:
    assert module._num_clusters(None, num_images) == expected


def test_noise_is_nobodys() -> None:
    apart = np.eye(DIM, dtype=np.float32)
    assert (cluster_labels(apart, "dbscan", 0) == -1).all() and (cluster_labels(apart, "optics", 0) == -1).all()


def test_blocks_shrink_as_batches_grow() -> None:
    assert [block.stop for block in module._blocks(1000, 7)][:1] == [512]
    assert max(block.stop - block.start for block in module._blocks(1000, 5000)) * 5000**2 <= module.HELD


@pytest.mark.parametrize("block_rows", [7, 512])
@pytest.mark.parametrize("of_queries", [False, True])
def test_refined_is_the_first_node_after_the_last_step(
    monkeypatch: pytest.MonkeyPatch, block_rows: int, of_queries: bool
) -> None:
    monkeypatch.setattr(module, "BLOCK_ROWS", block_rows)
    torch.manual_seed(0)
    passing = MessagePassing(DIM, steps=2, heads=2)
    vectors, gallery = clumps(20), clumps(30, seed=3) if of_queries else None
    before = vectors.copy()
    refined = refine(vectors, passing, "k-reciprocal", 5, gallery=gallery)
    batches = neighbourhoods(vectors, "k-reciprocal", 5, gallery=gallery)
    assert passing.training and all(parameter.grad is None for parameter in passing.parameters())
    passing.eval()
    for row, batch in enumerate(batches):
        mates = (vectors if gallery is None else gallery)[batch[1:]]
        nodes = torch.from_numpy(np.vstack([vectors[row], mates]))
        torch.testing.assert_close(torch.from_numpy(refined[row]), passing(nodes)[-1][0].detach(), rtol=1e-4, atol=1e-5)
    assert (vectors == before).all() and refined.dtype == np.float32


def test_refined_features_go_with_their_images() -> None:
    torch.manual_seed(0)
    passing, vectors = MessagePassing(DIM, heads=2).eval(), clumps(30)
    order = np.random.default_rng(0).permutation(30)
    np.testing.assert_allclose(refine(vectors[order], passing), refine(vectors, passing)[order], atol=1e-5)
    assert not passing.training


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"how": "k-reciprocl"}, "refine: unknown construction 'k-reciprocl'; did you mean 'k-reciprocal'?"),
        ({"size": 21}, "refine: size is 21; expected 2 to 20, an image and all that could be its mates"),
        ({"size": 1}, "refine: size is 1; expected 2 to 20"),
        ({"size": 8, "gallery": clumps(6)}, "refine: size is 8; expected 2 to 7"),
        ({"k1": 0}, "refine: k1 is 0; expected at least 1 neighbour"),
        ({"how": "ward", "clusters": 21}, "refine: 21 clusters of 20 images; expected 2 to 20"),
        ({"how": "k-means", "clusters": 1}, "refine: 1 clusters of 20 images; expected 2 to 20"),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        neighbourhoods(clumps(20), **wrong)
    assert message in str(error.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_numbers(value: float) -> None:
    vectors = clumps(20)
    vectors[3, 2] = value
    for arguments in ({"vectors_ND": vectors}, {"vectors_ND": clumps(5), "gallery": vectors}):
        with pytest.raises(EvaluationError, match="1 of 20 hold NaN or infinite numbers, the first in row 3"):
            neighbourhoods(**arguments)  # type: ignore[arg-type]
