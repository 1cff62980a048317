"""The run folder: everything needed to use, repeat or resume a training, as files a person can open.

    config.yaml           the whole configuration, loadable with --config
    classes.json          the training classes, in the order of the classifier
    splits.csv            every image with its label, split and role
    environment.json      versions, device, git commit
    history.jsonl         one line an epoch
    weights.safetensors   the network once training is over (or stopped)
    metrics.json          figures with their protocol
    checkpoint.pt         what resuming needs; gone when the run is finished

Files are written beside their place and then moved there, so a kill or a full disk leaves the previous one whole.
This module knows nothing of the network's inside.
"""

from __future__ import annotations

import csv
import json
import os
import pickle
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from . import settings
from ._version import VERSION
from .config import Config
from .data.image_set import ImageSet
from .errors import RunError
from .saving import write_whole

COMMIT = "INTRABATCH_COMMIT"
FORMAT = 1
"""Raised when a run folder of before can no longer be read."""
BEGINNING = {"config.yaml", "classes.json", "splits.csv", "environment.json"}
"""What `Run.create` leaves in a folder."""


@dataclass(frozen=True)
class Run:
    """A run folder. `Run.create` makes one, `Run.open` finds one."""

    path: Path
    config: Config
    classes: tuple[str, ...]

    @staticmethod
    def create(path: Path, config: Config, images: ImageSet, classes: tuple[str, ...], device: str) -> Run:
        """Begin a run in a new or empty folder."""
        require_free(path)
        run = Run(path, config, classes)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the run folder {path}: {error.strerror}") from None
        run.save_config()
        run.write_json("classes.json", list(classes))
        run.write_text("splits.csv", splits_table(images))
        run.write_json("environment.json", environment(device))
        return run

    @staticmethod
    def open(path: Path) -> Run:
        """An existing run, or a RunError that says what is missing or too old."""
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; name the run folder it is in")
        if not path.is_dir():
            raise RunError(f"no run folder {path}; train one with: intrabatch train DATA --out {path}")
        for name in ("config.yaml", "classes.json", "environment.json"):
            if not (path / name).is_file():
                raise RunError(f"{path} is not a run folder: {name} is missing; choose another, or train anew")
        unread = Run(path, Config(), ())
        written, classes = unread.read_json("environment.json", dict), unread.read_json("classes.json", list)
        if written.get("format") != FORMAT:
            made_by = f"intrabatch {written.get('intrabatch', 'unknown')} (format {written.get('format')})"
            raise RunError(f"{path} was written by {made_by}; this is {VERSION} (format {FORMAT}): train it again")
        plain = settings.parse_yaml(unread.read_text("config.yaml"), f"{path}/config.yaml")
        return Run(path, settings.update(Config(), plain), tuple(map(str, classes)))

    def moved_to(self, data: str) -> Run:
        """The same run of the same images, which are at `data` now; `save_config` says so in its folder too."""
        return replace(self, config=settings.update(self.config, {"data": {"path": data}}))

    def save_config(self) -> None:
        self.write_text("config.yaml", settings.as_yaml(self.config))

    def write_text(self, name: str, text: str) -> None:
        write_whole(self.path / name, lambda path: path.write_text(text, encoding="utf-8"))

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def read_text(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise RunError(f"{self.path} has no {name}; is it a finished run?") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / name} cannot be read: {error}") from None

    def read_json(self, name: str, kind: type = dict) -> Any:
        try:
            value = json.loads(self.read_text(name))
        except ValueError as error:
            raise RunError(f"{self.path / name} cannot be read: {error}") from None
        if not isinstance(value, kind):
            raise RunError(f"{self.path / name} holds a {type(value).__name__}, expected a {kind.__name__}; train anew")
        return value

    def save_weights(self, state: dict[str, Tensor]) -> None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        write_whole(self.path / "weights.safetensors", lambda path: path.write_bytes(safetensors.torch.save(tensors)))

    def load_weights(self) -> dict[str, Tensor]:
        path = self.path / "weights.safetensors"
        if not path.is_file():
            finish = f"intrabatch train {resume_option(self.path)}"
            raise RunError(f"{self.path} has no weights yet; finish it with: {finish}")
        try:
            return safetensors.torch.load_file(path)
        except Exception as error:  # safetensors raises its own kind, defined in Rust
            raise RunError(f"{path} cannot be read: {error}") from None

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        write_whole(self.path / "checkpoint.pt", lambda path: torch.save(state, path))

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint; None when the run was stopped before its first."""
        path = self.path / "checkpoint.pt"
        if not path.is_file():
            if (self.path / "metrics.json").is_file():
                raise RunError(f"{self.path} is finished; there is nothing to resume")
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError):
            raise RunError(f"{path} is damaged or cut short; remove it and the run begins anew") from None
        return state

    def write_metrics(self, figures: dict[str, Any]) -> None:
        self.write_json("metrics.json", figures | {"run": str(self.path)})

    def epoch(self) -> int:
        """The epoch whose weights were kept."""
        if not (self.path / "metrics.json").is_file():
            return self.config.train.epochs
        epoch = self.read_json("metrics.json").get("epoch")
        if not isinstance(epoch, int):
            raise RunError(f"{self.path}/metrics.json has the epoch {epoch!r}, expected a whole number; train anew")
        return epoch

    def finish(self) -> None:
        (self.path / "checkpoint.pt").unlink(missing_ok=True)

    def history(self) -> list[dict[str, Any]]:
        path = self.path / "history.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def write_history(self, records: list[dict[str, Any]]) -> None:
        self.write_text("history.jsonl", "".join(json.dumps(record) + "\n" for record in records))


def require_free(path: Path) -> None:
    """A run needs a folder of its own."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if (path / "metrics.json").is_file():
        raise RunError(f"{path} holds a finished run; choose another --out")
    if path.exists():
        raise RunError(f"{path} exists and is not empty; choose another --out, or go on with {resume_option(path)}")


def resume_option(path: Path) -> str:
    """As it can be pasted into a shell."""
    return f"--resume {shlex.quote(str(path))}"


def discard_unstarted(path: Path) -> None:
    """Take a run folder away again that holds no more than what every run begins with."""
    if path.is_dir() and {file.name for file in path.iterdir()} <= BEGINNING:
        shutil.rmtree(path)


def splits_table(images: ImageSet) -> str:
    """All images as CSV: path, label, split, role."""
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "label", "split", "role"])
    for index, name in enumerate(images.names):
        split = "" if images.splits is None else str(images.splits[index])
        role = "" if images.roles is None else str(images.roles[index])
        writer.writerow([name, images.classes[images.labels[index]], split, role])
    return text.getvalue()


def environment(device: str) -> dict[str, Any]:
    """What this run was made with."""
    packages = ("torch", "torchvision", "timm", "numpy", "pillow", "scikit-learn")
    return {
        "format": FORMAT,
        "intrabatch": VERSION,
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in packages},
        "platform": platform.platform(),
        "cpu_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "git": _git_commit(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of this code: what INTRABATCH_COMMIT says, for a copy without its history, or that of the checkout it
    runs from, marked when there are uncommitted changes."""
    if os.environ.get(COMMIT):
        return os.environ[COMMIT]
    here = Path(__file__).parent
    try:
        say = [subprocess.run(["git", "-C", here, *args], capture_output=True, text=True, timeout=5) for args in (
            ("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "."))]
    except (OSError, subprocess.TimeoutExpired):
        return None
    if say[0].returncode:
        return None
    return say[0].stdout.strip() + ("-dirty" if say[1].stdout.strip() else "")
