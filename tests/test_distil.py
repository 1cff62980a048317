"""Teacher and student: the lessons against loops from the formulas, and what must hold of a student's run."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import tiny_config, tiny_images

from intrabatch.distil import (
    LESSONS,
    SOFTENING,
    Student,
    distil,
    features_loss,
    is_student,
    predictions_loss,
    relations_loss,
    resume_distil,
    student_config,
)
from intrabatch.errors import ConfigError, DataError, RunError
from intrabatch.model import Network
from intrabatch.progress import Quiet
from intrabatch.run import Run
from intrabatch.train import train
from intrabatch.trained import Trained, restored_network


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    config = tiny_config("train.epochs=1", "messages.steps=2", "messages.head_input=all")
    return train(config, tiny_images(), tmp_path_factory.mktemp("teacher") / "run").path


@pytest.fixture(scope="module")
def students(teacher, tmp_path_factory):
    out = tmp_path_factory.mktemp("students")
    return {how: distil(teacher, how, tiny_images(), out / how, config=two_epochs(teacher)) for how in LESSONS}


def two_epochs(teacher):
    config = student_config(Run.open(teacher).config)
    return replace(config, train=replace(config.train, epochs=2))


def huber(difference):
    return difference**2 / 2 if abs(difference) <= 1 else abs(difference) - 0.5


def slow_predictions(student, teacher):
    total = 0.0
    for own, theirs in zip(student, teacher, strict=True):
        own, theirs = (np.exp(row / SOFTENING) / np.exp(row / SOFTENING).sum() for row in (own, theirs))
        total += sum(q * math.log(q / p) for p, q in zip(own, theirs, strict=True))
    return SOFTENING**2 * total / len(student)


def slow_features(student, teacher):
    return np.mean([huber(own - theirs) for own, theirs in zip(student.ravel(), teacher.ravel(), strict=True)])


def slow_relations(student, teacher):
    num = len(student)
    pairs = [(i, j) for i in range(num) for j in range(i)]
    corners = [(j, i, k) for j in range(num) for i in range(num) for k in range(num)]

    def distances(feats):
        found = [np.linalg.norm(feats[i] - feats[j]) for i, j in pairs]
        return np.array(found) / np.mean(found)

    def angle(feats, j, i, k):
        if j in (i, k):
            return 0.0
        to_i, to_k = feats[i] - feats[j], feats[k] - feats[j]
        return to_i @ to_k / np.linalg.norm(to_i) / np.linalg.norm(to_k)

    far = np.mean([huber(difference) for difference in distances(student) - distances(teacher)])
    turned = np.mean([huber(angle(student, *corner) - angle(teacher, *corner)) for corner in corners])
    return far + 2 * turned


@pytest.mark.parametrize(
    "loss, slow",
    [(predictions_loss, slow_predictions), (features_loss, slow_features), (relations_loss, slow_relations)],
)
def test_lessons_equal_the_formulas(loss, slow):
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(0, 3, (2, 7, 5))
    found = loss(torch.from_numpy(student), torch.from_numpy(teacher))
    assert found.item() == pytest.approx(slow(student, teacher), rel=1e-9)


@pytest.mark.parametrize("how", LESSONS)
def test_a_perfect_student_has_nothing_to_learn_and_gradients_are_finite(how):
    loss = LESSONS[how].loss
    teacher = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    student = teacher.clone()
    student[1] = student[0]  # the same image twice: a distance of zero
    student.requires_grad_(True)
    assert loss(teacher, teacher).item() == pytest.approx(0, abs=1e-6)
    loss(student, teacher).backward()
    assert student.grad.isfinite().all() and student.grad.abs().sum() > 0


def test_relations_ignore_where_features_lie_and_how_large_they_are():
    student, teacher = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(relations_loss(student, teacher), relations_loss(3 * student + 1, teacher), atol=1e-5)


def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(6, 3, 16, 16, generator=generator), torch.tensor([0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize("how", LESSONS)
def test_a_student_is_compared_with_what_the_teacher_makes_of_the_same_crops(teacher, how):
    taught_by = restored_network(Run.open(teacher))
    config = student_config(Run.open(teacher).config)
    network = Network(config, 7)
    student = Student(network, taught_by, how).eval()
    crops, labels = batch()
    parts = student(crops, labels)
    with torch.no_grad():
        embeddings = taught_by.embedder(crops)
        steps = taught_by.loss.passing(embeddings)
        theirs = taught_by.loss.refined.logits(torch.cat(steps, -1)) if how == "predictions" else steps[-1]
        own = network.embedder(crops)
        own = network.loss.auxiliary.logits(own) if how == "predictions" else own
    assert torch.allclose(parts["teacher"], LESSONS[how].loss(own, theirs))
    assert torch.allclose(parts["auxiliary"], network.loss.auxiliary(network.embedder(crops), labels))
    expected = parts["auxiliary"] + LESSONS[how].weight * parts["teacher"]
    assert torch.allclose(student.loss.total(parts), expected)


def test_the_teacher_is_never_trained_nor_saved(teacher):
    taught_by = restored_network(Run.open(teacher))
    before = {name: tensor.clone() for name, tensor in taught_by.state_dict().items()}
    network = Network(student_config(Run.open(teacher).config), 7)
    names = set(network.state_dict())
    student = Student(network, taught_by, "predictions").train()
    assert set(student.state_dict()) == names
    student.loss.total(student(*batch())).backward()
    assert not taught_by.training and all(parameter.grad is None for parameter in taught_by.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in taught_by.state_dict().items())


@pytest.mark.parametrize("how", LESSONS)
def test_a_students_run_is_like_any_other(students, teacher, how):
    run = students[how]
    assert not run.config.loss.messages
    assert {name.partition(".")[0] for name in run.load_weights()} == {"embedder", "loss"}
    assert not any("passing" in name for name in run.load_weights())
    images = tiny_images()
    test = Trained.open(run.path, "cpu").evaluate(images.only("test"), "test")
    figures = run.read_json("metrics.json")
    assert test["metrics"] == pytest.approx(figures["metrics"])
    assert figures["protocol"]["teacher"] == str(teacher) and figures["protocol"]["how"] == how
    assert {"loss/auxiliary", "loss/teacher"} <= set(run.history()[0])


def test_a_student_starts_from_its_own_initial_weights_and_ends_elsewhere_than_without_teacher(
    teacher, students, tmp_path
):
    alone = train(two_epochs(teacher), tiny_images(), tmp_path / "alone")
    untrained = alone.read_json("metrics.json")["untrained"]
    for run in students.values():
        assert run.read_json("metrics.json")["untrained"] == untrained
        weights = safetensors.torch.load_file(run.path / "weights.safetensors")
        assert not torch.equal(weights["embedder.project.weight"], alone.load_weights()["embedder.project.weight"])


class Killed(Exception):
    pass


class KilledAfterAnEpoch(Quiet):
    def epoch(self, record):
        raise Killed


def test_killed_and_resumed_equals_uninterrupted(teacher, students, tmp_path):
    with pytest.raises(Killed):
        distil(teacher, "relations", tiny_images(), tmp_path / "killed", KilledAfterAnEpoch(), two_epochs(teacher))
    resumed = resume_distil(tmp_path / "killed", tiny_images())
    whole = students["relations"].load_weights()
    assert len(resumed.history()) == 2
    assert all(torch.equal(tensor, whole[name]) for name, tensor in resumed.load_weights().items())


def test_mistakes_are_one_line_each(teacher, students, tmp_path):
    images = tiny_images()
    out = tmp_path / "student"
    with pytest.raises(ConfigError, match=r"unknown way to teach 'feature'; did you mean 'features'\?"):
        distil(teacher, "feature", images, out)
    with pytest.raises(ConfigError, match=r"was trained without message passing .* and has nothing to teach"):
        distil(students["features"].path, "features", images, out)
    with pytest.raises(DataError, match=r"7 training classes, the teacher .* 7 others \(first difference: class"):
        distil(teacher, "features", replace(images, splits=np.roll(images.splits, 8)), out)
    config = student_config(Run.open(teacher).config)
    wide = replace(config, model=replace(config.model, dim=32))
    with pytest.raises(ConfigError, match=r"model\.dim is 32, but the teacher's features to imitate have 16 numbers"):
        distil(teacher, "features", images, out, config=wide)
    with pytest.raises(ConfigError, match=r"a student is a bare backbone"):
        distil(teacher, "features", images, out, config=Run.open(teacher).config)
    with pytest.raises(RunError, match="no run folder"):
        distil(tmp_path / "nobody", "features", images, out)
    assert not out.exists()
    with pytest.raises(RunError, match=r"it is no student; go on with: intrabatch train --resume"):
        resume_distil(teacher, images)
    assert not is_student(teacher) and is_student(students["features"].path)


def test_the_run_folder_says_who_taught(students, teacher):
    run = students["features"]
    said = json.loads((run.path / "teacher.json").read_text())
    assert said == {"teacher": str(teacher), "how": "features", "teacher_weight": LESSONS["features"].weight}
