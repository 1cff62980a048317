"""Nearest neighbours against plain loops, on data where orders are easily lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from slow_reference import KINDS, labels_of, slow_ranking, vectors_of

from intrabatch import neighbours, scores
from intrabatch.errors import EvaluationError
from intrabatch.neighbours import nearest


@pytest.fixture(params=["quickly", "exactly"])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of looking; a GPU always looks exactly."""
    monkeypatch.setattr(neighbours, "FEW", 0 if request.param == "quickly" else 256)
    monkeypatch.setattr(neighbours, "ROWS", 16)
    monkeypatch.setattr(neighbours, "COLUMNS", 32)
    monkeypatch.setattr(neighbours, "SPARE", 2)
    monkeypatch.setattr(scores, "LARGEST", 500)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_plain_loops(kind: str, metric: str, small_blocks: None) -> None:
    vectors = vectors_of(kind, labels_of(101, 12))
    found = nearest(vectors, 7, metric=metric)
    for query in range(101):
        indices, expected_scores = slow_ranking(query, vectors, list(range(101)), metric)
        assert found.indices_Nk[query].tolist() == indices[:7]
        assert found.scores_Nk[query] == pytest.approx(expected_scores[:7], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_query_against_gallery(metric: str, small_blocks: None) -> None:
    vectors = vectors_of("duplicated", labels_of(100, 9))
    found = nearest(vectors[:30], 5, gallery_GD=vectors[30:], metric=metric)
    for query in range(30):
        indices, _ = slow_ranking(query, vectors, list(range(30, 100)), metric)
        assert (found.indices_Nk[query] + 30).tolist() == indices[:5]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_every_neighbour_can_be_asked_for(metric: str, small_blocks: None) -> None:
    vectors = vectors_of("random", labels_of(70, 9))
    found = nearest(vectors, 69, metric=metric)
    assert all(sorted([query, *row]) == list(range(70)) for query, row in enumerate(found.indices_Nk.tolist()))


def test_copies_stay_in_and_the_query_itself_does_not() -> None:
    vectors = np.ones((6, 4), dtype=np.float32)
    found = nearest(vectors, 5)
    assert found.indices_Nk.tolist() == [[j for j in range(6) if j != i] for i in range(6)]
    assert nearest(vectors, 2, exclude_self=False).indices_Nk.tolist() == [[0, 1]] * 6
    assert nearest(vectors, 2, gallery_GD=vectors).indices_Nk.tolist() == [[0, 1]] * 6


def test_rough_products_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU in TF32, or a CPU in bfloat16, would do to the quick scores."""
    vectors = vectors_of("clustered", labels_of(400, 20), dim=16)
    exact = nearest(vectors, 10)
    monkeypatch.setattr(neighbours, "FEW", 0)
    precise = scores.products
    monkeypatch.setattr(scores, "products", lambda a, b: precise(a, b).bfloat16().float())
    rough = nearest(vectors, 10)
    assert np.array_equal(exact.indices_Nk, rough.indices_Nk)
    assert exact.scores_Nk == pytest.approx(rough.scores_Nk, abs=1e-7)


def test_kind_of_array_does_not_matter() -> None:
    vectors = vectors_of("random", labels_of(50, 9)).astype(np.float16)
    read_only = vectors.astype(np.float32)
    read_only.flags.writeable = False
    expected = nearest(vectors, 3).indices_Nk
    tensor = torch.from_numpy(vectors).requires_grad_()
    others = [vectors.astype(kind) for kind in (np.float64, np.longdouble, ">f4", ">f8")]
    for other in (*others, tensor, read_only, read_only[:, ::-1], vectors.tolist()):
        assert np.array_equal(nearest(other, 3).indices_Nk, expected)


def test_huge_and_tiny_vectors_keep_their_order() -> None:
    vectors = vectors_of("random", labels_of(60, 9))
    for metric in ("cosine", "euclidean"):
        expected = nearest(vectors, 4, metric=metric).indices_Nk
        for factor in (2.0**-100, 2.0**100):
            assert np.array_equal(nearest(vectors * np.float32(factor), 4, metric=metric).indices_Nk, expected)


def test_groups_find_the_same_as_all_columns() -> None:
    scores_BG = torch.randn(20, 4096, generator=torch.Generator().manual_seed(0))
    values, indices = neighbours._top(scores_BG, 10)
    expected = scores_BG.topk(10)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)


GOOD = np.eye(4, dtype=np.float32)
BROKEN = np.where(np.eye(4) == 1, np.nan, 1).astype(np.float32)


@pytest.mark.parametrize(
    ("vectors", "k", "options", "message"),
    [
        (GOOD, 4, {}, "k = 4 neighbours asked for; expected 1 to 3"),
        (GOOD, 0, {}, "k = 0 neighbours asked for; expected 1 to 3"),
        (GOOD, 2.5, {}, "k = 2.5 neighbours asked for; expected a whole number, 1 to 3"),
        (GOOD[:1], 1, {}, "one vector has no other to be near; expected two or more, or a gallery"),
        (GOOD.astype(object), 1, {}, "vectors are of type object; expected real numbers"),
        (GOOD * 1j, 1, {}, "vectors are of type complex"),
        (torch.eye(3) * 1j, 1, {}, "vectors are of type torch.complex64; expected real numbers"),
        (np.full((4, 4), 1e300, np.longdouble), 1, {}, "hold NaN or infinite numbers"),
        (GOOD, 5, {"gallery_GD": GOOD}, "k = 5 neighbours asked for; expected 1 to 4"),
        (GOOD, 1, {"gallery_GD": GOOD[:2, :2]}, "queries have 4 numbers a vector and the gallery 2"),
        (BROKEN, 1, {}, "vectors: 4 of 4 hold NaN or infinite numbers, the first in row 0"),
        (np.full((4, 4), np.inf), 1, {}, "hold NaN or infinite numbers"),
        (GOOD, 1, {"gallery_GD": BROKEN}, "gallery vectors: 4 of 4 hold NaN"),
        (
            np.diag([1.0, 1.0, 0.0]),
            1,
            {},
            "1 of 3 are zero, the first in row 2; they hold only zeros, which have no direction",
        ),
        (GOOD[0], 1, {}, "vectors have shape (4,); expected (N, D)"),
        (GOOD[:0], 1, {}, "vectors have shape (0, 4)"),
        (GOOD, 1, {"metric": "cosin"}, "unknown metric 'cosin'; did you mean 'cosine'?"),
    ],
)
def test_each_mistake_has_its_line(vectors: np.ndarray, k: int, options: dict[str, object], message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        nearest(vectors, k, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["random", "offset", "outlier"])
def test_copies_are_at_no_distance_both_ways(kind: str, small_blocks: None) -> None:
    vectors = np.tile(vectors_of(kind, labels_of(40, 5)), (2, 1))
    found = nearest(vectors, 1, metric="euclidean")
    assert found.scores_Nk.tolist() == [[0.0]] * 80
    assert nearest(vectors[:40], 1, gallery_GD=vectors, metric="euclidean").scores_Nk.tolist() == [[0.0]] * 40


def test_queries_and_gallery_far_from_each_other_share_a_centre() -> None:
    near, far = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[9000.0, 0.0], [9000.0, 2.0]])
    found = nearest(near, 2, gallery_GD=far, metric="euclidean")
    expected = np.sqrt([[9000**2 + 1, 9000**2 + 1], [9000**2, 9000**2 + 4]])
    assert found.indices_Nk.tolist() == [[0, 1], [0, 1]]
    assert -found.scores_Nk == pytest.approx(expected, rel=1e-7)


def test_zero_vectors_have_distances() -> None:
    found = nearest(np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]), 2, metric="euclidean")
    assert found.indices_Nk[0].tolist() == [2, 1]
    assert found.scores_Nk[0].tolist() == [-1.0, -5.0]
    assert nearest(np.zeros((3, 2)), 1, metric="euclidean").scores_Nk.tolist() == [[0.0]] * 3
