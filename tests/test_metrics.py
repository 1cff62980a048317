"""Retrieval figures against rankings made by plain loops; agreement of clusterings against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, normalized_mutual_info_score
from slow_reference import KINDS, labels_of, slow_ranking, ties_of, vectors_of

from intrabatch import metrics, scores
from intrabatch.errors import EvaluationError
from intrabatch.metrics import agreement, retrieval_figures

KS = (1, 2, 4, 8)


@pytest.fixture(params=[(16, 1 << 25, 1), (64, 1 << 25, 0.1), (16, 0, 1), (16, 0, 0.1), (2048, 1 << 25, 0)])
def rows_of_a_block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of several sizes; all queries, some or none bounded before they are looked up exactly."""
    rows, held, many = request.param
    monkeypatch.setattr(metrics, "MANY", many)
    monkeypatch.setattr(metrics, "ROWS", rows)
    monkeypatch.setattr(metrics, "HELD", held)
    monkeypatch.setattr(metrics, "LARGEST", 10 * rows)
    monkeypatch.setattr(scores, "LARGEST", 50 * rows)


def slow_figures(
    vectors: NDArray[np.float32],
    labels: NDArray[np.int64],
    roles: NDArray[np.str_],
    metric: str,
    ks: tuple[int, ...],
) -> tuple[list[int], list[dict[str, float]], int]:
    """From the definitions: walk down each query's ranking and count."""
    gallery = [i for i in range(len(labels)) if roles[i] != "query"]
    queries, figures, without_match = [], [], 0
    for query in (i for i in range(len(labels)) if roles[i] != "gallery"):
        ranking, _ = slow_ranking(query, vectors, gallery, metric)
        hits = [labels[other] == labels[query] for other in ranking]
        num_positives = sum(hits)
        if not num_positives:
            without_match += 1
            continue
        found, precisions = 0, []
        for place, hit in enumerate(hits, start=1):
            found += hit
            precisions.append(found / place if hit else 0.0)
        values = {f"recall@{k}": float(any(hits[:k])) for k in ks}
        values["precision@1"] = float(hits[0])
        values["r-precision"] = sum(hits[:num_positives]) / num_positives
        values["map@r"] = sum(precisions[:num_positives]) / num_positives
        values["map"] = sum(precisions) / num_positives
        queries.append(query)
        figures.append(values)
    return queries, figures, without_match


def agree(
    vectors: NDArray[np.float32],
    labels: NDArray[np.int64],
    roles: NDArray[np.str_] | None,
    metric: str,
    ks: tuple[int, ...] = KS,
) -> None:
    found = retrieval_figures(vectors, labels, ks=ks, roles_N=roles, metric=metric)
    every_role = np.full(len(labels), "both") if roles is None else roles
    queries, expected, without_match = slow_figures(vectors, labels, every_role, metric, ks)
    assert found.queries.tolist() == queries
    assert found.labels.tolist() == labels[queries].tolist()
    assert found.num_queries_without_match == without_match
    assert set(found.values) == set(expected[0])
    for name, values in found.values.items():
        assert values == pytest.approx([figures[name] for figures in expected], abs=1e-9), name
        assert found.summary()[name] == pytest.approx(np.mean([figures[name] for figures in expected]), abs=1e-9)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_plain_loops(kind: str, metric: str, rows_of_a_block: None) -> None:
    labels = labels_of(90, 12)
    agree(vectors_of(kind, labels), labels, None, metric)


@pytest.mark.parametrize("kind", KINDS)
def test_queries_look_in_the_gallery(kind: str, rows_of_a_block: None) -> None:
    labels = labels_of(90, 12)
    vectors = vectors_of(kind, labels)
    rng = np.random.default_rng(1)
    agree(vectors, labels, rng.choice(["query", "gallery"], 90), "cosine")
    agree(vectors, labels, rng.choice(["query", "gallery", "both"], 90), "cosine")


