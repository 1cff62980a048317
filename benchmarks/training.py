"""How fast training runs on a GPU, where a step's time goes, and how far that is from what the chip can do.

    python benchmarks/training.py --data data/cub200 --weights resnet50.safetensors        # on a machine with a GPU
    python benchmarks/training.py --small --device cpu                                     # a rehearsal

ResNet-50, 227 pixels, message passing, AdamW, frozen batch norm: the same training three ways (each kernel started by
Python; a step recorded as CUDA graphs; recorded after torch.compile), the quickest also without messages, then its
parts. Speeds are of whole epochs of training after the first, crops included. With --whole the paper's 70 epochs too,
by the command line in a fresh process, from the start of Python to the last figure.
Writes results/training.{json,md} below --out.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from intrabatch import settings
from intrabatch.config import Config
from intrabatch.data.image_set import ImageSet
from intrabatch.data.load import load_images, with_splits
from intrabatch.data.pixels import open_pixels
from intrabatch.progress import Quiet
from intrabatch.recipes import cub_paper, glyphs
from intrabatch.run import Run
from intrabatch.steps import Recorded, Steps, compile_where_it_pays
from intrabatch.train import Training, quick_convolutions

GFLOP_PER_IMAGE = 25.8
"""ResNet-50 at 227 pixels, forward and backward."""
WAYS = {"plain": (False, False), "recorded": (True, False), "compiled and recorded": (True, True)}
QUICKEST = "compiled and recorded"
SMALL = ["data.glyph_classes=20", "data.glyph_images=8", "train.epochs=3", "batch.classes=4"]


def configured(arguments: argparse.Namespace) -> Config:
    if arguments.small:
        return settings.override(glyphs(), [*SMALL, f"train.device={arguments.device}"])
    changes = ["optim.optimizer=adamw", "model.batch_norm=frozen", "data.val_fraction=0", "batch.redraw=false"]
    changes += [f"data.path={arguments.data}", f"model.weights={arguments.weights}", "model.caffe_stride=true"]
    changes += [f"train.device={arguments.device}", "train.epochs=4"]
    return settings.override(cub_paper(), changes)


class Timed(Quiet):
    """Remembers the speed of every epoch."""

    def __init__(self) -> None:
        self.speeds: list[float] = []

    def epoch(self, record: Any) -> None:
        self.speeds.append(record["images_per_second"])


def begin(config: Config, images: ImageSet, pixels: Any, recorded: bool, compiled: bool) -> tuple[Training, Steps]:
    """A training that is ready for its first step."""
    folder = Path(tempfile.mkdtemp()) / "run"
    run = Run.create(folder, config, images, images.only("train").classes, config.train.device)
    training = Training(run, images, torch.device(config.train.device), Timed())
    if compiled and config.train.device != "cpu":
        compile_where_it_pays(training.network, "always", 0)
        pixels.compile()
    steps = Steps(training.network, training.optimizer, training.average, training.precision, config.optim.clip)
    if not recorded:
        steps.gradients, steps.update = steps._gradients, steps._update
    return training, steps


def speed(training: Training, steps: Steps, pixels: Any) -> dict[str, float]:
    """Images a second in epochs after the first, and what came before the first ended."""
    started = time.perf_counter()
    training._train_epoch(pixels, steps, threading.Event())
    first = time.perf_counter() - started
    for _ in range(2):
        training._train_epoch(pixels, steps, threading.Event())
    assert isinstance(training.progress, Timed)
    return {"images_per_second": statistics.median(training.progress.speeds[1:]), "first_epoch_seconds": first}


def loss_curve(config: Config, images: ImageSet, pixels: Any, way: str) -> torch.Tensor:
    """The loss of every step of a first epoch."""
    training, steps = begin(config, images, pixels, *WAYS[way])
    gradients, found = steps.gradients, []

    def remembered(*batch: torch.Tensor) -> torch.Tensor:
        values = gradients(*batch)
        found.append(values[0].clone())
        return values

    steps.gradients = remembered
    training._train_epoch(pixels, steps, threading.Event())
    return torch.stack(found).cpu()


def agreement(config: Config, images: ImageSet, pixels: Any) -> dict[str, float]:
    """How far loss curves of one seed differ on this device: each way run twice, and the ways from one another."""
    first = {way: loss_curve(config, images, pixels, way) for way in WAYS}
    again = {way: loss_curve(config, images, pixels, way) for way in ("plain", QUICKEST)}
    pairs = {f"{way}, twice": (first[way], curve) for way, curve in again.items()}
    pairs |= {f"{way} against plain": (first["plain"], first[way]) for way in ("recorded", QUICKEST)}
    return {
        f"{pair}: {name}": float(difference)
        for pair, (one, other) in pairs.items()
        for name, difference in (
            ("first step", (one - other)[0].abs()),
            ("largest of the first 10", (one - other)[:10].abs().max()),
            ("mean of the epoch", (one.mean() - other.mean()).abs()),
        )
    }


def milliseconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """The median time of some work, the device's queue included."""
    times = []
    for _ in range(repeats + 3):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[3:])


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def learns_after_thawing(config: Config, images: ImageSet, pixels: Any) -> bool:
    """Does the compiled backbone learn once its frozen epochs are over? (PyTorch may go on with what it compiled.)"""
    thawing = replace(config, optim=replace(config.optim, frozen_epochs=1), train=replace(config.train, epochs=2))
    training, _ = begin(thawing, images, pixels, True, False)
    weight = next(training.network.embedder.backbone.parameters())
    before = weight.detach().clone()
    training.config = replace(thawing, train=replace(thawing.train, compile="always"))
    training._train(pixels)
    return not torch.equal(before, weight)


