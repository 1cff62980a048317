"""Whom a run listens to: the batch that is drawn, its matrices by loops over the parts they are made of, the files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tiny_config, tiny_images
from PIL import Image

from intrabatch import listening
from intrabatch.errors import ConfigError, DataError, WeightsError, WriteError
from intrabatch.listening import ATTENTION, TRAINED, UNTRAINED, Listening, listen, listening_lines, save_listening
from intrabatch.model import Network
from intrabatch.train import train
from intrabatch.trained import Trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    config = tiny_config("messages.steps=2", "messages.head_input=all", "optim.learning_rate=0.01")
    return Trained.open(train(config, tiny_images(), tmp_path_factory.mktemp("runs") / "run").path, "cpu")


@pytest.fixture(scope="module")
def found(trained: Trained) -> Listening:
    return listen(trained, tiny_images().only("train"))


def test_a_batch_is_as_in_training_class_by_class(found: Listening) -> None:
    batch = found.images
    assert batch.labels.tolist() == [0, 0, 1, 1, 2, 2] and len(set(batch.names)) == 6


def test_another_seed_draws_another_batch(trained: Trained, found: Listening) -> None:
    images = tiny_images().only("train")
    assert listen(trained, images, seed=0).images.names == found.images.names
    assert listen(trained, images, seed=1).images.names != found.images.names


def test_small_classes_give_what_they_have(trained: Trained) -> None:
    """Of 2, 3 and 1 images: the class of one is left out, and two classes are fewer than a batch has."""
    images = tiny_images().subset([0, 1, 4, 5, 6, 8])
    assert listen(trained, images).images.labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(DataError, match="1 classes have two images or more; a batch to look at needs two such classes"):
        listen(trained, images.subset([0, 1, 5]))


def slow_gradients(network: Network, crops: torch.Tensor, targets: list[int]) -> torch.Tensor:
    """Shares by finite differences of the logits, in float64; a network in evaluation mode."""
    loss = network.loss.double()
    assert loss.passing is not None and loss.refined is not None
    feats = network.embedder(crops).detach().double()

    def logit(moved: torch.Tensor, row: int) -> float:
        steps = loss.passing(moved)
        return float(loss.refined.logits(torch.cat(steps, -1))[row, targets[row]])

    rows = torch.zeros(len(feats), len(feats), dtype=torch.float64)
    for row in range(len(feats)):
        for neighbour in range(len(feats)):
            if row == neighbour:
                continue
            slopes = []
            for number in range(feats.shape[1]):
                up, down = feats.clone(), feats.clone()
                up[neighbour, number] += 1e-5
                down[neighbour, number] -= 1e-5
                slopes.append((logit(up, row) - logit(down, row)) / 2e-5)
            rows[row, neighbour] = sum(slope**2 for slope in slopes) ** 0.5
    return rows / rows.sum(1, keepdim=True)


def test_gradients_before_and_after_training(trained: Trained, found: Listening) -> None:
    pixels = np.stack([found.images.read(i) for i in range(6)]).transpose(0, 3, 1, 2)
    crops = torch.from_numpy(pixels).float() / 255
    targets = [trained.run.classes.index(found.images.classes[label]) for label in found.images.labels]
    torch.manual_seed(trained.config.train.seed)
    before = Network(trained.config, len(trained.run.classes)).eval()
    again = Trained.open(trained.run.path, "cpu").network
    with torch.no_grad():
        for name, network in ((UNTRAINED, before), (TRAINED, again)):
            expected = slow_gradients(network, crops, targets)
            torch.testing.assert_close(found.matrices[name].double(), expected, rtol=2e-3, atol=2e-4)
    assert (found.matrices[TRAINED] - found.matrices[UNTRAINED]).abs().max() > 0.01


def test_attention_is_the_last_steps_in_shares(trained: Trained, found: Listening) -> None:
    feats = torch.from_numpy(trained.vectors(found.images, unit=False))
    passing = trained.network.loss.passing
    assert passing is not None
    with torch.no_grad():
        heads = passing.steps[1].attention.weights(passing(feats)[0])  # type: ignore[operator, union-attr]
    for i in range(6):
        mean = [float(heads[:, i, j].mean()) if j != i else 0.0 for j in range(6)]
        assert found.matrices[ATTENTION][i].tolist() == pytest.approx([w / sum(mean) for w in mean], abs=1e-6)


def test_an_unknown_class_is_asked_for_the_one_it_is_taken_for(trained: Trained) -> None:
    test = tiny_images().only("test")
    unknown = listen(trained, test)
    assert not set(unknown.images.classes) & set(trained.run.classes)
    loss = trained.network.loss
    assert loss.refined is not None
    feats = torch.from_numpy(trained.vectors(unknown.images, unit=False)).requires_grad_()
    logits = loss.refined.logits(loss.refine(feats))
    (gradient,) = torch.autograd.grad(logits[0].max(), feats)
    norms = gradient.norm(dim=1)[1:]
    torch.testing.assert_close(unknown.matrices[TRAINED][0, 1:], norms / norms.sum())


def test_shares_of_the_own_class_and_what_is_shown() -> None:
    images = tiny_images().subset([0, 1, 4, 5])
    matrix = torch.tensor([[0, 0.5, 0.2, 0.3], [1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0]])
    found = Listening(images, {ATTENTION: matrix}, "no reason")
    expected = {ATTENTION: (0.5 + 1 + 0 + 0.5) / 4, "all neighbours equal": 1 / 3}
    assert found.own_class_shares() == pytest.approx(expected)
    assert found.shown() == [0, 2]
    assert [j for j, _ in found.neighbours(0)] == [1, 3, 2]
    assert [w for _, w in found.neighbours(0)] == pytest.approx([0.5, 0.3, 0.2])


def test_what_is_written(found: Listening, tmp_path: Path) -> None:
    figures = save_listening(tmp_path / "out", found, {"run": "runs/x"})
    assert json.loads((tmp_path / "out" / "influence.json").read_text()) == figures
    assert figures["protocol"] == {"run": "runs/x", "num_images": 6, "num_classes": 3}
    assert [len(image["neighbours"]) for image in figures["images"]] == [5, 5, 5]
    with np.load(tmp_path / "out" / "matrices.npz") as arrays:
        assert set(arrays) == {"path", "label", "attention", "gradient_untrained", "gradient_trained"}
        assert arrays["attention"].shape == (6, 6) and arrays["path"].tolist() == list(found.images.names)
    for name in ("matrices.png", "neighbours.png"):
        assert np.asarray(Image.open(tmp_path / "out" / name)).std() > 5
    lines = listening_lines(figures, tmp_path)
    assert lines[1] == f"  {ATTENTION:<24}{100 * figures['own_class_share'][ATTENTION]:>6.1f}"
    assert lines[4].endswith("20.0")  # one of five neighbours


def test_a_folder_that_cannot_be_written(found: Listening, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WriteError, match=r"--out .*file cannot be written: File exists"):
        save_listening(tmp_path / "file", found, {})


def test_without_initial_weights_there_is_no_comparison(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone(trained: Trained) -> Network:
        raise WeightsError("the weights are gone")

    monkeypatch.setattr(listening, "_untrained", gone)
    figures = save_listening(tmp_path, listen(trained, tiny_images().only("train")), {})
    assert UNTRAINED not in figures["own_class_share"]
    assert "the untrained network is not compared: the weights are gone" in listening_lines(figures, tmp_path)


def test_a_run_without_messages_listens_to_nobody(tmp_path: Path) -> None:
    alone = train(tiny_config("loss.messages=0", "train.epochs=1"), tiny_images(), tmp_path / "alone")
    with pytest.raises(ConfigError, match="was trained without message passing; its images listen to nobody"):
        listen(Trained.open(alone.path, "cpu"), tiny_images())
