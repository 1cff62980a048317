"""k-means against scikit-learn and against its own definition; the recipe stamped on every figure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from slow_reference import KINDS, vectors_of

from intrabatch import clustering
from intrabatch.clustering import cluster, nmi_figures
from intrabatch.errors import EvaluationError

LABELS = np.arange(240) % 40
VECTORS = vectors_of("clustered", LABELS)


def slow_squared_distances(vectors: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.float64]:
    return ((vectors[:, None].astype(np.float64) - centres.astype(np.float64)) ** 2).sum(-1)


@pytest.mark.parametrize("recipe", ["greedy", "random"])
@pytest.mark.parametrize("kind", ["random", "clustered", "duplicated"])
def test_every_vector_is_with_its_nearest_centre_and_every_centre_is_a_mean(kind: str, recipe: str) -> None:
    vectors = vectors_of(kind, LABELS)
    found = cluster(vectors, 20, recipe=recipe, seed=3)
    distances = slow_squared_distances(vectors, found.centres_KD)
    own = distances[np.arange(240), found.assignments]
    assert own == pytest.approx(distances.min(1), abs=1e-5)
    assert found.inertia == pytest.approx(own.sum(), rel=1e-5)
    for number in np.unique(found.assignments):
        assert found.centres_KD[number] == pytest.approx(vectors[found.assignments == number].mean(0), abs=1e-5)


@pytest.mark.parametrize("num_clusters", [5, 40, 100])
def test_as_good_as_scikit_learn(num_clusters: int) -> None:
    theirs = [KMeans(num_clusters, n_init=1, random_state=seed).fit(VECTORS).inertia_ for seed in range(8)]
    ours = [cluster(VECTORS, num_clusters, seed=seed).inertia for seed in range(8)]
    assert min(theirs) * 0.95 < np.mean(ours) < max(theirs) * 1.02
    assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.05)


@pytest.mark.parametrize("recipe", ["greedy", "random"])
@pytest.mark.parametrize(("factor", "offset"), [(3e18, 0), (1e30, 0), (1e-25, 0), (1, 1e3), (1, 1e4)])
def test_scale_and_offset_change_nothing(factor: float, offset: float, recipe: str) -> None:
    labels = np.arange(240) % 12
    vectors = 5 * np.random.default_rng(0).normal(size=(12, 8))[labels] + 0.3 * vectors_of("random", labels)
    plain, found = cluster(vectors, 12, recipe=recipe), cluster(vectors * factor + offset, 12, recipe=recipe)
    assert np.array_equal(found.assignments, plain.assignments)
    assert found.inertia == pytest.approx(plain.inertia * factor**2, rel=1e-2)
    for number in np.unique(found.assignments):
        mean = (vectors * factor + offset)[found.assignments == number].mean(0)
        assert found.centres_KD[number] == pytest.approx(mean, rel=1e-5, abs=1e-5 * factor)


def test_directions_in_a_narrow_cone_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 20
    vectors = 1 + 1e-4 * (5 * rng.normal(size=(20, 16))[labels] + 0.1 * rng.normal(size=(200, 16)))
    assert nmi_figures(vectors, labels).summary()["nmi"] == pytest.approx(1)


def test_greedy_seeds_are_better_than_random_ones() -> None:
    greedy = [cluster(VECTORS, 40, seed=seed).inertia for seed in range(4)]
    random = [cluster(VECTORS, 40, seed=seed, recipe="random").inertia for seed in range(4)]
    assert max(greedy) < min(random)


def test_a_late_proposal_is_still_a_draw_from_the_weights_of_that_moment() -> None:
    before = torch.tensor([1.0, 2.0, 3.0, 0.0, 4.0])
    now = torch.tensor([1.0, 0.5, 3.0, 0.0, 0.0])
    proposals, bars = clustering._proposals(before, 100_000, torch.Generator().manual_seed(0))
    assert torch.bincount(proposals, minlength=5) / 100_000 == pytest.approx((before / 10).tolist(), abs=0.01)
    counted = proposals[now[proposals] > bars]
    assert torch.bincount(counted, minlength=5) / len(counted) == pytest.approx((now / 4.5).tolist(), abs=0.01)


def test_choosing_more_often_than_proposals_last_changes_nothing() -> None:
    """A GPU does not ask whether they last: a choice that it should not have made must leave all as it was."""
    data = clustering._Data.of(torch.from_numpy(VECTORS))
    seedings = [clustering._Seeding.begun(data, torch.tensor([5]), 40, trials=4) for _ in range(2)]
    proposals, bars = clustering._proposals(seedings[0].nearest_N, 40, torch.Generator().manual_seed(0))
    for seeding in seedings:
        seeding.propose(proposals.clone(), bars.clone())
    seedings[0].choose(39)
    chosen = [bool(seedings[1].choose_one()) for _ in range(39)]
    num_chosen = int(seedings[0].num_chosen_1)
    assert 2 < num_chosen < 11
    assert chosen == [True] * (num_chosen - 1) + [False] * (40 - num_chosen)
    assert int(seedings[1].num_chosen_1) == num_chosen
    assert torch.equal(seedings[0].chosen_K[:num_chosen], seedings[1].chosen_K[:num_chosen])
    assert torch.equal(seedings[0].nearest_N, seedings[1].nearest_N)


@pytest.mark.parametrize("size", [8, 40, 200])
def test_greedy_seeds_equal_a_plain_loop(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same proposals, used one by one as the definition says."""
    monkeypatch.setattr(clustering, "HELD", size * len(VECTORS))
    found = clustering._greedy_seeds(
        clustering._Data.of(torch.from_numpy(VECTORS)), 30, torch.Generator().manual_seed(4)
    ).tolist()
    assert found == slow_greedy_seeds(VECTORS, 30, size, torch.Generator().manual_seed(4))


