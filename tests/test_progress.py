"""What a person sees: lines for pipes, a bar for terminals, and trackers that hear of every epoch."""

import sys
import types

import pytest
from conftest import tiny_config

from intrabatch.errors import ConfigError, MissingExtra
from intrabatch.progress import LiveDisplay, PlainLines, Quiet, Tracked, epoch_line, make_display
from intrabatch.train import train

RECORD = {"epoch": 3, "loss": 2.5, "loss/messages": 1.25, "learning_rate": 1e-4, "images_per_second": 417.2,
          "val/recall@1": 0.427, "val/map": 0.1}  # fmt: skip


def test_an_epoch_in_one_line():
    line = epoch_line(RECORD)
    assert line == "epoch   3  loss 2.500  messages 1.250  lr 0.0001  417 images/s  val/recall@1 42.7"


def test_plain_lines_go_to_stderr(capsys):
    PlainLines().epoch(RECORD)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == epoch_line(RECORD) + "\n"


def test_live_display_shows_progress_and_reads_figures_seldom(capsys):
    display, reads = LiveDisplay(), []
    display.begin(100, 0)
    for step in range(1, 101):
        display.step(step, lambda: reads.append(1) or RECORD)
    display.epoch(RECORD)
    display.end()
    assert 1 <= len(reads) < 20  # reading may make a GPU wait
    assert "epoch   3" in capsys.readouterr().err


def test_live_display_has_room_for_everything_on_a_narrow_terminal():
    display = LiveDisplay()
    display.console.width, display.refresh_seconds = 80, 0
    display.scores = {"val/recall@1": 0.427}
    display.step(30, lambda: {key: value for key, value in RECORD.items() if "val" not in key})
    with display.console.capture() as shown:
        display.console.print(*display.bar.get_renderables())
    text = " ".join(shown.get().split())
    for part in ("epoch 3", "messages 1.250", "lr 0.0001", "417 images/s", "val/recall@1 42.7", "30/", "left"):
        assert part in text, part


def test_which_display():
    assert type(make_display(quiet=True)) is Quiet
    assert type(make_display(quiet=False)) is PlainLines  # tests are no terminal


def test_tensorboard_is_written_when_installed(tmp_path, images):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    config = tiny_config("train.epochs=1")
    run = train(config, images, tmp_path / "run", Tracked(Quiet(), [], tmp_path / "run", {}))
    assert list((run.path / "tensorboard").glob("events.*"))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_trackers_hear_of_every_epoch(name, tmp_path, monkeypatch):
    """The services themselves are not here: stand-ins take down the calls that are made of them."""
    heard = []
    module = types.ModuleType(name)
    module.__spec__ = types.SimpleNamespace()
    listen = {"log": lambda values, step: heard.append((values, step)), "finish": lambda: heard.append("end")}
    service = types.SimpleNamespace(**listen)
    module.init = lambda **settings: heard.append(settings) or service
    module.set_experiment = module.start_run = lambda *args, **settings: heard.append(args)
    module.log_dict = lambda *args: heard.append(args)
    module.log_metrics = lambda values, step: heard.append((values, step))
    module.end_run = lambda: heard.append("end")
    monkeypatch.setitem(sys.modules, name, module)
    tracked = Tracked(Quiet(), [name], tmp_path, {"train": {"epochs": 1}})
    tracked.names = [name]
    tracked.begin(10, 0)
    tracked.epoch(RECORD)
    tracked.end()
    key = "val/recall@1" if name == "wandb" else "val/recall_at_1"
    values, step = heard[-2]
    assert values[key] == 0.427 and step == 3 and "epoch" not in values and heard[-1] == "end"


def test_unknown_and_missing_trackers():
    with pytest.raises(ConfigError, match="--log-to tensorbord: unknown tracker; did you mean 'tensorboard'"):
        Tracked(Quiet(), ["tensorbord"], None, {})
    with pytest.raises(MissingExtra, match=r"--log-to mlflow needs the package mlflow; .* 'intrabatch\[mlflow\]'"):
        Tracked(Quiet(), ["mlflow"], None, {})
