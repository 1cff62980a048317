"""Several runs together: as one ensemble, as seeds of the same settings, or one against another.

    train_seeds      out/seed0, out/seed1, ... and out/seeds.json: every figure with its interval, a row a seed
    train_ensemble   the same folders and out/ensemble.json: one figure for all of them together, and a row each
    evaluate_ensemble, compare_runs   of any runs that have the same test set

Seeds are trained one after the other; what is finished stays, what was interrupted goes on from its checkpoint.
Shapes: N images, D numbers a vector of all runs together.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import settings
from .config import Config
from .data.image_set import ImageSet
from .data.load import load_images
from .distil import TEACHER_FILE, distil, is_student, resume_distil, student_config, taught
from .errors import ConfigError, EvaluationError, RunError
from .evaluate import left_out, measure_vectors, protocol_of, retrieval_of, versions
from .progress import Progress, Quiet, Tracked
from .run import BEGINNING, Run
from .statistics import compared, over_seeds
from .train import resume, train
from .trained import Trained

Figures = dict[str, Any]
Change = Callable[[Config], Config]
"""What the command line changes about a run's settings before it is measured: figures, device."""

FALSE_START = {*BEGINNING, TEACHER_FILE}
"""All that a run folder holds before its training begins."""


def evaluate_ensemble(
    paths: Sequence[Path], data: str | None = None, change: Change = lambda config: config
) -> Figures:
    """Figures of the runs together: their unit vectors side by side, on their common test set or on other images.

    Where `evaluation.refine` asks for message passing at test time, each run refines its own vectors first.
    """
    return ensemble_figures(*_on_one_test_set(paths, data, change))


def ensemble_figures(trained: Sequence[Trained], images: ImageSet, split: str) -> Figures:
    """All figures of labelled images as the runs together embed them."""
    vectors_ND = ensemble_vectors([_tested_vectors(one, images) for one in trained])
    config, device = trained[0].config.evaluation, str(trained[0].device)
    figures = measure_vectors(vectors_ND, images.labels, images.roles, config, device, images.classes)
    protocols = [protocol_of(one.run, one.run.epoch(), split, images) for one in trained]
    figures["protocol"] |= _common(protocols) | {"ensemble_of": len(trained), "refinement": config.refine}
    return figures | {"run": ", ".join(str(one.run.path) for one in trained)}


def _tested_vectors(one: Trained, images: ImageSet) -> NDArray[np.float32]:
    """Unit vectors as the run is to be measured by: the backbone's, or refined by message passing."""
    if one.config.evaluation.refine == "none":
        return one.vectors(images)
    refined_ND = one.refined_vectors(images)
    unit_ND: NDArray[np.float32] = refined_ND / np.linalg.norm(refined_ND, axis=1, keepdims=True)
    return unit_ND


