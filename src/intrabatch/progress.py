"""What a person sees while training: a live display on a terminal, plain lines elsewhere, or nothing.

The loop calls the five methods of `Progress`; trackers (TensorBoard, Weights & Biases, MLflow) hear of every epoch.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichBar
from rich.text import Text

from .errors import ConfigError, MissingExtra, did_you_mean

Record = Mapping[str, float]
SHOWN = ("val/recall@1", "val/map@r")


class Progress(Protocol):
    """Hears of a training as it goes."""

    def say(self, text: str) -> None:
        """A line for the person: what starts from where, what was left out."""
        ...

    def begin(self, total_steps: int, done_steps: int) -> None: ...

    def step(self, number: int, read: Callable[[], Record]) -> None:
        """After a step; `read` fetches its figures and may make a device wait, so call it seldom."""
        ...

    def epoch(self, record: Record) -> None: ...

    def end(self) -> None: ...


class Quiet:
    """Says nothing."""

    def say(self, text: str) -> None:
        pass

    def begin(self, total_steps: int, done_steps: int) -> None:
        pass

    def step(self, number: int, read: Callable[[], Record]) -> None:
        pass

    def epoch(self, record: Record) -> None:
        pass

    def end(self) -> None:
        pass


class PlainLines(Quiet):
    """A line an epoch, for logs and pipes."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def epoch(self, record: Record) -> None:
        self.say(epoch_line(record))


class CaptionedBar(RichBar):
    """A bar under a line of text, so that on a narrow terminal neither pushes the other out."""

    caption = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield Text(self.caption)
        yield from super().get_renderables()


class LiveDisplay(Quiet):
    """Losses, speed and the last score over a bar with the time left; a line above them for every finished epoch."""

    refresh_seconds = 0.25

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar = CaptionedBar(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.bar.add_task("training", total=None)
        self.last = 0.0
        self.scores: Record = {}

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def begin(self, total_steps: int, done_steps: int) -> None:
        self.bar.update(self.task, total=total_steps, completed=done_steps)
        self.bar.start()

    def step(self, number: int, read: Callable[[], Record]) -> None:
        now = time.monotonic()
        if now - self.last > self.refresh_seconds:
            self.last = now
            self.bar.caption = epoch_line({**read(), **self.scores})
            self.bar.update(self.task, completed=number)

    def epoch(self, record: Record) -> None:
        self.scores = {key: value for key, value in record.items() if key in SHOWN} or self.scores
        self.say(epoch_line(record))

    def end(self) -> None:
        self.bar.stop()


def epoch_line(record: Record) -> str:
    """One epoch in one line."""
    losses = [f"{key.removeprefix('loss/')} {value:.3f}" for key, value in record.items() if key.startswith("loss")]
    scores = [f"{key} {100 * value:.1f}" for key, value in record.items() if key in SHOWN]
    pace = [f"lr {record['learning_rate']:.2g}", f"{record['images_per_second']:.0f} images/s"]
    return "  ".join([f"epoch {record['epoch']:>3.0f}", *losses, *pace, *scores])


class Tracker(Protocol):
    """Where figures go besides the run folder: two methods, so that any service fits behind it."""

    def log(self, values: Record, epoch: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, values: Record, epoch: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, epoch)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self.run = wandb.init(project="intrabatch", name=folder.name, dir=str(folder), config=dict(config))

    def log(self, values: Record, epoch: int) -> None:
        self.run.log(dict(values), step=epoch)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import mlflow

        self.mlflow = mlflow
        mlflow.set_experiment("intrabatch")
        mlflow.start_run(run_name=folder.name)
        mlflow.log_dict(dict(config), "config.yaml")

    def log(self, values: Record, epoch: int) -> None:
        self.mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in values.items()}, step=epoch)

    def close(self) -> None:
        self.mlflow.end_run()


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


class Tracked:
    """A progress display that also feeds trackers: those named, and TensorBoard whenever it is installed.

    Names are checked at once; the trackers open when training begins, in a run folder that exists by then.
    """

    def __init__(self, display: Progress, names: list[str], folder: Path, config: Mapping[str, Any]) -> None:
        always = ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
        self.names = list(dict.fromkeys([*names, *always]))
        for name in self.names:
            if name not in TRACKERS:
                raise ConfigError(f"--log-to {name}: unknown tracker{did_you_mean(name, TRACKERS)}")
            if importlib.util.find_spec(name) is None:
                raise MissingExtra(f"--log-to {name}", name, name)
        self.display, self.folder, self.config = display, folder, config
        self.trackers: list[Tracker] = []
        self.say, self.step = display.say, display.step

    def begin(self, total_steps: int, done_steps: int) -> None:
        self.trackers = [TRACKERS[name](self.folder, self.config) for name in self.names]
        self.display.begin(total_steps, done_steps)

    def epoch(self, record: Record) -> None:
        self.display.epoch(record)
        for tracker in self.trackers:
            tracker.log({key: value for key, value in record.items() if key != "epoch"}, int(record["epoch"]))

    def end(self) -> None:
        self.display.end()
        for tracker in self.trackers:
            tracker.close()


def make_display(quiet: bool) -> Progress:
    """A live display on a terminal, plain lines in a pipe, nothing when asked to be quiet."""
    if quiet:
        return Quiet()
    return LiveDisplay() if sys.stderr.isatty() else PlainLines()
