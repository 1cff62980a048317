"""The command line as a user meets it: outcomes, JSON, exit codes, and one clear line for every mistake."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import tiny_config
from PIL import Image

from intrabatch import settings
from intrabatch.cli import main

SMALL = ["--set", "model.backbone=resnet10t", "--set", "model.weights=none", "--set", "image.crop=16", "--set",
         "image.resize=16", "--set", "model.dim=16", "--set", "batch.classes=3", "--set", "batch.images=2", "--set",
         "train.epochs=1", "--device", "cpu", "--set", "model.pooling=avg"]  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder per class, 10 classes of 4 small pictures, with spaces and umlauts in the names."""
    root = tmp_path_factory.mktemp("my photos")
    rng = np.random.default_rng(0)
    for number in range(10):
        folder = root / f"klasse {number} ä"
        folder.mkdir()
        colour = rng.integers(0, 200, 3)
        for i in range(4):
            pixels = np.clip(colour + rng.normal(0, 20, (24, 20, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"bild {i}.png")
    return root


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "photos"
    assert main(["train", str(photos), "--out", str(run), "--quiet", *SMALL]) == 0
    return run


def said(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def mistake(capsys, *arguments):
    """The one line that a mistake is answered with."""
    code, out, err = said(capsys, *arguments)
    assert code == 2, err
    assert out == "" and err.startswith("intrabatch: ") and err.count("\n") == 1
    return err


def test_help_needs_no_torch_and_is_quick():
    watch = "import sys; from intrabatch.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    heavy = watch + "print('HEAVY', [m for m in ('torch', 'timm', 'numpy', 'matplotlib') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout
    assert "HEAVY []" in out
    took = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "intrabatch", "--help"], capture_output=True, check=True)
        took.append(time.perf_counter() - started)
    assert min(took) < 2.0  # 0.12 s on a quiet machine; this only catches a heavy import


COMMANDS = ["demo", "check", "train", "evaluate", "embed", "search", "config", "data", "distil", "influence"]
COMMANDS += ["reproduce"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_fits_a_screen_and_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert f"example:\n  intrabatch {command}" in text and len(text.splitlines()) <= 40


def test_train_prints_figures_with_their_protocol(trained, photos, capsys):
    code, out, _ = said(capsys, "evaluate", trained)
    assert code == 0 and "recall@1" in out and "epoch chosen: the last" in out
    figures = json.loads((trained / "metrics.json").read_text())
    assert {"metrics", "protocol", "run"} <= set(figures)
    assert figures["protocol"]["classes_seen_in_training"] == 0


def test_evaluate_gives_the_figures_of_training_again(trained, photos, capsys):
    code, out, _ = said(capsys, "evaluate", trained, "--json")
    again, before = json.loads(out), json.loads((trained / "metrics.json").read_text())
    assert code == 0
    for name, value in before["metrics"].items():
        assert again["metrics"][name] == pytest.approx(value, abs=1e-6)
    assert again["protocol"]["test_list_sha256"] == before["protocol"]["test_list_sha256"]


def test_message_passing_at_test_time(trained, photos, capsys):
    code, out, _ = said(capsys, "evaluate", trained, photos, "--refine", "k-reciprocal", "--json")
    plain = json.loads(said(capsys, "evaluate", trained, photos, "--json")[1])
    refined = json.loads(out)
    assert code == 0 and refined["protocol"]["refinement"] == "k-reciprocal"
    assert plain["protocol"]["refinement"] == "none" and refined["metrics"] != plain["metrics"]
    assert "choose from: none, k-reciprocal" in mistake(capsys, "evaluate", trained, "--refine", "magic")
    size = ["--set", "evaluation.refine_size=500"]
    assert "500" in mistake(capsys, "evaluate", trained, photos, "--refine", "nearest", *size)
    several = json.loads(said(capsys, "evaluate", trained, trained, photos, "--refine", "k-reciprocal", "--json")[1])
    assert several["protocol"]["refinement"] == "k-reciprocal"
    assert several["metrics"] == pytest.approx(refined["metrics"], abs=1e-6)
    assert "--refine needs the message passing of a run" in mistake(
        capsys, "evaluate", "--embeddings", "vectors.npz", "--refine", "nearest"
    )


def test_evaluate_other_images(trained, photos, capsys):
    code, out, _ = said(capsys, "evaluate", trained, photos, "--json")
    assert code == 0 and json.loads(out)["protocol"]["num_images"] == 40


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_embed_writes_path_label_and_vector(trained, photos, tmp_path, capsys, suffix):
    out_file = tmp_path / f"vectors{suffix}"
    code, out, _ = said(capsys, "embed", trained, photos, "--out", out_file, "--json", "--device", "cpu")
    assert code == 0 and json.loads(out)["num_images"] == 40
    if suffix == ".parquet":
        table = pq.read_table(out_file)
        vectors, labels = np.stack(table["vector"].to_numpy()), table["label"].to_pylist()
    else:
        with np.load(out_file) as archive:
            vectors, labels = archive["vector"], archive["label"].tolist()
    assert vectors.shape == (40, 16) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert labels[0] == "klasse 0 ä"
    code, out, _ = said(capsys, "evaluate", "--embeddings", out_file, "--json")
    assert code == 0 and 0 <= json.loads(out)["metrics"]["recall@1"] <= 1


def test_search_finds_the_image_itself_first(trained, photos, capsys):
    query = photos / "klasse 3 ä" / "bild 1.png"
    code, out, _ = said(capsys, "search", trained, "--gallery", photos, "--query", query, "-k", 3, "--json")
    (result,) = json.loads(out)["results"]
    assert code == 0 and len(result["hits"]) == 3
    assert result["hits"][0]["path"] == "klasse 3 ä/bild 1.png" and result["hits"][0]["score"] > 0.999
    code, out, _ = said(capsys, "search", trained, "--gallery", photos, "--query", query)
    assert "klasse 3 ä/bild 1.png  [klasse 3 ä]" in out


def test_check_reports_counts(photos, capsys):
    code, out, _ = said(capsys, "check", photos, "--json")
    assert code == 0 and json.loads(out)["num_images"] == 40


def test_config_prints_what_it_loads(tmp_path, capsys):
    code, out, _ = said(capsys, "config", "folder", "--set", "train.epochs=3")
    loaded = settings.update(tiny_config(), settings.parse_yaml(out, "printed"))
    assert code == 0 and loaded.train.epochs == 3 and loaded.recipe == "folder"
    code, out, _ = said(capsys, "config")
    assert code == 0 and "cars196" in out


def test_config_file_and_set_in_this_order(photos, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("train:\n  epochs: 7\n  seed: 5\n")
    run = tmp_path / "run"
    arguments = ["train", photos, "--out", run, "--quiet", "--config", tmp_path / "c.yaml", *SMALL, "--json"]
    code, out, _ = said(capsys, *arguments)
    assert code == 0 and json.loads(out)["protocol"]["seed"] == 5 and json.loads(out)["protocol"]["epochs"] == 1


def test_two_runs_as_an_ensemble_and_compared(trained, photos, tmp_path, capsys):
    other = tmp_path / "other"
    assert main(["train", str(photos), "--out", str(other), "--quiet", *SMALL, "--set", "train.seed=1"]) == 0
    capsys.readouterr()
    code, out, _ = said(capsys, "evaluate", trained, other, "--json")
    assert code == 0 and json.loads(out)["protocol"]["ensemble_of"] == 2
    assert json.loads(out)["protocol"]["embedding_size"] == 32
    code, out, _ = said(capsys, "evaluate", trained, other, photos, "--compare", "--json")
    assert code == 0 and set(json.loads(out)["comparison"]["recall@1"]) >= {"first", "second", "difference", "p_value"}
    assert "--compare is for two runs; got 1" in mistake(capsys, "evaluate", trained, "--compare")


def test_seeds_and_students(photos, trained, tmp_path, capsys):
    seeds = ["train", photos, "--out", tmp_path / "seeds", "--seeds", "2", "--quiet", "--json", *SMALL]
    code, out, _ = said(capsys, *seeds)
    assert code == 0 and len(json.loads(out)["rows"]) == 2 and len(json.loads(out)["intervals"]["recall@1"]) == 2
    student = ["distil", trained, "--how", "features", "--out", tmp_path / "student", "--quiet", "--json"]
    code, out, _ = said(capsys, *student)
    assert code == 0 and json.loads(out)["protocol"]["how"] == "features"
    assert "unknown way to teach 'feature'; did you mean 'features'?" in mistake(
        capsys, "distil", trained, "--how", "feature", "--out", tmp_path / "x"
    )
    assert "--seeds and --ensemble cannot be given together" in mistake(capsys, *seeds, "--ensemble", "2")


def test_a_student_of_other_data_is_refused(trained, photos, tmp_path, capsys):
    capsys.readouterr()
    distil = ["distil", trained, "--how", "features", "--quiet", "--out", tmp_path / "student"]
    line = mistake(capsys, *distil, "--set", "data.split_seed=3")
    assert "training classes, the teacher" in line and "give the data and split it was trained on" in line
    assert "no such folder or file" in mistake(capsys, *distil, "--set", "data.path=nowhere")
    assert not (tmp_path / "student").exists()


def test_which_neighbours_count(trained, photos, tmp_path, capsys):
    out_dir = tmp_path / "pictures"
    capsys.readouterr()
    code, out, _ = said(capsys, "influence", trained, "--out", out_dir, "--json", "--device", "cpu")
    figures = json.loads(out)
    assert code == 0 and figures["protocol"]["images"] == "train" and figures["protocol"]["num_images"] == 6
    assert {path.name for path in out_dir.iterdir()} == {
        "influence.json", "matrices.npz", "matrices.png", "neighbours.png"
    }  # fmt: skip
    code, out, _ = said(capsys, "influence", trained, photos, "--out", out_dir)
    assert code == 0 and "all neighbours equal" in out and f"images: {photos}" in out
    assert "unknown --split 'tset'; did you mean 'test'?" in mistake(
        capsys, "influence", trained, "--split", "tset", "--out", out_dir
    )


def test_mistakes_on_the_command_line(capsys, tmp_path, trained, photos):
    assert "invalid choice: 'trian'" in mistake(capsys, "trian")
    assert "unknown recipe 'cubs'; did you mean 'cub'?" in mistake(capsys, "train", photos, "--recipe", "cubs")
    assert "no images named; give DATA" in mistake(capsys, "train")
    assert "did you mean 'train.epochs'?" in mistake(capsys, "train", photos, "--set", "train.epoch=3")
    assert "no such folder or file" in mistake(capsys, "check", tmp_path / "nowhere")
    assert "no run folder" in mistake(capsys, "evaluate", tmp_path / "nowhere")
    assert "give either a RUN or --embeddings" in mistake(capsys, "evaluate")
    assert "choose from: .parquet, .npz" in mistake(capsys, "embed", trained, photos, "--out", tmp_path / "v.csv")
    assert "there is no folder" in mistake(capsys, "embed", trained, photos, "--out", tmp_path / "no" / "v.npz")
    assert "--config" in mistake(capsys, "train", photos, "--config", tmp_path / "no.yaml")
    assert "unknown tracker" in mistake(capsys, "train", photos, "--log-to", "wandbb", "--out", tmp_path / "r", *SMALL)
    assert "k = 0 neighbours asked for; expected 1 to 40" in mistake(
        capsys, "search", trained, "--gallery", photos, "--query", photos / "klasse 3 ä" / "bild 1.png", "-k", "0"
    )


def test_mistakes_in_a_run_folder(capsys, tmp_path, trained):
    import shutil

    def broken(name, change):
        copy = tmp_path / name
        shutil.copytree(trained, copy)
        change(copy)
        return mistake(capsys, "evaluate", copy)

    def older(run):
        found = json.loads((run / "environment.json").read_text())
        (run / "environment.json").write_text(json.dumps(found | {"format": 0, "intrabatch": "0.0.1"}))

    def other_size(run):
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace("dim: 16", "dim: 32"))

    assert "was written by intrabatch 0.0.1 (format 0)" in broken("older", older)
    assert "the weights belong to another architecture" in broken("other", other_size)
    assert "classes.json is missing" in broken("part", lambda run: (run / "classes.json").unlink())
    assert "has no weights yet" in broken("young", lambda run: (run / "weights.safetensors").unlink())
    assert "cannot be read" in broken("torn", lambda run: (run / "weights.safetensors").write_bytes(b"x" * 40))
    for name in ("environment.json", "classes.json", "metrics.json"):
        line = broken(f"list in {name}", lambda run, name=name: (run / name).write_text("3"))
        assert f"{name} holds a int, expected a" in line
    line = broken("no epoch", lambda run: (run / "metrics.json").write_text("{}"))
    assert "metrics.json has the epoch None, expected a whole number" in line
    assert "config.yaml cannot be read" in broken("latin", lambda run: (run / "config.yaml").write_bytes(b"\xff"))
    assert "is a file; name the run folder" in mistake(capsys, "evaluate", trained / "config.yaml")
    assert "unknown key 'trian'" in broken("typo", lambda run: (run / "config.yaml").write_text("trian: 5\n"))


def test_what_was_decided_in_training_is_not_told_anew(capsys, trained):
    for change in ("train.epochs=99", "train.seed=42", "model.dim=32", "recipe=sop", "loss.temperature=3"):
        line = mistake(capsys, "evaluate", trained, "--set", change)
        assert f"--set {change.split('=')[0]}: it was decided when the run was trained; evaluate can change" in line
    code, _, _ = said(capsys, "evaluate", trained, "--set", "evaluation.recall_at=[1]", "--set", "train.device=cpu")
    assert code == 0


def test_one_class_alone_is_not_measured(capsys, tmp_path, trained, photos):
    import shutil

    shutil.copytree(photos / "klasse 3 ä", tmp_path / "one" / "klasse")
    assert "all images are of one class" in mistake(capsys, "evaluate", trained, tmp_path / "one")


def test_resuming_elsewhere_and_after_the_images_moved(capsys, tmp_path, photos, monkeypatch):
    import shutil

    from intrabatch.run import Run
    from intrabatch.train import Training

    moved, run = tmp_path / "photos", tmp_path / "run"
    shutil.copytree(photos, moved)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Training, "_finish", lambda *_: sys.exit())
        main(["train", "photos", "--out", "run", "--quiet", *SMALL])
    monkeypatch.chdir("/")
    moved.rename(tmp_path / "new place")
    line = mistake(capsys, "train", "--resume", run)
    assert str(moved) in line and "no such folder or file" in line
    shutil.copytree(photos / "klasse 3 ä", tmp_path / "other" / "klasse")
    assert "no longer in the data" in mistake(capsys, "train", "--resume", run, tmp_path / "other")
    assert Run.open(run).config.data.path == str(moved)
    code, _, err = said(capsys, "train", "--resume", run, tmp_path / "new place")
    assert code == 0, err
    assert Run.open(run).config.data.path == str(tmp_path / "new place")
    assert said(capsys, "evaluate", run)[0] == 0


def test_a_checkpoint_that_does_not_fit(capsys, tmp_path, photos, monkeypatch):
    import shutil

    import torch

    from intrabatch.train import Training

    run = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Training, "_finish", lambda *_: sys.exit())
        main(["train", str(photos), "--out", str(run), "--quiet", *SMALL])
    shutil.copytree(run, tmp_path / "wider")
    text = (run / "config.yaml").read_text()
    (tmp_path / "wider" / "config.yaml").write_text(text.replace("dim: 16", "dim: 32"))
    line = mistake(capsys, "train", "--resume", tmp_path / "wider", "--quiet")
    assert "wider/checkpoint.pt does not fit the run's config.yaml" in line
    for wrong in ([], {"network": 3}):
        torch.save(wrong, run / "checkpoint.pt")
        assert "checkpoint.pt" in mistake(capsys, "train", "--resume", run, "--quiet")
    (run / "checkpoint.pt").write_bytes(b"cut")
    assert "checkpoint.pt is damaged or cut short; remove it" in mistake(capsys, "train", "--resume", run)


@pytest.mark.parametrize("option", ["--seeds", "--ensemble"])
def test_no_seeds_are_not_one(capsys, tmp_path, photos, option):
    assert f"{option} is 0" in mistake(capsys, "train", photos, option, "0", "--quiet", "--out", tmp_path / "r", *SMALL)
    assert not (tmp_path / "r").exists()


def test_a_taken_folder_is_told_before_the_images_are_read(capsys, photos, trained, monkeypatch):
    monkeypatch.setattr("intrabatch.data.check.check", lambda images: sys.exit("read"))
    line = mistake(capsys, "train", photos, "--out", trained, *SMALL)
    assert "holds a finished run; choose another --out" in line


def test_comparisons_name_what_is_no_run(capsys, trained):
    assert "got 1; nowhere is no run folder" in mistake(capsys, "evaluate", trained, "nowhere", "--compare")
    line = mistake(capsys, "evaluate", trained, trained, "--compare", "--nmi-recipe", "random")
    assert "leave out --nmi-recipe" in line


def test_bad_folders(capsys, tmp_path, photos):
    """What people have in their folders, each answered in one line before training starts."""
    (tmp_path / "empty").mkdir()
    assert "empty" in mistake(capsys, "train", tmp_path / "empty", "--out", tmp_path / "r")
    one = tmp_path / "one" / "only"
    one.mkdir(parents=True)
    for i in range(4):
        Image.new("RGB", (20, 20), (i * 50, 0, 0)).save(one / f"{i}.png")
    assert "class" in mistake(capsys, "train", tmp_path / "one", "--out", tmp_path / "r")
    bad = tmp_path / "bad"
    for number in range(8):
        (bad / f"c{number}").mkdir(parents=True)
        for i in range(3):
            Image.effect_noise((20, 20), 50).convert("RGB").save(bad / f"c{number}" / f"{i}.jpg")
    (bad / "c1" / "nothing.jpg").write_bytes(b"")
    (bad / "c2" / "text.jpg").write_text("not a picture")
    whole = (bad / "c3" / "0.jpg").read_bytes()
    (bad / "c3" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    line = mistake(capsys, "train", bad, "--out", tmp_path / "r", *SMALL)
    assert "3" in line and "nothing.jpg" in line and "--skip-broken" in line
    assert not (tmp_path / "r").exists()
    code, _, err = said(capsys, "train", bad, "--out", tmp_path / "r", "--skip-broken", "--json", *SMALL)
    assert code == 0 and "left out 3 files" in err


def test_ctrl_c_says_how_to_resume(photos, tmp_path):
    run = tmp_path / "run"
    program = f"""
import os, signal, sys
from intrabatch.progress import Quiet
import intrabatch.progress, intrabatch.cli
class Stop(Quiet):
    def step(self, number, read):
        if number == 3: os.kill(os.getpid(), signal.SIGINT)
intrabatch.progress.make_display = lambda quiet: Stop()
sys.exit(intrabatch.cli.main({["train", str(photos), "--out", str(run), *SMALL, "--set", "train.epochs=3"]!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 130
    assert f"everything is saved. Go on with: intrabatch train --resume {run}" in done.stderr
    assert main(["train", "--resume", str(run), "--quiet"]) == 0
    assert (run / "metrics.json").is_file() and not (run / "checkpoint.pt").exists()


def test_our_own_faults_show_the_trace_and_exit_1(monkeypatch, capsys, photos):
    def fail(images):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("intrabatch.data.check.check", fail)
    code, _, err = said(capsys, "check", photos)
    assert code == 1 and "ZeroDivisionError: a bug" in err and "this is a fault of intrabatch" in err


def test_a_full_disk_in_training_says_how_to_go_on(capsys, tmp_path, photos, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    run = tmp_path / "run"
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: full() if b.name == "checkpoint.pt" else replace(a, b))
    line = mistake(capsys, "train", photos, "--out", run, "--quiet", *SMALL)
    assert "No space left on device" in line and f"make room, then: intrabatch train --resume {run}" in line
    monkeypatch.undo()
    assert said(capsys, "train", "--resume", run)[0] == 0


def test_a_full_disk_leaves_the_previous_checkpoint(trained, monkeypatch):
    from intrabatch.errors import RunError
    from intrabatch.run import Run

    run = Run.open(trained)
    before = (run.path / "weights.safetensors").read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*No space left on device; the previous one is untouched"):
        run.save_weights(run.load_weights())
    assert (run.path / "weights.safetensors").read_bytes() == before
    assert not list(run.path.glob(".*.new"))
