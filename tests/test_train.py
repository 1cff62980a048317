"""Training: what must hold of a run from its first step to a resumed, finished folder."""

import json
import os
import signal
import threading

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import replace, tiny_config, tiny_images

from intrabatch.data.image_set import split_classes, synthetic_images
from intrabatch.errors import ConfigError, DeviceError, NonFiniteError, RunError
from intrabatch.progress import Quiet
from intrabatch.run import Run
from intrabatch.train import RELOADED_AFTER, Interrupted, Training, resume, train
from intrabatch.trained import Trained
from intrabatch.workflow import figure_lines

CPU = torch.device("cpu")


class StopAfter(Quiet):
    """Sends this process a signal after some steps, as Ctrl-C would."""

    def __init__(self, steps, number=signal.SIGINT):
        self.steps, self.number = steps, number

    def step(self, number, read):
        if number == self.steps:
            os.kill(os.getpid(), self.number)


class Killed(Exception):
    pass


class KillAfter(StopAfter):
    """Dies in the middle of an epoch without any chance to save."""

    def step(self, number, read):
        if number == self.steps:
            raise Killed


def weights(run):
    return safetensors.torch.load_file(run.path / "weights.safetensors")


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_run_leaves_everything_in_its_folder(tmp_path, config, images):
    run = train(config, images, tmp_path / "run")
    documents = ["config.yaml", "history.jsonl", "metrics.json", "classes.json", "splits.csv", "environment.json"]
    assert {path.name for path in run.path.iterdir()} == {*documents, "weights.safetensors"}
    again = Run.open(run.path)
    assert again.config == config and again.classes == images.only("train").classes
    history = again.history()
    assert [record["epoch"] for record in history] == [1, 2]
    assert {"loss", "loss/auxiliary", "loss/messages", "learning_rate", "val/recall@1"} <= set(history[0])
    assert history[0]["images_per_second"] > 0 and history[0]["seconds"] > 0
    figures = again.read_json("metrics.json")
    assert {"recall@1", "map@r", "nmi"} <= set(figures["metrics"]) and figures["epoch"] == 2
    assert "recall@1" in figures["untrained"] and figures["protocol"]["classes_seen_in_training"] == 0
    environment = again.read_json("environment.json")
    assert environment["packages"]["torch"] and environment["device"] == "cpu"


def test_training_lowers_the_loss(tmp_path, images):
    run = train(tiny_config("train.epochs=12", "optim.learning_rate=0.003"), images, tmp_path / "run")
    losses = [record["loss"] for record in run.history()]
    assert losses[-1] < 0.7 * losses[0]


def test_the_same_seed_gives_the_same_weights_and_another_does_not(tmp_path, config, images):
    first, second = (train(config, images, tmp_path / name) for name in "ab")
    other = train(tiny_config("train.seed=1"), images, tmp_path / "c")
    assert same(weights(first), weights(second))
    assert not same(weights(first), weights(other))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [(), ("optim.ema=0.9", "optim.optimizer=radam", "train.protocol=validation")])
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, images, number, options):
    config = tiny_config("train.epochs=3", *options)
    whole = train(config, images, tmp_path / "whole")
    with pytest.raises(Interrupted, match="stopped in epoch 2 after 2 steps") as stop:
        train(config, images, tmp_path / "stopped", StopAfter(whole_steps(images, config) + 2, number))
    assert stop.value.run.path == tmp_path / "stopped"
    resumed = resume(tmp_path / "stopped", images)
    assert same(weights(whole), weights(resumed))
    drop = {"images_per_second", "seconds"}
    for left, right in zip(whole.history(), resumed.history(), strict=True):
        assert {k: v for k, v in left.items() if k not in drop} == {k: v for k, v in right.items() if k not in drop}
    assert whole.read_json("metrics.json")["metrics"] == resumed.read_json("metrics.json")["metrics"]


def test_killed_in_an_epoch_and_resumed_equals_uninterrupted(tmp_path, images):
    config = tiny_config("train.epochs=2")
    whole = train(config, images, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, images, tmp_path / "killed", KillAfter(whole_steps(images, config) + 1))
    assert same(weights(whole), weights(resume(tmp_path / "killed", images)))


def test_killed_before_the_first_checkpoint_begins_again(tmp_path, images):
    config = tiny_config("train.epochs=1")
    whole = train(config, images, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, images, tmp_path / "killed", KillAfter(1))
    assert not (tmp_path / "killed" / "checkpoint.pt").exists()
    assert same(weights(whole), weights(resume(tmp_path / "killed", images)))


def whole_steps(images, config):
    return len(images.only("train")) // config.batch.size


