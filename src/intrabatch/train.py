"""The training loop, from images to a finished run folder.

    for each epoch: plan its batches; for each step: crops -> network -> losses -> update; validate; save
    at the end: weights, figures on the test classes, which nothing before has chosen by

Everything random is a function of (seed, step), so `resume` continues where a run was stopped and, on a CPU, ends with
the same weights as a run that was not. Pictures, pages and the command line are not known here.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .config import Config
from .data.batches import num_batches, plan_epoch, require_classes
from .data.image_set import ImageSet
from .data.pixels import DevicePixels, Pixels, open_pixels
from .devices import out_of_memory, pick_device, pick_precision
from .embed import embed_crops
from .errors import ConfigError, DataError, NonFiniteError, RunError
from .evaluate import AS_PUBLISHED, BEST_TEST_EPOCH, Evaluator, is_measurable
from .model import Network
from .optim import AveragedWeights, Optimizers, rate_factor
from .progress import Progress, Quiet
from .run import Run
from .signals import stop_signals
from .steps import Steps, compile_where_it_pays, forget_compiled

SELECT_BY = "recall@1"
RELOADED_AFTER = (30, 50)
"""Epochs after which the released code goes back to the weights best on the test classes."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal after saving; `run` can be resumed."""

    def __init__(self, run: Run, epoch: int, step: int) -> None:
        super().__init__(f"stopped in epoch {epoch} after {step} steps")
        self.run, self.epoch, self.step = run, epoch, step


@dataclass
class Position:
    """Where a training stands; all of it is in the checkpoint."""

    epoch: int = 0
    step: int = 0
    """steps done in this epoch"""
    losses: dict[str, float] = field(default_factory=dict)
    """sums over the steps done in this epoch"""
    seconds: float = 0.0
    """spent on those steps"""
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)
    """the validation score and epoch of the weights kept, under the protocol "validation\""""
    untrained: dict[str, float] = field(default_factory=dict)
    """test figures of the network before its first step"""


def train(config: Config, images: ImageSet, out: Path, progress: Progress | None = None) -> Run:
    """Train a new run in the folder `out` on images that have a split; returns the finished run."""
    classes = images.only("train").classes
    require_classes(len(classes), config.batch)
    require_judge(config, images)
    require_spread(config, len(images.only("train")))
    device = pick_device(config.train.device)
    run = Run.create(out, config, images, classes, str(device))
    return Training(run, images, device, progress or Quiet()).go()


def require_spread(config: Config, num_images: int) -> None:
    """Stop before training where there are too few training images to know how embeddings spread."""
    if config.model.whiten and num_images <= config.model.dim:
        raise ConfigError(
            f"model.whiten needs more training images than model.dim = {config.model.dim}, but there are {num_images}; "
            f"set model.whiten=0 or a smaller model.dim"
        )


def require_judge(config: Config, images: ImageSet) -> None:
    """Stop before training where the epoch is to be chosen by classes that are not there."""
    judges = {"validation": "val", "as-published": "test"}
    protocol, split = config.train.protocol, judges.get(config.train.protocol)
    if split and not is_measurable(images, split):
        raise ConfigError(
            f"train.protocol={protocol} chooses the epoch by {split} classes, but that takes two of them, one with two "
            f"images; set data.{split}_fraction above 0, bring a {split} split, or keep the last epoch: "
            f"train.protocol=final"
        )


def resume(path: Path, images: ImageSet, progress: Progress | None = None) -> Run:
    """Go on with a run that was stopped or killed, from its last checkpoint, or from the start if it has none."""
    run = Run.open(path)
    state = run.load_checkpoint()
    training = Training(run, images, pick_device(run.config.train.device), progress or Quiet())
    if state is not None:
        training.restore(state)
    return training.go()