def ensemble_vectors(vectors: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Unit vectors of several models, side by side and of length one again."""
    joined_ND = np.concatenate(list(vectors), axis=1)
    unit_ND: NDArray[np.float32] = joined_ND / np.linalg.norm(joined_ND, axis=1, keepdims=True)
    return unit_ND


def compare_runs(first: Path, second: Path, data: str | None = None, change: Change = lambda config: config) -> Figures:
    """Every retrieval figure of both runs, and the second minus the first with its interval over classes."""
    trained, images, split = _on_one_test_set((first, second), data, change)
    config, device = trained[0].config.evaluation, str(trained[0].device)
    vectors = [_tested_vectors(one, images) for one in trained]
    left, right = (retrieval_of(part_ND, images.labels, images.roles, config, device) for part_ND in vectors)
    found = {name: compared(left.values[name], right.values[name], left.labels) for name in left.values}
    comparison = {name: asdict(figure) | {"verdict": figure.verdict} for name, figure in found.items()}
    protocol = _common([protocol_of(one.run, one.run.epoch(), split, images) for one in trained])
    meaning = "95 % bootstrap over classes; p by swapping the runs class by class"
    protocol |= {"interval": meaning, "refinement": config.refine, "num_queries": len(left.queries)}
    protocol |= {"embedding_size": _common_value([part_ND.shape[1] for part_ND in vectors]), "versions": versions()}
    protocol |= left_out(config, left)
    return {"runs": [str(first), str(second)], "comparison": comparison, "protocol": protocol}


def comparison_lines(figures: Figures) -> list[str]:
    """A comparison for a person, in percent."""
    lines = [f"{'':<14}{'first':>8}{'second':>8}{'difference':>12}   95 % interval"]
    for name, found in figures["comparison"].items():
        first, second, gain = found["first"], found["second"], found["difference"]
        lines.append(
            f"{name:<14}{100 * first:>8.1f}{100 * second:>8.1f}{100 * gain['mean']:>+12.1f}   "
            f"{100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}, p = {found['p_value']:.3f}: {found['verdict']}"
        )
    said = [f"{key.replace('_', ' ')}: {value}" for key, value in figures["protocol"].items()]
    return [*lines, "", *said, f"first: {figures['runs'][0]}", f"second: {figures['runs'][1]}"]


def train_seeds(config: Config, images: ImageSet, out: Path, num: int, progress: Progress | None = None) -> Figures:
    """Train `num` seeds and report every figure's mean, standard deviation and 95 % interval."""
    runs = _trained_seeds(config, images, out, num, progress, "--seeds")
    figures = seed_figures(runs) | {"run": str(out)}
    _write(out / "seeds.json", figures)
    return figures


def seed_figures(runs: Sequence[Run]) -> Figures:
    """Means over runs that differ in their seed only, with deviations, intervals, and a row for each run."""
    found = [run.read_json("metrics.json") for run in runs]
    values = {name: [one["metrics"][name] for one in found] for name in found[0]["metrics"]}
    intervals = {name: over_seeds(numbers) for name, numbers in values.items()}
    return {
        "metrics": {name: interval.mean for name, interval in intervals.items()},
        "intervals": {name: [interval.low, interval.high] for name, interval in intervals.items()},
        "deviations": {name: float(np.std(numbers, ddof=1)) for name, numbers in values.items()},
        "rows": [_row(run, one) for run, one in zip(runs, found, strict=True)],
        "protocol": _common([one["protocol"] for one in found]) | {"interval": f"95 % t over {len(runs)} seeds"},
    }


def train_ensemble(config: Config, images: ImageSet, out: Path, num: int, progress: Progress | None = None) -> Figures:
    """Train `num` seeds and report their figures as one ensemble, with a row for each."""
    runs = _trained_seeds(config, images, out, num, progress, "--ensemble")
    figures = evaluate_ensemble([run.path for run in runs]) | {"run": str(out)}
    figures["rows"] = [_row(run, run.read_json("metrics.json")) for run in runs]
    _write(out / "ensemble.json", figures)
    return figures


def _row(run: Run, figures: Figures) -> Figures:
    return {"seed": run.config.train.seed, "run": str(run.path), "metrics": figures["metrics"]}


def _write(path: Path, figures: Figures) -> None:
    path.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _trained_seeds(
    config: Config, images: ImageSet, out: Path, num: int, progress: Progress | None, option: str
) -> list[Run]:
    """Finished runs out/seed0, out/seed1, ...: the settings' own seed and those after it."""
    if num < 2:
        raise ConfigError(f"{option} is {num}; expected 2 or more")
    seeds = range(config.train.seed, config.train.seed + num)
    return [trained_run(with_seed(config, seed), images, out / f"seed{seed}", progress) for seed in seeds]


def with_seed(config: Config, seed: int) -> Config:
    return replace(config, train=replace(config.train, seed=seed))


def trained_run(config: Config, images: ImageSet, path: Path, progress: Progress | None = None) -> Run:
    """The finished run of these settings at `path`: trained now, gone on with, or as it lies there."""
    heard = _heard(progress, path, config)
    return finished_run(path, config, lambda: train(config, images, path, heard), lambda: resume(path, images, heard))


def _heard(progress: Progress | None, path: Path, config: Config) -> Progress:
    """The display, and TensorBoard where it is installed."""
    return Tracked(progress or Quiet(), [], path, settings.as_mapping(config))


def student_run(
    teacher: Path,
    how: str,
    images: ImageSet,
    path: Path,
    progress: Progress | None = None,
    config: Config | None = None,
) -> Run:
    """The finished student of a run at `path`: taught now, gone on with, or as it lies there."""
    config = config or student_config(Run.open(teacher).config)
    _require_same_lesson(path, teacher, how)
    heard = _heard(progress, path, config)
    return finished_run(
        path,
        config,
        lambda: distil(teacher, how, images, path, heard, config),
        lambda: resume_distil(path, images, heard),
    )


def finished_run(path: Path, config: Config, begin: Callable[[], Run], go_on: Callable[[], Run]) -> Run:
    """The run at `path` as it is if finished, else whatever `go_on` or `begin` makes of it."""
    if _clear_false_start(path):
        return begin()
    run = Run.open(path)
    require_same_settings(run, config)
    return run if (path / "metrics.json").is_file() else go_on()


def _clear_false_start(path: Path) -> bool:
    """Whether nothing of a training is there yet; the files of a run that died before it had any are removed."""
    found = list(path.iterdir()) if path.is_dir() else []
    if not {file.name for file in found} <= FALSE_START:
        return False
    for file in found:
        file.unlink()
    return True


def require_same_settings(run: Run, config: Config) -> None:
    """A run that is there already is only gone on with, or used, under its own settings."""
    wanted = dict(settings.walk(config))
    for key, value in settings.walk(run.config):
        if value != wanted[key]:
            raise RunError(
                f"{run.path} was trained with {key} = {value}, now {wanted[key]} is asked for; choose another --out"
            )


def _require_same_lesson(path: Path, teacher: Path, how: str) -> None:
    """A student that is there already has the same teacher and learns the same."""
    if is_student(path):
        found = taught(path)
        if (Path(found["teacher"]).resolve(), found["how"]) != (teacher.resolve(), how):
            raise RunError(
                f"{path} is a student of {found['teacher']} by {found['how']}, now {teacher} by {how} is asked for; "
                f"choose another --out"
            )


def _common(protocols: Sequence[Figures]) -> Figures:
    """One protocol for several runs: what is the same stands once, what differs once for each."""
    return {key: _common_value([protocol.get(key) for protocol in protocols]) for key in protocols[0]}


def _common_value(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else values


def _on_one_test_set(paths: Sequence[Path], data: str | None, change: Change) -> tuple[list[Trained], ImageSet, str]:
    """The runs opened, and the images to measure all of them on, with the split these are."""
    if len(paths) < 2:
        raise EvaluationError(f"{len(paths)} run given; an ensemble or a comparison needs two or more")
    trained = [_opened(path, change) for path in paths]
    if data is not None:
        images = load_images(replace(trained[0].config.data, path=data, source="auto"))
    else:
        _require_same_test(paths)
        images = trained[0].own_images()
    if images.splits is None:
        return trained, images, "all"
    split = tested_split(images.splits.tolist())
    return trained, images.only(split), split


def _opened(path: Path, change: Change) -> Trained:
    """A run ready to be measured, under settings changed by the command line."""
    run = Run.open(path)
    config = change(run.config)
    return replace(Trained.open(path, config.train.device), run=replace(run, config=config))


def tested_split(splits: Iterable[str]) -> str:
    """The split that figures are of: test where there is one."""
    present = set(splits)
    return next((split for split in ("test", "val") if split in present), "train")


def _require_same_test(paths: Sequence[Path]) -> None:
    """Every run was held to the same test images, with the same labels and roles."""
    first, *others = (_test_list(path) for path in paths)
    for path, other in zip(paths[1:], others, strict=True):
        if first != other:
            pairs = zip_longest(first, other, fillvalue=("none",))
            differing = next((a[0], b[0]) for a, b in pairs if a != b)
            raise EvaluationError(
                f"{paths[0]} and {path} have different test sets: {len(first)} and {len(other)} images, "
                f"first difference '{differing[0]}' and '{differing[1]}'; name labelled images for both to be "
                f"measured on"
            )


def _test_list(path: Path) -> list[tuple[str, ...]]:
    """Name, label and role of each image that the run is tested on, from its splits.csv."""
    table = Run.open(path).path / "splits.csv"
    if not table.is_file():
        raise RunError(f"{path} is not a run folder: splits.csv is missing")
    with table.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    split = tested_split(row["split"] for row in rows)
    return sorted((row["path"], row["label"], row["role"]) for row in rows if row["split"] == split)