def whole_run(arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of a whole training by the command line, in a process that has seen nothing."""
    out = Path(tempfile.mkdtemp()) / "run"
    recipe, changes = ("glyphs", SMALL) if arguments.small else ("cub_paper", [f"model.weights={arguments.weights}"])
    if not arguments.small:
        changes += ["model.caffe_stride=true", "train.epochs=70"]
    options = [word for change in [*changes, f"train.device={arguments.device}"] for word in ("--set", change)]
    command = [sys.executable, "-m", "intrabatch", "train", arguments.data or "glyphs", "--recipe", recipe]
    started = time.perf_counter()
    subprocess.run([*command, *options, "--out", str(out), "--quiet"], check=True)
    seconds = time.perf_counter() - started
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    return {"epochs": len(history), "seconds": seconds, "of it training": sum(epoch["seconds"] for epoch in history)}


def parts(training: Training, steps: Steps, pixels: Any, repeats: int) -> dict[str, float]:
    """Milliseconds of each part of a step, each alone."""
    from intrabatch.data.batches import plan_epoch

    config, device, images = training.config, training.device, training.train_images
    plan = plan_epoch(images.labels, pixels.sizes_N2, config.batch, config.image, 0, 0)
    labels_B = torch.from_numpy(images.labels[plan.indices_SB[0]]).to(device)
    crops = pixels.train_crops(plan, 0)
    batch = next(crops).clone()

    def a_crop() -> None:
        nonlocal crops
        if next(crops, None) is None:
            crops = pixels.train_crops(plan, 0)

    embeddings_BD = torch.randn(config.batch.size, config.model.dim, device=device, requires_grad=True)

    def loss_alone() -> torch.Tensor:
        loss: torch.Tensor = training.network.loss(embeddings_BD, labels_B)
        loss.backward()
        return loss.detach()

    alone = Recorded(loss_alone) if device.type == "cuda" else loss_alone
    for _ in range(5):
        alone()
    return {
        "crops": milliseconds(a_crop, device, min(repeats, len(plan) - 4)),
        "forward, losses, backward": milliseconds(lambda: steps.gradients(batch, labels_B), device, repeats),
        "message passing and both heads alone": milliseconds(alone, device, repeats),
        "update": milliseconds(steps.update, device, repeats),
    }


def chip(device: torch.device) -> float:
    """TFLOP/s of a large bf16 matrix product."""
    size = 8192 if device.type == "cuda" else 512
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    return 2 * size**3 / milliseconds(lambda: a @ a, device, 10) / 1e9


def evaluation_seconds(training: Training) -> dict[str, float]:
    """A full evaluation of the test classes: embedding them, and all figures."""
    assert training.test is not None
    times = {}
    for name in ("first", "again"):
        started = time.perf_counter()
        training.test.vectors(training.network.embedder, training.precision)
        embedded = time.perf_counter()
        training._final_figures(1)
        times[f"embedding the test images, {name}"] = embedded - started
        times[f"embedding and all figures, {name}"] = time.perf_counter() - embedded
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="")
    parser.add_argument("--weights", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--whole", action="store_true", help="time the paper's 70 epochs from a cold start, too")
    parser.add_argument("--batches", nargs="+", default=["6x9", "10x9"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    config = configured(arguments)
    device = torch.device(arguments.device)
    started = time.perf_counter()
    images = with_splits(load_images(config.data), config.data)
    pixels = open_pixels(images.only("train"), config.image, device)
    report: dict[str, Any] = {
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "training_images": len(images.only("train")),
        "decoding_training_images_seconds": time.perf_counter() - started,
        "bf16_matrix_product_tflops": chip(device),
        "rows": [],
    }
    with quick_convolutions():
        for batch in arguments.batches if not arguments.small else ["4x4"]:
            classes, per_class = map(int, batch.split("x"))
            sized = replace(config, batch=replace(config.batch, classes=classes, images=per_class))
            for way in arguments.ways:
                report["rows"].append(measured(sized, images, pixels, way, arguments.small))
                print(json.dumps(report["rows"][-1]), flush=True)
            if QUICKEST in arguments.ways:
                alone = replace(sized, loss=replace(sized.loss, messages=0.0))
                found = speed(*begin(alone, images, pixels, *WAYS[QUICKEST]), pixels)
                report["rows"].append({"batch": sized.batch.size, "way": f"{QUICKEST}, no messages"} | found)
                print(json.dumps(report["rows"][-1]), flush=True)
        if arguments.ways == list(WAYS):
            report["loss_differences_of_one_seed"] = agreement(config, images, pixels)
        if device.type == "cuda":
            report["learns_after_thawing"] = learns_after_thawing(config, images, pixels)
    if arguments.whole:
        report["whole_run"] = whole_run(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    (arguments.out / "training.md").write_text(markdown(report))
    print(markdown(report))


def measured(config: Config, images: ImageSet, pixels: Any, way: str, small: bool) -> dict[str, Any]:
    """One row: the speed of a way of training, and for the last way its parts and a full evaluation."""
    training, steps = begin(config, images, pixels, *WAYS[way])
    row: dict[str, Any] = {"batch": config.batch.size, "way": way} | speed(training, steps, pixels)
    if way == QUICKEST:
        row["parts_ms"] = parts(training, steps, pixels, 5 if small else 40)
        row["evaluation_seconds"] = evaluation_seconds(training)
    return row


def markdown(report: dict[str, Any]) -> str:
    peak = report["bf16_matrix_product_tflops"]
    floor = 1000 * peak / GFLOP_PER_IMAGE
    lines = ["# Training on a GPU", "", "`python benchmarks/training.py --data DATA --weights FILE`", ""]
    lines += [f"- machine: {report['machine']}; {report['versions']}"]
    lines += [f"- a large bf16 matrix product: {peak:.0f} TFLOP/s; at that rate {floor:,.0f} images/s"]
    lines += [f"- decoding the training images: {report['decoding_training_images_seconds']:.1f} s", ""]
    lines += ["| batch | way | images/s | share of the floor's rate | first epoch, s |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        rate = row["images_per_second"]
        lines.append(
            f"| {row['batch']} | {row['way']} | {rate:,.0f} | {rate / floor:.0%} | {row['first_epoch_seconds']:.1f} |"
        )
    for row in report["rows"]:
        if "parts_ms" in row:
            lines += ["", f"Parts of a step of {row['batch']}, {row['way']}, each alone:", ""]
            lines += ["| part | ms |", "|---|---|"]
            lines += [f"| {name} | {value:.2f} |" for name, value in row["parts_ms"].items()]
            lines += [f"| {name} (s) | {value:.2f} |" for name, value in row["evaluation_seconds"].items()]
    for row in report["rows"]:
        if row["way"].endswith("no messages"):
            both = next(one for one in report["rows"] if (one["batch"], one["way"]) == (row["batch"], QUICKEST))
            share = 1 - both["images_per_second"] / row["images_per_second"]
            lines += ["", f"Message passing and its head take {share:.1%} of a step of {row['batch']}."]
            took = both["evaluation_seconds"]["embedding and all figures, again"]
            epoch = report["training_images"] / both["images_per_second"]
            lines += [f"An epoch takes {epoch:.2f} s, {epoch + took:.2f} s with a full evaluation of the test classes."]
    if "whole_run" in report:
        whole = report["whole_run"]
        lines += ["", f"{whole['epochs']} epochs from a cold start, decoding and evaluation included: "]
        lines[-1] += f"{whole['seconds']:.0f} s, of which {whole['of it training']:.0f} s are training steps."
    if "learns_after_thawing" in report:
        lines += ["", f"After frozen epochs the compiled backbone learns: {report['learns_after_thawing']}."]
    lines += ["", "Differences between the losses of two first epochs of one seed:", ""]
    lines += ["| which | loss |", "|---|---|"]
    differences = report.get("loss_differences_of_one_seed", {})
    lines += [f"| {name} | {value:.2g} |" for name, value in differences.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