awkward = st.tuples(
    st.integers(0, 10_000),
    st.sampled_from([2, 3, 5, 20, 40]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(KINDS),
    st.sampled_from(["cosine", "euclidean"]),
    st.booleans(),
    st.sampled_from([0, 0.2, 1]),
)
"""Seed, images, numbers a vector, kind of vectors, metric, with roles or without, share that counts as many."""


@settings(max_examples=60, deadline=None)
@given(awkward)
def test_awkward_vectors_of_any_number_and_dimension_equal_plain_loops(
    drawn: tuple[int, int, int, str, str, bool, float],
) -> None:
    seed, num, dim, kind, metric, with_roles, many = drawn
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, max(1, num // 4), num)
    roles = None
    if with_roles:
        roles = rng.choice(["query", "gallery", "both"], num)
        roles[:2], labels[:2] = ["query", "gallery"], 0
    if roles is None:
        labels[0] = labels[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "MANY", many)
        agree(vectors_of(kind, labels, seed, dim), labels, roles, metric, (1,))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_opposite_numbers(metric: str) -> None:
    """Scores at their lowest, where float32 rounds tolerances away."""
    only_far = retrieval_figures(np.array([[1.0], [-1.0]]), [0, 0], ks=(1,), metric=metric).summary()
    assert set(only_far.values()) == {1.0}
    first_wrong = retrieval_figures(np.array([[1.0], [1.0], [-1.0], [-1.0]]), [0, 1, 0, 1], ks=(1,), metric=metric)
    assert first_wrong.summary()["recall@1"] == 0


@pytest.mark.parametrize(("offset", "outlier"), [(0, 0), (1e4, 0), (1e5, 0), (0, 1e4), (1e4, 1e4)])
def test_small_distances_beside_large_numbers(offset: float, outlier: float) -> None:
    """An offset leaves distances alone; an image far off blurs what is 1e-6 of it, but not what is 1e-4."""
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 40
    vectors = rng.normal(size=(40, 16))[labels] + 0.1 * rng.normal(size=(200, 16)) + offset
    vectors, labels = np.vstack([vectors, np.full((1, 16), outlier + offset)]), np.append(labels, 40)
    assert retrieval_figures(vectors, labels, metric="euclidean").summary()["map@r"] == 1


def test_quick_scores_are_as_near_as_they_say() -> None:
    """Few long vectors among many short ones, none of them where a regular sample would look."""
    for dim in (1, 2, 3, 8, 64):
        rng = np.random.default_rng(dim)
        vectors = 1e-2 * rng.normal(size=(2000, dim))
        long = np.setdiff1d(np.arange(2000), np.linspace(0, 1999, 256).astype(int))[:30]
        vectors[long] = np.abs(rng.normal(size=(1, dim))) + 0.01 * rng.normal(size=(30, dim))
        given = scores.points(vectors, "euclidean", "cpu")
        block, everything = given.block(slice(None)), slice(None)
        errors = block.scores(block) - given.scores(everything, given, everything)
        assert float(errors.abs().max()) <= given.tolerance(given)


def test_rough_products_do_not_change_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = labels_of(300, 20)
    vectors = vectors_of("clustered", labels)
    exact = retrieval_figures(vectors, labels)
    precise = scores.products
    monkeypatch.setattr(scores, "products", lambda a, b: precise(a, b).bfloat16().float())
    rough = retrieval_figures(vectors, labels)
    for name, values in exact.values.items():
        assert rough.values[name] == pytest.approx(values, abs=1e-6), name


def test_counting_by_sorting_and_by_comparing_is_the_same() -> None:
    scores_BG = torch.randint(0, 9, (30, 50), generator=torch.Generator().manual_seed(0)).float()
    thresholds_BT = torch.arange(-1.0, 10).expand(30, 11).contiguous()
    expected = [[sum(score > bar for score in row) for bar in thresholds_BT[0].tolist()] for row in scores_BG.tolist()]
    assert metrics._counts_by_comparison(scores_BG, thresholds_BT).tolist() == expected
    assert metrics.counts_above(scores_BG, thresholds_BT).tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_exact_ranks_alone_give_the_same(kind: str, rows_of_a_block: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does: no quick scores, every query looked up."""

    def nothing_bounded(_: object, num: int, __: object) -> tuple[dict[str, torch.Tensor], NDArray[np.int64]]:
        return {}, np.arange(num)

    monkeypatch.setattr(metrics, "_bounded_figures", nothing_bounded)
    labels = labels_of(90, 12)
    vectors = vectors_of(kind, labels)
    for metric in ("cosine", "euclidean"):
        agree(vectors, labels, None, metric)
        agree(vectors, labels, np.random.default_rng(2).choice(["query", "gallery", "both"], 90), metric)


def sorted_figures(
    vectors: NDArray[np.float32], labels: NDArray[np.int64], metric: str
) -> dict[str, NDArray[np.float64]]:
    """By sorting all float64 scores of each query with NumPy: quick enough for more images than a block holds."""
    points = vectors.astype(np.float64)
    if metric == "cosine":
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    found: dict[str, list[float]] = {}
    for query, label in enumerate(labels):
        distances = np.sqrt(((points - points[query]) ** 2).sum(1))
        scores = points @ points[query] if metric == "cosine" else -distances
        ties = ties_of(scores, vectors, metric)
        ties[query] = -np.inf
        places = 1 + np.flatnonzero(labels[np.argsort(-ties, kind="stable")[:-1]] == label)
        precisions = np.arange(1, len(places) + 1) / places
        values = {f"recall@{k}": float(places[0] <= k) for k in KS} | {"map": float(precisions.mean())}
        values["r-precision"] = float((places <= len(places)).mean())
        values["map@r"] = float(precisions[places <= len(places)].sum() / len(places))
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("kind", ["random", "duplicated"])
@pytest.mark.parametrize("many", [metrics.MANY, 1])
def test_no_figure_of_any_query_is_off_by_more_than_a_millionth(
    many: float, kind: str, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several blocks and one large class: many ranks that float32 leaves open, unless they are exact at once."""
    monkeypatch.setattr(metrics, "MANY", many)
    labels = np.concatenate([np.zeros(400, np.int64), 1 + np.arange(2100) % 350])
    vectors = vectors_of(kind, labels, dim=32)
    found = retrieval_figures(vectors, labels, ks=KS, metric=metric).values
    for name, values in sorted_figures(vectors, labels, metric).items():
        assert np.abs(found[name] - values).max() <= 1e-6, name


labelled = st.tuples(st.integers(0, 10_000), st.integers(16, 60), st.integers(2, 8), st.sampled_from(KINDS))
"""Seed, number of images, number of classes, kind of vectors: every class has two images or more."""


@settings(max_examples=25, deadline=None)
@given(labelled)
def test_bounds_hold(drawn: tuple[int, int, int, str]) -> None:
    seed, num, num_classes, kind = drawn
    labels = np.arange(num) % num_classes
    values = retrieval_figures(vectors_of(kind, labels, seed), labels, ks=(1, 2, 5)).values
    assert all(((figure >= 0) & (figure <= 1)).all() for figure in values.values())
    assert (values["recall@1"] <= values["recall@2"]).all()
    assert (values["recall@2"] <= values["recall@5"]).all()
    assert np.array_equal(values["precision@1"], values["recall@1"])
    assert (values["map@r"] <= values["r-precision"] + 1e-12).all()
    assert (values["map@r"] <= values["map"] + 1e-12).all()


@settings(max_examples=25, deadline=None)
@given(labelled)
def test_order_and_names_of_classes_change_nothing(drawn: tuple[int, int, int, str]) -> None:
    seed, num, num_classes, _ = drawn
    labels = np.arange(num) % num_classes
    vectors = vectors_of("clustered", labels, seed)
    order = np.random.default_rng(seed).permutation(num)
    names = np.random.default_rng(seed).permutation(1000)[:num_classes]
    before = retrieval_figures(vectors, labels, ks=(1, 3))
    after = retrieval_figures(vectors[order], names[labels][order], ks=(1, 3))
    for name, values in before.values.items():
        assert after.values[name] == pytest.approx(values[order], abs=1e-9), name


@settings(max_examples=20, deadline=None)
@given(labelled)
def test_perfect_embeddings_score_one(drawn: tuple[int, int, int, str]) -> None:
    seed, _, num_classes, _ = drawn
    labels = np.random.default_rng(seed).permutation(np.arange(5 * num_classes) % num_classes)
    vectors = np.eye(num_classes)[labels] + 1e-3 * vectors_of("random", labels, seed, dim=num_classes)
    assert set(retrieval_figures(vectors, labels).summary().values()) == {1.0}


def test_per_class_figures_and_the_hardest_classes() -> None:
    labels = np.repeat([7, 3, 5], 4)
    vectors = vectors_of("clustered", labels, seed=3)
    found = retrieval_figures(vectors, labels)
    of_class = {label: found.values["map@r"][labels == label].mean() for label in (3, 5, 7)}
    assert found.per_class() == pytest.approx(of_class)
    assert [label for label, _ in found.hardest(2)] == sorted(of_class, key=lambda label: of_class[label])[:2]
    assert dict(found.hardest()) == pytest.approx(of_class)
    with pytest.raises(EvaluationError, match=r"unknown figure 'mapr'; did you mean 'map@r'\?"):
        found.per_class("mapr")


GOOD = vectors_of("random", np.arange(8) % 2)
PAIRS = np.arange(8) % 2


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (PAIRS[:7], {}, "labels have shape (7,) for 8 vectors; each vector needs one label"),
        (PAIRS / 2, {}, "labels are of type float64; expected whole numbers"),
        (np.arange(8), {"ks": (1,)}, "none of 8 queries has another image of its class in the gallery"),
        (PAIRS, {"ks": (1, 8)}, "recall at 1, 8 asked for; expected K from 1 to 7"),
        (PAIRS, {"ks": (1.5,)}, "recall at 1.5 asked for; expected K from 1 to 7, in whole numbers"),
        (PAIRS, {"ks": ()}, "recall at no K asked for"),
        (PAIRS, {"ks": (0, 1)}, "expected K from 1 to 7"),
        (PAIRS, {"roles_N": np.full(8, "query")}, "8 queries and 0 gallery images; at least one of each"),
        (PAIRS, {"roles_N": np.full(3, "both")}, "roles have shape (3,) for 8 vectors"),
        (PAIRS, {"roles_N": np.full(8, "gallry")}, "unknown role 'gallry'; did you mean 'gallery'?"),
        (PAIRS, {"metric": "dot"}, "unknown metric 'dot'; choose from: cosine, euclidean"),
    ],
)
def test_each_mistake_has_its_line(labels: NDArray[np.int64], options: dict[str, object], message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        retrieval_figures(GOOD, labels, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_single_image_finds_nothing() -> None:
    with pytest.raises(EvaluationError, match="a single image has no other to find; retrieval needs two or more"):
        retrieval_figures(GOOD[:1], [0])


@pytest.mark.parametrize(("num", "num_classes"), [(60, 5), (400, 40), (50, 1), (20, 20), (1000, 3)])
@pytest.mark.parametrize("noise", [0.0, 0.4, 1.0])
def test_agreement_equals_scikit_learn(num: int, num_classes: int, noise: float) -> None:
    rng = np.random.default_rng(num)
    labels = np.arange(num) % num_classes
    assignments = np.where(rng.random(num) < noise, rng.integers(0, num_classes + 3, num), labels)
    found = agreement(labels, assignments)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(labels, assignments), abs=1e-9)
    assert found["ami"] == pytest.approx(adjusted_mutual_info_score(labels, assignments), abs=1e-9)
    assert found["ari"] == pytest.approx(adjusted_rand_score(labels, assignments), abs=1e-9)


grouped = st.tuples(st.integers(0, 10_000), st.integers(1, 80), st.integers(1, 20), st.integers(1, 20))
"""Seed, number of images, at most so many classes, at most so many clusters."""


@settings(max_examples=60, deadline=None)
@given(grouped)
def test_agreement_goes_by_groups_and_is_at_most_one(drawn: tuple[int, int, int, int]) -> None:
    seed, num, num_classes, num_clusters = drawn
    rng = np.random.default_rng(seed)
    labels, assignments = rng.integers(0, num_classes, num), rng.integers(0, num_clusters, num)
    found = agreement(labels, assignments)
    assert all(value <= 1 for value in found.values())
    assert found["nmi"] >= -1e-12
    assert found["ari"] >= -0.5 - 1e-12
    order, names = rng.permutation(num), rng.permutation(1000)[:num_clusters]
    assert agreement(labels[order], assignments[order]) == pytest.approx(found, abs=1e-9)
    assert agreement(labels, names[assignments]) == pytest.approx(found, abs=1e-9)
    assert agreement(assignments, labels) == pytest.approx(found, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(grouped)
def test_perfect_clusters_agree_fully_and_not_more(drawn: tuple[int, int, int, int]) -> None:
    seed, num, num_classes, _ = drawn
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num)
    found = agreement(labels, rng.permutation(1000)[labels])
    assert all(value <= 1 for value in found.values())
    assert found == pytest.approx({"nmi": 1, "ami": 1, "ari": 1}, abs=1e-9)


def test_agreement_needs_as_many_clusters_as_labels() -> None:
    with pytest.raises(EvaluationError, match="3 labels and 2 assignments; agreement needs one each an image"):
        agreement(np.arange(3), np.arange(2))
