"""What goes wrong around a run: nothing is lost, and one line says how to go on."""

import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from intrabatch.cli import main
from intrabatch.errors import RunError, WriteError
from intrabatch.run import Run
from intrabatch.trained import Trained
from intrabatch.workflow import search_files

SMALL = ["--set", "model.backbone=resnet10t", "--set", "model.weights=none", "--set", "image.crop=16", "--set",
         "image.resize=16", "--set", "model.dim=16", "--set", "batch.classes=3", "--set", "batch.images=2", "--set",
         "train.epochs=1", "--set", "model.pooling=avg", "--set", "train.device=cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(10):
        (root / f"class{number}").mkdir()
        for i in range(4):
            pixels = rng.integers(0, 255, (20, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"class{number}" / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "photos"
    assert main(["train", str(photos), "--out", str(run), "--quiet", *SMALL]) == 0
    return run


def answer(capsys, *arguments):
    """The exit code and the one line on stderr."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("intrabatch: ") and captured.err.count("\n") == 1
    return code, captured.err


def full_disk(handle):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_a_full_disk_leaves_the_vectors_of_before(photos, trained, tmp_path, capsys, monkeypatch, suffix):
    out = tmp_path / f"vectors{suffix}"
    assert main(["embed", str(trained), str(photos), "--out", str(out)]) == 0
    before = out.read_bytes()
    monkeypatch.setattr(os, "fsync", full_disk)
    code, line = answer(capsys, "embed", trained, photos, "--out", out)
    assert code == 2 and "No space left on device; the previous one is untouched" in line
    assert out.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == [out.name]


def test_a_full_disk_is_a_write_error(trained, monkeypatch):
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(WriteError, match=r"cannot write .*history\.jsonl: No space left on device; the previous one"):
        Run.open(trained).write_history([])
    assert Run.open(trained).history()


def test_a_full_disk_is_called_so_whatever_torch_says(trained, monkeypatch):
    def confused(state, path):
        path.write_bytes(b"half")
        raise RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 576 vs 534")

    monkeypatch.setattr("torch.save", confused)
    with pytest.raises(WriteError, match=r"cannot write .*checkpoint\.pt: .*unexpected pos 576 vs 534; nothing was"):
        Run.open(trained).save_checkpoint({})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=4096))
    with pytest.raises(WriteError, match=r"cannot write .*checkpoint\.pt: No space left on device; nothing was"):
        Run.open(trained).save_checkpoint({})
    assert not list(trained.glob(".*"))


@pytest.mark.parametrize("number", [13, 28, 30, 36])
def test_what_the_machine_refuses_is_not_our_fault(capsys, monkeypatch, photos, number):
    def refuse(images):
        raise OSError(number, os.strerror(number), "photos/locked")

    monkeypatch.setattr("intrabatch.data.check.check", refuse)
    code, line = answer(capsys, "check", photos)
    assert code == 2 and line == f"intrabatch: photos/locked: {os.strerror(number).lower()}\n"


def test_a_mistake_leaves_no_empty_run_behind(photos, tmp_path, capsys):
    wrong = ["train", photos, "--out", tmp_path / "run", "--quiet", *SMALL, "--set", "model.weights=nowhere.pt"]
    code, line = answer(capsys, *wrong)
    assert code == 2 and "no weights file nowhere.pt" in line and not (tmp_path / "run").exists()


def test_a_mistake_leaves_another_run_alone(photos, trained, tmp_path, capsys):
    before = sorted(path.name for path in trained.iterdir())
    code, line = answer(capsys, "train", photos, "--out", trained, *SMALL)
    assert code == 2 and f"{trained} holds a finished run; choose another --out" in line
    assert sorted(path.name for path in trained.iterdir()) == before


def test_ctrl_c_between_steps_says_how_to_go_on(photos, tmp_path, capsys, monkeypatch):
    """While the test classes are measured, say; the path is quoted so that it can be pasted."""
    run = tmp_path / "my run"
    with monkeypatch.context() as patch:
        patch.setattr("intrabatch.train.Training._final_figures", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        code, line = answer(capsys, "train", photos, "--out", run, "--quiet", *SMALL)
    assert code == 130 and line == f"intrabatch: stopped. Go on with: intrabatch train --resume '{run}'\n"
    assert main(["train", "--resume", str(run), "--quiet"]) == 0 and (run / "metrics.json").is_file()


def test_a_resumed_run_cannot_be_changed(photos, trained, capsys):
    code, line = answer(capsys, "train", photos, "--resume", trained, "--set", "train.epochs=9", "--skip-broken")
    assert code == 2
    assert "--resume keeps the run's own images and settings; leave out --set, --skip-broken\n" in line


def test_one_run_is_followed_not_many(photos, tmp_path, capsys):
    code, line = answer(capsys, "train", photos, "--seeds", "2", "--log-to", "wandb", "--out", tmp_path / "r", *SMALL)
    assert code == 2 and "--log-to follows one run" in line


@pytest.mark.parametrize("name", ["metrics.json", "classes.json", "environment.json"])
def test_a_torn_file_of_a_run_is_named(trained, tmp_path, name):
    for file in ("config.yaml", "classes.json", "environment.json", "metrics.json"):
        (tmp_path / file).write_bytes((trained / file).read_bytes())
    (tmp_path / name).write_text('{"half')
    with pytest.raises(RunError, match=f"{name} cannot be read"):
        Run.open(tmp_path).epoch()


@pytest.mark.parametrize("torn", [b"", b"not a checkpoint", b"PK\x03\x04 cut short"])
def test_a_torn_checkpoint_is_named(trained, tmp_path, torn):
    for file in ("config.yaml", "classes.json", "environment.json"):
        (tmp_path / file).write_bytes((trained / file).read_bytes())
    (tmp_path / "checkpoint.pt").write_bytes(torn)
    with pytest.raises(RunError, match=r"checkpoint\.pt is damaged or cut short; remove it and the run begins anew"):
        Run.open(tmp_path).load_checkpoint()


def test_the_gallery_is_embedded_once_however_many_queries(photos, trained, monkeypatch):
    sizes = []
    vectors = Trained.vectors

    def counted(self, images, **options):
        sizes.append(len(images))
        return vectors(self, images, **options)

    monkeypatch.setattr(Trained, "vectors", counted)
    queries = [str(photos / "class1" / f"{i}.png") for i in range(3)]
    found = search_files(trained, str(photos), queries, 2, "cpu")
    assert sizes == [40, 1, 1, 1]
    assert [result["hits"][0]["path"] for result in found] == [f"class1/{i}.png" for i in range(3)]


def test_what_to_search_must_be_named(photos, trained, capsys):
    query = photos / "class1" / "0.png"
    for gallery, asked in (("", query), (photos, "")):
        code, line = answer(capsys, "search", trained, "--gallery", gallery, "--query", asked)
        assert code == 2 and "an empty path to images; give a folder, a table or an image" in line
    code, line = answer(capsys, "search", trained, "--gallery", photos, "--query", "nowhere.png")
    assert code == 2 and "nowhere.png: no such folder or file; expected an image, a folder of images, or" in line


def test_a_recipe_for_other_data_is_not_passed_over(photos, tmp_path, capsys):
    code, line = answer(capsys, "train", photos, "--recipe", "glyphs", "--out", tmp_path / "run", *SMALL)
    assert code == 2 and "a folder, but data.source=glyphs asks for the built-in glyphs" in line


def test_files_left_out_are_named(photos, tmp_path, capsys):
    import shutil

    shutil.copytree(photos, tmp_path / "p")
    for number in (2, 5):
        (tmp_path / "p" / f"class{number}" / "broken.jpg").write_bytes(b"")
    arguments = ["train", tmp_path / "p", "--out", tmp_path / "r", "--skip-broken", "--json", *SMALL]
    assert main([str(argument) for argument in arguments]) == 0
    captured = capsys.readouterr()
    reason = "the file is empty (0 bytes)"
    names = f"class2/broken.jpg: {reason}; class5/broken.jpg: {reason}"
    assert f"left out 2 files that cannot be read: {names}" in captured.err
    assert json.loads(captured.out)["metrics"]