def test_a_loss_that_is_not_finite_stops_before_the_update(tmp_path, config, images):
    class Poison(Quiet):
        def step(self, number, read):
            if number == 3:
                with torch.no_grad():
                    next(training.network.loss.parameters()).fill_(float("nan"))

    run = Run.create(tmp_path / "run", config, images, images.only("train").classes, "cpu")
    training = Training(run, images, CPU, Poison())
    with pytest.raises(NonFiniteError, match=r"epoch 1, step 4: loss nan.*the update was not made"):
        training.go()
    saved = run.load_checkpoint()
    assert saved["position"]["step"] == 3
    backbone = {name: tensor for name, tensor in saved["network"].items() if name.startswith("embedder.backbone")}
    assert all(tensor.isfinite().all() for tensor in backbone.values())
    bad = json.loads((run.path / "bad_batch.json").read_text())
    assert len(bad["images"]) == config.batch.size


def test_a_stop_while_the_last_epoch_is_validated_leaves_the_final_figures_to_a_resume(tmp_path, images):
    class StopAtTheEnd(Quiet):
        def epoch(self, record):
            if record["epoch"] == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    config = tiny_config("train.epochs=2")
    with pytest.raises(Interrupted):
        train(config, images, tmp_path / "run", StopAtTheEnd())
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert same(weights(resume(tmp_path / "run", images)), weights(train(config, images, tmp_path / "whole")))


def test_validation_protocol_keeps_the_best_epoch(tmp_path, images):
    run = train(tiny_config("train.epochs=4", "train.protocol=validation"), images, tmp_path / "run")
    scores = [record["val/recall@1"] for record in run.history()]
    assert run.read_json("metrics.json")["epoch"] == int(np.argmax(scores)) + 1
    assert run.read_json("metrics.json")["protocol"]["epoch_chosen"] == "best on the validation classes"


def test_backbone_stands_still_while_frozen(tmp_path, images):
    run = train(tiny_config("optim.frozen_epochs=2", "model.batch_norm=frozen"), images, tmp_path / "run")
    torch.manual_seed(0)
    fresh = Training(Run(tmp_path / "x", run.config, run.classes), images, CPU, Quiet()).network.state_dict()
    after = weights(run)
    for name, tensor in fresh.items():
        if name.startswith("embedder.backbone."):
            assert torch.equal(tensor, after[name]), name
    assert not torch.equal(fresh["embedder.project.weight"], after["embedder.project.weight"])


def test_averaged_weights_follow_the_formula(tmp_path, images):
    config = tiny_config("train.epochs=1", "optim.ema=0.5")
    states = []

    class Remember(Quiet):
        def step(self, number, read):
            states.append({name: tensor.clone() for name, tensor in training.network.state_dict().items()})

    run = Run.create(tmp_path / "run", config, images, images.only("train").classes, "cpu")
    training = Training(run, images, CPU, Remember())
    expected = {name: tensor.clone() for name, tensor in training.network.state_dict().items()}
    training.go()
    for state in states:
        for name, tensor in state.items():
            moving = tensor.is_floating_point()
            expected[name] = 0.5 * expected[name] + 0.5 * tensor if moving else tensor
    found = weights(run)
    assert all(torch.allclose(found[name], tensor, atol=1e-6) for name, tensor in expected.items())


def test_clipping_bounds_the_whole_gradient(tmp_path, images):
    """AdamW is blind to the scale of gradients, so look at the gradients themselves."""
    norms = []

    class Look(Quiet):
        def step(self, number, read):
            norms.append(sum(p.grad.square().sum() for p in training.network.parameters() if p.grad is not None).sqrt())

    config = tiny_config("train.epochs=1", "optim.clip=0.5")
    run = Run.create(tmp_path / "run", config, images, images.only("train").classes, "cpu")
    training = Training(run, images, CPU, Look())
    training.go()
    assert max(norms) <= 0.5 * (1 + 1e-5)