class Training:
    """One run on its way: the network, what moves it, and where it stands."""

    def __init__(self, run: Run, images: ImageSet, device: torch.device, progress: Progress) -> None:
        self.run, self.config, self.device, self.progress = run, run.config, device, progress
        self.precision = pick_precision(self.config.train.precision, device)
        self.train_images = images.only("train")
        if self.train_images.classes != run.classes:
            raise DataError(f"{run.path} was trained on other classes than the images given; resume with the same data")
        self.val = Evaluator.for_split(images, "val", self.config, device)
        self.test = Evaluator.for_split(images, "test", self.config, device)
        torch.manual_seed(self.config.train.seed)
        self.network = Network(self.config, len(run.classes)).to(device)
        if device.type == "cuda":  # the order of numbers in memory that its matrix units read
            self.network.embedder.backbone.to(memory_format=torch.channels_last)
        self.optimizer = Optimizers(self.network, self.config.optim)
        self.average = AveragedWeights(self.network, self.config.optim.ema) if self.config.optim.ema else None
        self.kept: dict[str, Tensor] | None = None
        """The weights of the best epoch, under the protocols that choose one."""
        self.position = Position()
        self.num_steps = num_batches(len(self.train_images), self.config.batch)
        self.last_saved, self.save_seconds = time.monotonic(), 0.0

    def go(self) -> Run:
        """Train to the end, evaluate, and finish the run."""
        config = self.config
        if config.train.protocol == "as-published":
            self.progress.say(f"WARNING: {AS_PUBLISHED}")
        self.progress.say(f"backbone {config.model.backbone}: {self.network.embedder.weights_from}")
        try:
            with quick_convolutions():
                self.pixels = open_pixels(self.train_images, config.image, self.device)
                self._train(self.pixels)
                return self._finish()
        except torch.cuda.OutOfMemoryError:
            raise out_of_memory(self.device, config.batch, config.image.store) from None

    def _train(self, pixels: Pixels) -> None:
        """All epochs that are left."""
        config, epochs = self.config, self.config.train.epochs
        self.progress.say(
            f"{len(self.train_images)} training images of {len(self.run.classes)} classes, kept in: {pixels.where}; "
            f"device: {self.device}, {str(self.precision).removeprefix('torch.')}"
        )
        if self.test and not self.position.untrained:
            self.position.untrained = self._figures(self.test)
        images_to_come = (epochs * self.num_steps - self._global_step()) * config.batch.size
        if compile_where_it_pays(self.network, config.train.compile, images_to_come):
            self.progress.say("compiling: the first step takes about half a minute (not with train.compile=never)")
            if isinstance(pixels, DevicePixels):
                pixels.compile()
        steps = Steps(self.network, self.optimizer, self.average, self.precision, config.optim.clip)
        self.progress.begin(epochs * self.num_steps, self._global_step())
        try:
            with stop_signals() as stopped:
                while self.position.epoch < epochs:
                    if self.position.epoch == config.optim.frozen_epochs > 0:
                        if self.network.fused:
                            forget_compiled()
                        steps.record_anew()  # from here on the backbone learns too
                    self._train_epoch(pixels, steps, stopped)
                if stopped.is_set():  # in the last epoch's validation: all but the final figures is done and saved
                    raise Interrupted(self.run, self.position.epoch, 0)
        finally:
            self.progress.end()

    def restore(self, state: dict[str, Any]) -> None:
        """Stand where a checkpoint was written."""
        try:
            self._restore(state)
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or ["empty"])[0][:120]
            raise RunError(
                f"{self.run.path}/checkpoint.pt does not fit the run's config.yaml ({type(error).__name__}: {reason}); "
                f"put config.yaml back as it was, or remove the checkpoint and the run begins anew"
            ) from None

    def _restore(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average:
            self.average.average = {name: tensor.to(self.device) for name, tensor in state["average"].items()}
        self.kept = state["kept"]
        self.position = Position(**state["position"])

    def save(self) -> None:
        started = time.monotonic()
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": vars(self.position),
            "kept": self.kept,
        }
        if self.average:
            state["average"] = self.average.average
        self.run.save_checkpoint(state)
        self.last_saved = time.monotonic()
        self.save_seconds = self.last_saved - started

    def _saving_is_cheap(self) -> bool:
        """After a quick epoch a checkpoint may cost as much as the epoch; a twentieth of the time may go there."""
        return time.monotonic() - self.last_saved > 20 * self.save_seconds

    def _train_epoch(self, pixels: Pixels, steps: Steps, stopped: threading.Event) -> None:
        config, position = self.config, self.position
        labels_N = self.train_images.labels
        plan = plan_epoch(labels_N, pixels.sizes_N2, config.batch, config.image, config.train.seed, position.epoch)
        labels_SB = torch.from_numpy(labels_N[plan.indices_SB]).to(self.device)
        self.network.embedder.backbone.requires_grad_(position.epoch >= config.optim.frozen_epochs)
        self.network.train()
        started, seconds_before = time.perf_counter(), position.seconds
        crops = pixels.train_crops(plan, position.step)
        coming = next(crops, None)
        while coming is not None:
            step = position.step
            self._prepare_step()
            pending = steps.gradients(coming, labels_SB[step])
            coming = next(crops, None)  # made while a GPU still works on this step
            parts = self._checked(dict(zip(steps.names, pending.tolist(), strict=True)), plan.indices_SB[step])
            steps.update()
            for name, value in parts.items():
                position.losses[name] = position.losses.get(name, 0.0) + value
            position.step = step + 1
            position.seconds = seconds_before + time.perf_counter() - started
            self.progress.step(self._global_step(), self._record)
            if stopped.is_set():
                self.save()
                raise Interrupted(self.run, position.epoch + 1, position.step)
            if time.monotonic() - self.last_saved > 60 * config.train.save_minutes:
                self.save()
        self._end_epoch()

    def _prepare_step(self) -> None:
        """Learning rates and the seed of dropout: functions of the step, so that resuming repeats them."""
        config, step = self.config, self._global_step()
        seed = np.random.SeedSequence([config.train.seed, step]).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(seed) & (2**63 - 1))
        self.optimizer.set_rates(rate_factor(step, self.num_steps, config.train.epochs, config.optim))

    def _checked(self, values: dict[str, float], indices_B: np.ndarray) -> dict[str, float]:
        """The losses of a step; unless all of them and the gradient are finite, training stops before the update."""
        norm = values.pop("gradient_norm")
        if not (math.isfinite(norm) and all(map(math.isfinite, values.values()))):
            self._stop_before_bad_update(values, norm, indices_B)
        return values

    def _stop_before_bad_update(self, values: dict[str, float], norm: float, indices_B: np.ndarray) -> None:
        """Keep the state of before this step, and the names of the batch's images, then stop."""
        self.save()
        names = [self.train_images.names[i] for i in indices_B]
        self.run.write_json("bad_batch.json", {"losses": str(values), "gradient_norm": str(norm), "images": names})
        raise NonFiniteError(
            f"{self.run.path}: epoch {self.position.epoch + 1}, step {self.position.step + 1}: loss "
            f"{values['loss']:.4g}, gradient norm {norm:.4g}; the update was not made, the state before it is saved, "
            f"the batch is in bad_batch.json. Lower optim.learning_rate or set optim.clip, and train again"
        )

    def _end_epoch(self) -> None:
        position, config = self.position, self.config.train
        record, every = self._record(), config.validate_every
        last = position.epoch + 1 == config.epochs
        due = last or (every and (position.epoch + 1) % every == 0)
        judge = self.test if config.protocol == "as-published" else self.val
        if judge and due:
            record |= self._told(judge)
            self._keep_best(record[f"{judge.split}/{SELECT_BY}"], position.epoch + 1)
        if config.watch_test and due and self.test and self.test is not judge:
            record |= self._told(self.test)
        position.history.append(record)
        position.epoch, position.step, position.losses, position.seconds = position.epoch + 1, 0, {}, 0.0
        self.run.write_history(position.history)
        if last or self._saving_is_cheap():
            self.save()
        self.progress.epoch(record)

    def _told(self, evaluator: Evaluator) -> dict[str, float]:
        """Figures as history.jsonl has them."""
        return {f"{evaluator.split}/{name}": value for name, value in self._figures(evaluator).items()}

    def _keep_best(self, score: float, epoch: int) -> None:
        """Under the protocols that choose an epoch: keep the best weights, and as published, go back to them."""
        protocol = self.config.train.protocol
        if protocol == "final":
            return
        if score > self.position.best.get("score", -1.0):
            self.position.best = {"score": score, "epoch": epoch}
            self.kept = {name: tensor.detach().clone() for name, tensor in self._moving_state().items()}
        if protocol == "as-published" and epoch in RELOADED_AFTER and self.kept:
            self.network.load_state_dict(self.kept)

    def _finish(self) -> Run:
        """Save the weights that the protocol keeps, and measure them once on the test classes."""
        self.network.load_state_dict(self.kept or self._moving_state())
        self._whiten()
        self.run.save_weights(self.network.state_dict())
        epoch = int(self.position.best.get("epoch", self.position.epoch))
        figures = self._final_figures(epoch) | {"epoch": epoch, "untrained": self.position.untrained}
        self.run.write_metrics(figures | self._best_test_epoch())
        self.run.finish()
        return self.run

    def _best_test_epoch(self) -> dict[str, Any]:
        """Where the test classes were watched, the epoch that papers report; it stands apart from the figures."""
        watched = [record for record in self.position.history if f"test/{SELECT_BY}" in record]
        if not (self.config.train.watch_test and watched):
            return {}
        best = max(watched, key=lambda record: record[f"test/{SELECT_BY}"])
        told = {name.removeprefix("test/"): value for name, value in best.items() if name.startswith("test/")}
        return {"best_test_epoch": {"epoch": best["epoch"], "metrics": told, "warning": BEST_TEST_EPOCH}}

    def _final_figures(self, epoch: int) -> dict[str, Any]:
        """All figures on the test classes; on the validation classes if there is no test."""
        evaluator = self.test or self.val
        if evaluator is None:
            return {"metrics": {}, "protocol": {}}
        return evaluator.measure(self.network.embedder, self.precision, self.run, epoch)

    def _figures(self, evaluator: Evaluator) -> dict[str, float]:
        """Retrieval figures of the weights as they would be kept now."""
        if not self.average or not self.position.epoch:
            return self._retrieval(evaluator)
        moving = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        self.network.load_state_dict(self.average.average)
        try:
            return self._retrieval(evaluator)
        finally:
            self.network.load_state_dict(moving)

    def _retrieval(self, evaluator: Evaluator) -> dict[str, float]:
        self._whiten()
        return evaluator.retrieval(self.network.embedder, self.precision)

    def _whiten(self) -> None:
        """Fit the embedder's whitening, if it has one, to the training images as it embeds them now."""
        embedder = self.network.embedder
        if embedder.whitening is not None:
            crops = self.pixels.test_crops(self.config.evaluation.batch)
            seen_ND = embed_crops(embedder, crops, self.precision, unit=False)
            embedder.whitening.fit(torch.from_numpy(seen_ND), self.config.model.whiten)

    def _moving_state(self) -> dict[str, Tensor]:
        """The weights as they would be kept now."""
        return self.average.average if self.average else self.network.state_dict()

    def _record(self) -> dict[str, float]:
        """This epoch so far: mean losses, learning rate, speed."""
        position = self.position
        means = {name: value / position.step for name, value in position.losses.items()}
        speed = position.step * self.config.batch.size / max(position.seconds, 1e-9)
        rates = {"learning_rate": self.optimizer.rate(), "images_per_second": speed, "seconds": position.seconds}
        return {"epoch": position.epoch + 1, **means, **rates}

    def _global_step(self) -> int:
        return self.position.epoch * self.num_steps + self.position.step


@contextmanager
def quick_convolutions() -> Iterator[None]:
    """Let a GPU try its convolution algorithms on each shape once and keep the quickest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32")  # what is in float32 here is so on purpose
            yield
    finally:
        torch.backends.cudnn.benchmark = before
