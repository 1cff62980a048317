"""What each command does, as one call: images checked and split, a run evaluated, files searched, figures as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from .config import Config, DataConfig
from .data.check import broken_sample, check, drop_broken, require_trainable, require_unbroken
from .data.image_set import ImageSet
from .data.load import found_by_run, load_images, singletons, with_splits, with_splits_of
from .data.reading import read_any_images
from .devices import pick_device
from .embed import load_embeddings
from .errors import EvaluationError
from .evaluate import describe_list, is_measurable, measure_vectors
from .run import Run
from .trained import Trained


def prepared_images(config: Config, skip_broken: bool, say: Callable[[str], None]) -> ImageSet:
    """The images of a configuration, read once to be sure of them, with a split; ready for `train`."""
    images = load_images(config.data)
    report = check(images)
    if skip_broken and report.broken:
        say(f"left out {len(report.broken)} files that cannot be read: {broken_sample(report)}")
        images = drop_broken(images, report)
    elif report.broken:
        require_unbroken(report)
    require_trainable(images)
    split = with_splits(images, config.data)
    alone = singletons(split)
    if alone:
        say(f"{alone} classes have one image only: left out of training, kept in the gallery where there is no split")
    if config.data.val_fraction and split.splits is not None and "val" not in split.splits:
        say("no classes validate: data.val_fraction comes to fewer than two of them, so all but the test classes train")
    own = set() if images.splits is None else set(images.splits)
    for name in ("val", "test"):
        if name in own and not is_measurable(split, name):
            say(f"nothing is measured on the {name} split: that takes two classes, and a class with two images")
    return split


def resumed_images(run: Run) -> ImageSet:
    """The images of a run, with the split it began with."""
    with found_by_run(run.path):
        images = load_images(run.config.data)
    return with_splits_of(images, run.path / "splits.csv")


def evaluate_run(path: Path, data: str | None, change: Callable[[Config], Config]) -> dict[str, Any]:
    """Figures of a run on its own test classes, or on other labelled images: their test split, else all of them."""
    run = Run.open(path)
    config = change(run.config)
    trained = Trained.open(path, config.train.device)
    trained = replace(trained, run=replace(run, config=config))
    if data is None:
        images = trained.own_images()
    else:
        images = load_images(replace(config.data, path=data, source="glyphs" if data == "glyphs" else "auto"))
    if images.splits is None:
        return trained.evaluate(images, "all")
    split = next((split for split in ("test", "val") if split in images.splits), "train")
    return trained.evaluate(images.only(split), split)


def evaluate_file(files: list[Path], config: Config) -> dict[str, Any]:
    """Figures of vectors made by whatever model."""
    if config.evaluation.refine != "none":
        raise EvaluationError("--refine needs the message passing of a run; vectors alone (--embeddings) have none")
    if len(files) > 2:
        raise EvaluationError(f"--embeddings takes one file, or a .npy and its .csv; got {len(files)}")
    embeddings = load_embeddings(files[0], files[1] if len(files) == 2 else None)
    classes, labels = np.unique(embeddings.labels, return_inverse=True)
    roles = None if embeddings.roles is None else np.array(embeddings.roles)
    device = str(pick_device(config.train.device))
    found = embeddings.vectors_ND, labels.astype(np.int64), roles
    figures = measure_vectors(*found, config.evaluation, device, [str(name) for name in classes])
    figures["protocol"] |= {"split": "all"} | describe_list(embeddings.names, embeddings.labels, embeddings.roles)
    return figures | {"run": None, "embeddings": str(files[0])}


def search_files(run: Path, gallery: str, queries: list[str], k: int, device: str) -> list[dict[str, Any]]:
    """For each query file its k best hits in the gallery, as plain values."""
    trained = Trained.open(run, device)
    searched = any_images(gallery)
    asked = [(query, any_images(query)) for query in queries]  # all are found before the work begins
    gallery_GD = trained.vectors(searched)
    results = []
    for query, images in asked:
        hits_QK = trained.hits(searched, gallery_GD, trained.vectors(images), min(k, len(searched)))
        for name, hits in zip(images.names, hits_QK, strict=True):
            results.append({"query": query if len(images) == 1 else name, "hits": [asdict(hit) for hit in hits]})
    return results


def any_images(data: str) -> ImageSet:
    """Images to embed or to search: labelled or loose, or the built-in glyphs."""
    return load_images(DataConfig(path=data)) if data == "glyphs" else read_any_images(data)


def figure_lines(figures: dict[str, Any]) -> list[str]:
    """Figures for a person: untrained beside trained, intervals where known, then what they mean."""
    metrics, untrained, protocol = figures["metrics"], figures.get("untrained") or {}, figures["protocol"]
    if not metrics:
        return ["nothing to measure: there are no test or validation classes with two images"]
    width = max(map(len, metrics)) + 2
    lines = [f"WARNING: {protocol['warning']}"] if "warning" in protocol else []
    lines += [f"{'percent':<{width}}" + (f"{'untrained':>10}" if untrained else "") + f"{'trained':>10}"]
    for name, value in metrics.items():
        before = (f"{100 * untrained[name]:>10.1f}" if name in untrained else f"{'':>10}") if untrained else ""
        low, high = figures.get("intervals", {}).get(name, (None, None))
        interval = "" if low is None else f"   {100 * low:.1f} to {100 * high:.1f}"
        lines.append(f"{name:<{width}}{before}{100 * value:>10.1f}{interval}")
    hardest = ", ".join(f"{name} {100 * value:.0f}" for name, value in list(figures.get("hardest", {}).items())[:5])
    lines += ["", f"hardest classes (map@r): {hardest}"] if hardest else [""]
    lines += [f"{key.replace('_', ' ')}: {_told(value)}" for key, value in protocol.items()]
    return [*lines, f"run: {figures['run']}"]


def _told(value: Any) -> str:
    return ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