def slow_greedy_seeds(vectors: NDArray[np.float32], k: int, largest: int, generator: torch.Generator) -> list[int]:
    pairs = slow_squared_distances(vectors, vectors)
    trials = 2 + int(np.log(k))
    chosen = [int(torch.randint(len(vectors), (1,), generator=generator))]
    while len(chosen) < k:
        before = pairs[chosen].min(0)
        size = max(2 * trials, min(max(2 * trials, largest), 32 * len(chosen)))
        draws, chances = torch.rand(2, size, generator=generator, dtype=torch.float64).numpy()
        waiting = [
            (int(np.searchsorted(before.cumsum(), draw * before.sum())), chance)
            for draw, chance in zip(draws, chances, strict=True)
        ]
        while len(chosen) < k:
            now = pairs[chosen].min(0)
            counting = [(image, chance) for image, chance in waiting if now[image] > chance * before[image]][:trials]
            if len(counting) < trials:
                break
            best = min(counting, key=lambda pair: np.minimum(now, pairs[pair[0]]).sum())[0]
            chosen.append(best)
            for used in counting:
                waiting.remove(used)
    return chosen


def test_the_seed_decides() -> None:
    first, again, other = (cluster(VECTORS, 40, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.assignments, again.assignments)
    assert not np.array_equal(first.assignments, other.assignments)


def test_blocks_of_any_size_assign_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cluster(VECTORS, 40, recipe="random")
    monkeypatch.setattr(clustering, "HELD", 400)
    assert np.array_equal(cluster(VECTORS, 40, recipe="random").assignments, whole.assignments)


def test_restarts_keep_the_best() -> None:
    singles = [cluster(VECTORS, 40, recipe="random", seed=seed).inertia for seed in range(4)]
    best = cluster(VECTORS, 40, recipe="random", restarts=8)
    assert best.inertia < np.mean(singles)
    assert best.recipe == "k-means, k = 40, random images as seeds, best of 8"


@pytest.mark.parametrize("recipe", ["greedy", "random"])
def test_more_clusters_than_different_vectors(recipe: str) -> None:
    vectors = np.repeat(np.eye(4), 5, axis=0)
    found = cluster(vectors, 7, recipe=recipe)
    assert found.inertia == pytest.approx(0, abs=1e-6)
    assert len(np.unique(found.assignments)) >= 4
    assert cluster(vectors, 20, recipe=recipe).inertia == pytest.approx(0, abs=1e-6)
    assert cluster(vectors, 1, recipe=recipe).assignments.tolist() == [0] * 20


def test_an_empty_cluster_starts_again_from_the_farthest_vector() -> None:
    vectors = torch.tensor([[0.0, 0], [0, 1], [9, 0], [0, 2]])
    centres = torch.tensor([[0.0, 0], [50, 50]])
    data = clustering._Data.of(vectors)
    moved = clustering._means(data, centres, *clustering._assigned(data, centres))
    assert moved.tolist() == [[0, 1], [9, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k = 0 clusters asked of 240 vectors; expected 1 to their number"),
        ({"k": 2.5}, "k = 2.5 clusters asked of 240 vectors; expected a whole number, 1 to their number"),
        ({"k": 241}, "k = 241 clusters asked of 240 vectors"),
        ({"recipe": "greedyy"}, "unknown k-means recipe 'greedyy'; did you mean 'greedy'?"),
        ({"restarts": 0}, "k-means with 0 restarts of 300 iterations; expected 1 or more"),
        ({"max_iterations": 0}, "k-means with 1 restarts of 0 iterations; expected 1 or more"),
    ],
)
def test_each_mistake_has_its_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        cluster(VECTORS, **({"k": 5} | options))
    assert message in str(caught.value)


def test_figures_carry_their_recipe_and_their_spread() -> None:
    found = nmi_figures(VECTORS, LABELS, seeds=(0, 1, 2))
    expected = [
        normalized_mutual_info_score(LABELS, cluster(unit(VECTORS), 40, seed=seed).assignments) for seed in (0, 1, 2)
    ]
    assert found.values["nmi"] == pytest.approx(expected)
    summary = found.summary()
    assert set(summary) == {"nmi", "ami", "ari", "nmi-spread"}
    assert summary["nmi"] == pytest.approx(np.mean(expected))
    assert summary["nmi-spread"] == pytest.approx(max(expected) - min(expected))
    assert found.recipe == (
        "k-means, k = 40, greedy k-means++ seeds, best of 1; unit vectors; seeds 0, 1, 2; NMI by the arithmetic mean"
    )


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    long = vectors.astype(np.float64)
    return (long / np.sqrt((long**2).sum(1, keepdims=True))).astype(np.float32)


def test_perfect_classes_have_perfect_clusters() -> None:
    vectors = np.eye(6)[np.arange(30) % 6]
    assert nmi_figures(vectors, np.arange(30) % 6).summary() == pytest.approx({"nmi": 1, "ami": 1, "ari": 1})


def test_one_seed_has_no_spread() -> None:
    assert "nmi-spread" not in nmi_figures(VECTORS, LABELS, seeds=(7,)).summary()
    assert "nmi-spread" in nmi_figures(VECTORS, LABELS, seeds=(7, 8)).summary()


@pytest.mark.parametrize("kind", KINDS)
def test_awkward_vectors_still_cluster(kind: str) -> None:
    values = nmi_figures(vectors_of(kind, LABELS), LABELS, metric="euclidean", recipe="random").values
    assert 0 <= values["nmi"][0] <= 1


def test_labels_must_fit() -> None:
    with pytest.raises(EvaluationError, match=r"labels have shape \(7,\) for 240 vectors"):
        nmi_figures(VECTORS, LABELS[:7])
    with pytest.raises(EvaluationError, match="at least one seed"):
        nmi_figures(VECTORS, LABELS, seeds=())