def test_mistakes_are_one_line_each(tmp_path, config, images):
    train(config, images, tmp_path / "run")
    with pytest.raises(RunError, match="run holds a finished run; choose another --out"):
        train(config, images, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").rename(tmp_path / "metrics.json")
    with pytest.raises(RunError, match=r"run exists and is not empty; choose another --out, or go on with --resume"):
        train(config, images, tmp_path / "run")
    (tmp_path / "metrics.json").rename(tmp_path / "run" / "metrics.json")
    with pytest.raises(RunError, match="run is finished; there is nothing to resume"):
        resume(tmp_path / "run", images)
    with pytest.raises(RunError, match=r"no run folder .*nowhere; train one with: intrabatch train"):
        resume(tmp_path / "nowhere", images)
    with pytest.raises(ConfigError, match=r"batch\.classes is 40, but there are only 7 training classes"):
        train(tiny_config("batch.classes=40"), images, tmp_path / "other")
    with pytest.raises(DeviceError, match=r"device 'cuda' cannot be used: .*; use --device cpu"):
        train(tiny_config("train.device=cuda"), images, tmp_path / "other")
    with pytest.raises(DeviceError, match="unknown device 'gpu'; choose from: auto, cpu, cuda"):
        train(tiny_config("train.device=gpu"), images, tmp_path / "other")


def test_training_in_another_thread_leaves_signals_alone(tmp_path, images):
    before = signal.getsignal(signal.SIGINT)
    worker = threading.Thread(target=train, args=(tiny_config("train.epochs=1"), tiny_images(), tmp_path / "run"))
    worker.start()
    worker.join()
    assert (tmp_path / "run" / "weights.safetensors").is_file()
    assert signal.getsignal(signal.SIGINT) is before


def test_as_published_keeps_the_best_test_epoch_and_says_so(tmp_path, images, monkeypatch):
    monkeypatch.setattr("intrabatch.train.RELOADED_AFTER", (2,))
    said = []

    class Listen(Quiet):
        def say(self, text):
            said.append(text)

    run = train(tiny_config("train.epochs=4", "train.protocol=as-published"), images, tmp_path / "run", Listen())
    scores = [record["test/recall@1"] for record in run.history()]
    assert "val/recall@1" not in run.history()[0]
    figures = run.read_json("metrics.json")
    assert figures["epoch"] == int(np.argmax(scores)) + 1
    assert figures["metrics"]["recall@1"] == pytest.approx(max(scores))
    protocol = figures["protocol"]
    assert protocol["protocol"] == "as-published" and "not an honest figure" in protocol["epoch_chosen"]
    warning = "WARNING: the TEST classes chose the epoch (train.protocol=as-published)"
    assert any(text.startswith(warning) for text in said)
    assert figure_lines(figures)[0].startswith(warning)  # also when progress is quiet


def test_watching_the_test_classes_chooses_nothing(tmp_path, images):
    plain = train(tiny_config("train.epochs=3"), images, tmp_path / "plain")
    watched = train(tiny_config("train.epochs=3", "train.watch_test=true"), images, tmp_path / "watched")
    assert same(weights(plain), weights(watched))
    left, right = (run.read_json("metrics.json") for run in (plain, watched))
    assert left["metrics"] == right["metrics"] and "best_test_epoch" not in left
    scores = [record["test/recall@1"] for record in watched.history()]
    best = right["best_test_epoch"]
    assert best["metrics"]["recall@1"] == max(scores) and best["epoch"] == int(np.argmax(scores)) + 1
    assert best["warning"].startswith("chosen by the TEST classes")


def test_the_test_classes_are_watched_when_validation_is_due(tmp_path, images):
    changes = ("train.epochs=5", "train.watch_test=true", "train.validate_every=2")
    history = train(tiny_config(*changes), images, tmp_path / "run").history()
    for split in ("val", "test"):
        assert [record["epoch"] for record in history if f"{split}/recall@1" in record] == [2, 4, 5]


def test_whitening_is_learned_from_training_images_and_kept_with_the_weights(tmp_path, images):
    plain = train(tiny_config("train.epochs=2"), images, tmp_path / "plain")
    run = train(tiny_config("train.epochs=2", "model.whiten=0.5"), images, tmp_path / "run")
    left, right = weights(plain), weights(run)
    assert all(torch.equal(tensor, right[name]) for name, tensor in left.items())
    trained = Trained.open(run.path, "cpu")
    whitened = trained.vectors(images.only("train"))
    raw = trained.vectors(images.only("train"), unit=False).astype(np.float64)
    values, directions = np.linalg.eigh(np.cov(raw.T, bias=True))
    values = values.clip(1e-6 * values.max())
    expected = (raw - raw.mean(0)) @ (directions / values**0.5 @ directions.T)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(whitened - expected).max() < 1e-3
    config = tiny_config("train.epochs=2", "model.whiten=0.5", "train.watch_test=true", "optim.ema=0.5")
    watched = train(config, images, tmp_path / "watched")
    last, kept = watched.history()[-1], watched.read_json("metrics.json")
    assert last["test/map@r"] == pytest.approx(kept["metrics"]["map@r"]) and kept["protocol"]["whitened"] == 0.5
    again = trained.evaluate(images.only("test"), "test")["metrics"]
    assert again == pytest.approx(run.read_json("metrics.json")["metrics"])
    assert left.keys() < right.keys()


def test_whitening_needs_more_images_than_directions(tmp_path, images):
    expected = r"model\.whiten needs more training images than model\.dim = 512, but there are \d+; set"
    with pytest.raises(ConfigError, match=expected):
        train(tiny_config("model.whiten=0.1", "model.dim=512"), images, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_test_images_the_figures_are_of_the_validation_classes(tmp_path, images):
    hidden = replace(images, splits=np.where(images.splits == "test", "", images.splits))
    figures = train(tiny_config(), hidden, tmp_path / "run").read_json("metrics.json")
    assert figures["protocol"]["split"] == "val" and "recall@1" in figures["metrics"] and not figures["untrained"]


def test_as_published_goes_back_to_its_best_weights_and_trains_on_from_them(tmp_path, images, monkeypatch):
    assert RELOADED_AFTER == (30, 50)
    monkeypatch.setattr("intrabatch.train.RELOADED_AFTER", (2,))
    scores = iter([0.0, 0.9, 0.1, 0.2])  # of the untrained network, then of each epoch: the first is the best
    monkeypatch.setattr(Training, "_figures", lambda *_: {"recall@1": next(scores)})
    ends = []

    class Remember(Quiet):
        def epoch(self, record):
            ends.append({name: tensor.clone() for name, tensor in training.network.state_dict().items()})

    config = tiny_config("train.epochs=3", "train.protocol=as-published")
    run = Run.create(tmp_path / "run", config, images, images.only("train").classes, "cpu")
    training = Training(run, images, CPU, Remember())
    training.go()
    assert same(ends[1], ends[0]) and not same(ends[2], ends[0])
    assert same(weights(run), ends[0]) and run.read_json("metrics.json")["epoch"] == 1


@pytest.mark.parametrize(("protocol", "split"), [("validation", "val"), ("as-published", "test")])
def test_no_epoch_is_chosen_by_classes_that_are_not_there(tmp_path, protocol, split):
    without = split_classes(
        synthetic_images(12, 4, size=16, seed=0), 0.15 * (split != "val"), 0.25 * (split != "test"), seed=0
    )
    message = f"train.protocol={protocol} chooses the epoch by {split} classes, but that takes two of them"
    with pytest.raises(ConfigError, match=message):
        train(tiny_config(f"train.protocol={protocol}"), without, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("head", ["cosine", "proxy_anchor", "group", "batch_classes", "hierarchical"])
def test_every_head_trains_and_resumes(tmp_path, images, head):
    """Also the head with sparse gradients, which has an optimiser of its own."""
    options = [f"loss.auxiliary_head={head}", "train.epochs=2", "optim.clip=1"]
    options += [f"loss.messages_head={head}"] if head in ("batch_classes", "hierarchical") else ["loss.messages=0"]
    config = tiny_config(*options, "loss.group_temperature=1", "batch.images=3")
    whole = train(config, images, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, images, tmp_path / "stopped", StopAfter(whole_steps(images, config)))
    assert same(weights(whole), weights(resume(tmp_path / "stopped", images)))


@pytest.mark.parametrize("protocol", ["validation", "as-published"])
def test_a_killed_run_that_chooses_an_epoch_chooses_the_same(tmp_path, images, monkeypatch, protocol):
    """Also when it dies after a better epoch than its checkpoint knows, and goes back to its best on the way."""
    monkeypatch.setattr("intrabatch.train.RELOADED_AFTER", (3,))
    config = tiny_config("train.epochs=5", f"train.protocol={protocol}")
    whole = train(config, images, tmp_path / "whole")
    monkeypatch.setattr(Training, "_saving_is_cheap", lambda self: self.position.epoch == 1)
    with pytest.raises(Killed):
        train(config, images, tmp_path / "killed", KillAfter(4 * whole_steps(images, config) - 1))
    monkeypatch.undo()
    monkeypatch.setattr("intrabatch.train.RELOADED_AFTER", (3,))
    again = resume(tmp_path / "killed", images)
    assert same(weights(whole), weights(again))
    assert whole.read_json("metrics.json")["epoch"] == again.read_json("metrics.json")["epoch"]


def test_a_copy_without_its_history_can_be_told_its_commit(tmp_path, images, monkeypatch):
    monkeypatch.setenv("INTRABATCH_COMMIT", "0123456789")
    run = train(tiny_config("train.epochs=1"), images, tmp_path / "run")
    assert run.read_json("environment.json")["git"] == "0123456789"
