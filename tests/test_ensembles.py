"""Ensembles, seeds and comparisons: against arithmetic done by hand, and folders that are gone on with."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import tiny_config, tiny_images

from intrabatch import ensembles, settings
from intrabatch.data.image_set import ImageSet
from intrabatch.ensembles import (
    compare_runs,
    comparison_lines,
    ensemble_vectors,
    evaluate_ensemble,
    seed_figures,
    student_run,
    train_ensemble,
    train_seeds,
    trained_run,
)
from intrabatch.errors import ConfigError, EvaluationError, RunError
from intrabatch.evaluate import measure_vectors
from intrabatch.progress import Quiet
from intrabatch.refine import refine
from intrabatch.run import Run
from intrabatch.train import train
from intrabatch.trained import Trained
from intrabatch.workflow import figure_lines

ONE_EPOCH = tiny_config("train.epochs=1", "loss.messages=0")
FIGURES = {"recall@1", "recall@8", "map@r", "nmi"}


@pytest.fixture(autouse=True)
def synthetic(monkeypatch):
    """The word "synthetic" as data: what runs of these tests were trained on."""
    monkeypatch.setattr("intrabatch.trained.load_images", loaded)
    monkeypatch.setattr(ensembles, "load_images", loaded)


def loaded(config):
    return tiny_images(seed=1 if config.path == "others" else 0)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    out = tmp_path_factory.mktemp("seeds")
    return out, train_seeds(ONE_EPOCH, tiny_images(), out, 3)


def folders(out, num=3):
    return [out / f"seed{seed}" for seed in range(num)]


def test_an_ensemble_puts_unit_vectors_side_by_side():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(5, dim)).astype(np.float32) for dim in (3, 4)]
    parts = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    found = ensemble_vectors(parts)
    for row, (left, right) in enumerate(zip(*parts, strict=True)):
        assert np.allclose(found[row], np.array([*left, *right]) / math.sqrt(2))
    cosines = sum(part @ part.T for part in parts) / 2
    assert np.allclose(found @ found.T, cosines, atol=1e-6)


def test_seeds_are_runs_in_folders_of_their_own(seeds):
    out, _ = seeds
    runs = [Run.open(path) for path in folders(out)]
    assert [run.config.train.seed for run in runs] == [0, 1, 2]
    weights = [run.load_weights()["embedder.project.weight"] for run in runs]
    assert not (weights[0] == weights[1]).all()


def test_mean_deviation_and_interval_of_every_figure(seeds):
    out, figures = seeds
    rows = [json.loads((path / "metrics.json").read_text())["metrics"] for path in folders(out)]
    assert figures["rows"] == [
        {"seed": seed, "run": str(path), "metrics": row}
        for seed, (path, row) in enumerate(zip(folders(out), rows, strict=True))
    ]
    for name in FIGURES:
        values = [row[name] for row in rows]
        mean = sum(values) / 3
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
        half = 4.302652729911275 * deviation / math.sqrt(3)  # Student's t, 2 degrees of freedom, 97.5 %
        assert figures["metrics"][name] == pytest.approx(mean)
        assert figures["deviations"][name] == pytest.approx(deviation)
        assert figures["intervals"][name] == pytest.approx([mean - half, mean + half])
    assert figures["protocol"]["seed"] == [0, 1, 2] and figures["protocol"]["epoch"] == 1
    assert figures["protocol"]["interval"] == "95 % t over 3 seeds"
    assert json.loads((out / "seeds.json").read_text()) == figures


def test_figures_of_seeds_can_be_printed_like_those_of_a_run(seeds):
    out, figures = seeds
    assert figure_lines(figures)[-1] == f"run: {out}"


def test_an_ensemble_of_a_run_and_itself_is_that_run(seeds):
    path = folders(seeds[0])[0]
    alone = Run.open(path).read_json("metrics.json")["metrics"]
    both = evaluate_ensemble([path, path])
    assert both["metrics"] == pytest.approx(alone, abs=1e-6)
    assert both["protocol"]["embedding_size"] == 2 * ONE_EPOCH.model.dim


def test_an_ensembles_figures_are_those_of_the_joined_vectors(seeds):
    paths = folders(seeds[0])
    images = tiny_images().only("test")
    vectors = np.hstack([Trained.open(path, "cpu").vectors(images) for path in paths])
    right = 0
    for row, vector in enumerate(vectors):
        scores = vectors @ vector
        scores[row] = -np.inf
        right += images.labels[scores.argmax()] == images.labels[row]
    found = evaluate_ensemble(paths)
    assert found["metrics"]["recall@1"] == pytest.approx(right / len(images))
    protocol = found["protocol"]
    assert protocol["ensemble_of"] == 3 and protocol["seed"] == [0, 1, 2] and protocol["split"] == "test"
    assert found["run"] == ", ".join(map(str, paths))


def test_refined_ensembles_and_comparisons(tmp_path, monkeypatch):
    """--refine counts for several runs too: each refines its own vectors, which then stand side by side."""
    config = tiny_config("train.epochs=1")
    paths = [train(replace(config, train=replace(config.train, seed=s)), tiny_images(), tmp_path / str(s)).path
             for s in (0, 1)]  # fmt: skip

    def refining(config):
        return settings.override(config, ["evaluation.refine=nearest", "evaluation.refine_size=3"])

    images, joined, seen = tiny_images().only("test"), [], []
    for path in paths:
        raw = Trained.open(path, "cpu").vectors(images, unit=False)
        passing = Trained.open(path, "cpu").network.loss.passing
        refined = refine(raw, passing, "nearest", 3)
        joined.append(refined / np.linalg.norm(refined, axis=1, keepdims=True))
    expected = measure_vectors(np.hstack(joined), images.labels, images.roles, config.evaluation)

    def measured(vectors, *others):
        seen.append(vectors)
        return measure_vectors(vectors, *others)

    monkeypatch.setattr(ensembles, "measure_vectors", measured)
    found = evaluate_ensemble(paths, change=refining)
    assert np.allclose(seen[0], np.hstack(joined) / math.sqrt(2), atol=1e-5)
    assert found["metrics"] == pytest.approx(expected["metrics"]) and found["protocol"]["refinement"] == "nearest"
    alone = measure_vectors(joined[1], images.labels, images.roles, config.evaluation)["metrics"]
    compared = compare_runs(*paths, change=refining)
    assert compared["comparison"]["map@r"]["second"] == pytest.approx(alone["map@r"])
    assert compared["protocol"]["refinement"] == "nearest"


def test_training_an_ensemble_goes_on_from_seeds_that_are_there(seeds, tmp_path, monkeypatch):
    for path in folders(seeds[0], 2):
        shutil.copytree(path, tmp_path / path.name)
    monkeypatch.setattr(ensembles, "train", no_training)
    figures = train_ensemble(ONE_EPOCH, tiny_images(), tmp_path, 2)
    assert figures["metrics"] == evaluate_ensemble(folders(tmp_path, 2))["metrics"]
    assert [row["seed"] for row in figures["rows"]] == [0, 1]
    assert json.loads((tmp_path / "ensemble.json").read_text()) == figures


def no_training(*_):
    raise AssertionError("a finished seed was trained again")


class Killed(Exception):
    pass


class KilledAfterAnEpoch(Quiet):
    def epoch(self, record):
        raise Killed


class KilledAtOnce(Quiet):
    def say(self, text):
        raise Killed


@pytest.mark.parametrize("how", [KilledAfterAnEpoch, KilledAtOnce])
def test_an_interrupted_seed_is_gone_on_with(seeds, tmp_path, how):
    with pytest.raises(Killed):
        trained_run(ONE_EPOCH, tiny_images(), tmp_path / "run", how())
    run = trained_run(ONE_EPOCH, tiny_images(), tmp_path / "run")
    expected = Run.open(folders(seeds[0])[0]).load_weights()
    assert all((tensor == expected[name]).all() for name, tensor in run.load_weights().items())


def test_a_folder_of_other_settings_or_other_things_is_left_alone(seeds, tmp_path):
    with pytest.raises(RunError, match=r"seed0 was trained with model.dim = 16, now 32 is asked for; choose another"):
        train_seeds(settings.override(ONE_EPOCH, ["model.dim=32"]), tiny_images(), seeds[0], 2)
    (tmp_path / "photo.jpg").write_text("mine")
    with pytest.raises(RunError, match=r"is not a run folder: config.yaml is missing"):
        trained_run(ONE_EPOCH, tiny_images(), tmp_path)
    assert (tmp_path / "photo.jpg").exists()


def test_a_student_of_another_teacher_or_lesson_is_left_alone(tmp_path):
    (tmp_path / "teacher.json").write_text(json.dumps({"teacher": "runs/a", "how": "features"}))
    for teacher, how in (("runs/a", "relations"), ("runs/b", "features")):
        said = rf"is a student of runs/a by features, now {teacher} by {how} is asked for; choose another --out"
        with pytest.raises(RunError, match=said):
            student_run(Path(teacher), how, tiny_images(), tmp_path, config=ONE_EPOCH)


def test_a_comparison_is_paired_by_query(seeds):
    first, second = folders(seeds[0])[:2]
    rows = [Run.open(path).read_json("metrics.json")["metrics"] for path in (first, second)]
    figures = compare_runs(first, second)
    for name in ("recall@1", "map@r"):
        found = figures["comparison"][name]
        assert (found["first"], found["second"]) == pytest.approx((rows[0][name], rows[1][name]))
        assert found["difference"]["mean"] == pytest.approx(rows[1][name] - rows[0][name])
        assert found["difference"]["low"] <= found["difference"]["mean"] <= found["difference"]["high"]
    assert figures["protocol"]["seed"] == [0, 1] and figures["runs"] == [str(first), str(second)]
    lines = comparison_lines(figures)
    assert lines[1].startswith("recall@1") and lines[-1] == f"second: {second}"


def test_a_run_is_neither_better_nor_worse_than_itself(seeds):
    path = folders(seeds[0])[0]
    found = compare_runs(path, path)["comparison"]["map@r"]
    assert found["difference"] == {"mean": 0, "low": 0, "high": 0} and found["verdict"] == "undecided"


def test_other_images_and_changed_settings(seeds):
    paths = folders(seeds[0], 2)
    figures = evaluate_ensemble(paths, "others", lambda config: settings.override(config, ["evaluation.recall_at=[3]"]))
    assert "recall@3" in figures["metrics"] and "recall@1" not in figures["metrics"]
    assert figures["protocol"]["classes_seen_in_training"] == 0


def relabelled(images: ImageSet) -> ImageSet:
    """The same images, other classes to test on."""
    return replace(images, splits=np.roll(images.splits, 4))


def test_mistakes_are_one_line_each(seeds, tmp_path):
    path = folders(seeds[0])[0]
    with pytest.raises(EvaluationError, match="1 run given; an ensemble or a comparison needs two or more"):
        evaluate_ensemble([path])
    with pytest.raises(ConfigError, match="--seeds is 1; expected 2 or more"):
        train_seeds(ONE_EPOCH, tiny_images(), tmp_path, 1)
    with pytest.raises(ConfigError, match="--ensemble is 0; expected 2 or more"):
        train_ensemble(ONE_EPOCH, tiny_images(), tmp_path, 0)
    other = train(ONE_EPOCH, relabelled(tiny_images()), tmp_path / "other").path
    for together in (lambda: evaluate_ensemble([path, other]), lambda: compare_runs(path, other)):
        with pytest.raises(EvaluationError, match=r"different test sets: 12 and 12 images, first difference 'class"):
            together()
    with pytest.raises(RunError, match="no run folder"):
        evaluate_ensemble([path, tmp_path / "nothing"])
    with pytest.raises(EvaluationError, match="two or more values"):
        seed_figures([Run.open(path)])
