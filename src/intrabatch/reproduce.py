"""The paper's tables by name: each row trained and measured, the paper's figure and ours side by side.

    OUT/runs/cub/both/seed0/   a training, once, however many rows and tables use it
    OUT/main/cub-both.json     a row that is done, with its commands; delete it to have it measured again
    OUT/main.md, main.json     the table as far as it is done

A table is data: rows of a recipe, what is changed of it, how it is measured, and the paper's figures in percent.
Whatever is finished is kept, whatever was interrupted goes on. Rows train on all official training classes and keep the
last epoch, except where a table says otherwise; the paper's own figures were chosen by the test classes
(`train.protocol=as-published` does that too, and says so).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from . import settings
from .config import Config, DataConfig
from .data.benchmarks import BENCHMARKS
from .data.image_set import ImageSet
from .distil import distil, resume_distil, student_config
from .ensembles import ensemble_figures, finished_run, trained_run, with_seed
from .errors import ConfigError, IntrabatchError, did_you_mean
from .progress import Progress, Quiet
from .recipes import get_recipe
from .run import Run
from .statistics import over_seeds
from .train import stop_signals
from .trained import Trained
from .workflow import prepared_images

Figures = dict[str, Any]
Paper = Mapping[str, tuple[float, ...]]
"""For each recipe the paper's figures, recall@1 first, then NMI where it has one."""

FOLDERS = {
    "cub": ("cub", "CUB_200_2011"),
    "cars196": ("cars196", "Cars196", "stanford_cars"),
    "sop": ("sop", "Stanford_Online_Products"),
    "inshop": ("inshop", "In-shop Clothes Retrieval Benchmark", "In-Shop"),
}
ALL_CLASSES = "data.val_fraction=0"


@dataclass(frozen=True)
class Row:
    """A line of a table: what is trained, how it is measured, and what the paper says."""

    name: str
    recipe: str
    changes: tuple[str, ...] = ()
    paper: Mapping[str, float] | None = None
    refine: str = "none"
    ensemble: int = 1
    student: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows, the figures they show, and what to know of them; for a paper's figures of other images, which."""

    about: str
    rows: tuple[Row, ...]
    figures: tuple[str, ...] = ("recall@1", "nmi")
    seeds: int = 1
    paper_on: str = ""


def rows_of(name: str, paper: Paper, *changes: str, **test: Any) -> Iterator[Row]:
    """The same row for every data set that the paper has it for."""
    for recipe, figures in paper.items():
        found = dict(zip(("recall@1", "nmi"), figures, strict=False))
        validated = any(change.startswith("train.protocol=validation") for change in changes)
        yield Row(name, recipe, changes if validated else (ALL_CLASSES, *changes), found, **test)


BOTH: Paper = {"cub": (70.3, 74.0), "cars196": (88.1, 74.8), "sop": (81.4, 92.6), "inshop": (92.8,)}
ABLATED: Paper = {"cub": BOTH["cub"], "cars196": BOTH["cars196"]}
REFINED: Paper = {"cub": (70.8, 74.5), "cars196": (88.6, 76.2)}
DIMENSIONS: dict[int, Paper] = {
    64: {"cub": (61.8, 68.8), "cars196": (76.3, 68.1), "sop": (73.8, 91.2), "inshop": (87.5,)},
    128: {"cub": (65.1, 69.3), "cars196": (81.6, 69.4), "sop": (79.1, 92.3), "inshop": (91.3,)},
    256: {"cub": (68.4, 73.4), "cars196": (86.3, 72.1), "sop": (80.8, 92.6), "inshop": (92.5,)},
    512: BOTH,
    1024: {"cub": (71.8, 72.8), "cars196": (89.5, 75.0), "sop": (81.4, 92.5), "inshop": (91.7,)},
}
ENSEMBLES: dict[int, Paper] = {
    1: BOTH,
    2: {"cub": (72.2, 74.3), "cars196": (90.9, 74.9), "sop": (81.8, 92.7), "inshop": (92.9,)},
    5: {"cub": (73.1, 74.4), "cars196": (91.5, 75.4), "sop": (82.1, 92.8), "inshop": (93.4,)},
}
CONSTRUCTIONS: dict[str, Paper] = {
    "k-means": {"cub": (66.1, 69.6), "cars196": (85.1, 70.5)},
    "ward": {"cub": (67.9, 68.8), "cars196": (86.6, 69.5)},
    "spectral": {"cub": (63.1, 69.6), "cars196": (85.1, 69.2)},
    "birch": {"cub": (65.5, 69.5), "cars196": (86.1, 70.0)},
    "dbscan": {"cub": (65.7, 72.0), "cars196": (85.0, 70.3)},
    "optics": {"cub": (66.5, 71.1), "cars196": (85.4, 69.6)},
    "nearest": {"cub": (62.1, 69.2), "cars196": (84.8, 70.2)},
    "k-reciprocal": REFINED,
}
STUDENTS: dict[str, Paper] = {
    "predictions": {"cub": (65.7, 70.3), "cars196": (85.6, 71.6)},
    "features": {"cub": (65.3, 70.1), "cars196": (85.6, 70.9)},
    "relations": {"cub": (64.9, 68.7), "cars196": (84.7, 70.5)},
}
LARGER: Paper = {"cub_256": (71.7, 74.3), "cars196_256": (90.2, 75.4), "sop_256": (81.7, 92.3), "inshop_256": (92.9,)}
UNAIDED: Paper = {"cub": (67.1,), "cars196": (86.7,), "sop": (81.1,), "inshop": (92.5,)}
MAIN = (
    {"recall@1": 70.3, "recall@2": 80.3, "recall@4": 87.6, "recall@8": 92.7, "nmi": 74.0},
    {"recall@1": 88.1, "recall@2": 93.3, "recall@4": 96.2, "recall@8": 98.2, "nmi": 74.8},
    {"recall@1": 81.4, "recall@10": 91.3, "recall@100": 95.9, "nmi": 92.6},
    {"recall@1": 92.8, "recall@10": 98.5, "recall@20": 99.1, "recall@40": 99.2},
)


def _glyph_row(name: str, *changes: str, paper: tuple[float, float], **test: Any) -> Row:
    return Row(name, "glyphs", changes, {"recall@1": paper[0], "nmi": paper[1]}, **test)


TABLES = {
    "training-losses": Table(
        "which losses train, and message passing at test time (table 3)",
        (
            *rows_of("cross-entropy only", {"cub": (67.5, 69.8), "cars196": (84.2, 68.7)}, "loss.messages=0"),
            *rows_of("message passing only", {"cub": (68.1, 72.0), "cars196": (87.2, 72.1)}, "loss.auxiliary=0"),
            *rows_of("both", ABLATED),
            *rows_of("both, messages at test time", REFINED, refine="k-reciprocal"),
        ),
    ),
    "main": Table(
        "the method on the four data sets (tables 1 and 2)",
        tuple(Row("both", recipe, (ALL_CLASSES,), paper) for recipe, paper in zip(BOTH, MAIN, strict=True)),
        figures=tuple(dict.fromkeys(name for paper in MAIN for name in paper)),
    ),
    "ensembles": Table(
        "one network, two and five (table 4)",
        tuple(row for n, paper in ENSEMBLES.items() for row in rows_of(f"ensemble of {n}", paper, ensemble=n)),
    ),
    "embedding-sizes": Table(
        "64 to 1024 numbers an embedding (appendix)",
        tuple(row for d, paper in DIMENSIONS.items() for row in rows_of(f"{d} numbers", paper, f"model.dim={d}")),
    ),
    "larger-images": Table("256-pixel crops of 288 (appendix)", tuple(rows_of("256 pixels", LARGER))),
    "test-time": Table(
        "eight ways to pass messages at test time, and three students (appendix)",
        (
            *rows_of("backbone only", ABLATED),
            *(row for how, paper in CONSTRUCTIONS.items() for row in rows_of(how, paper, refine=how)),
            *(row for how, paper in STUDENTS.items() for row in rows_of(f"student of {how}", paper, student=how)),
        ),
    ),
    "no-test-feedback": Table(
        "the epoch chosen by a tenth of the training classes, which do not train (appendix: the reality check)",
        tuple(rows_of("both", UNAIDED, "train.protocol=validation")),
        figures=("recall@1",),
        seeds=5,
    ),
    "glyphs": Table(
        "the paper's comparisons in small: built-in letter shapes, a small network from scratch, unseen scripts",
        (
            _glyph_row("both", paper=(70.3, 74.0)),
            _glyph_row("cross-entropy only", "loss.messages=0", paper=(67.5, 69.8)),
            _glyph_row("message passing only", "loss.auxiliary=0", paper=(68.1, 72.0)),
            _glyph_row("both, messages at test time", paper=(70.8, 74.5), refine="k-reciprocal"),
            _glyph_row("ensemble of 2", paper=(72.2, 74.3), ensemble=2),
            *(_glyph_row(f"student of {how}", paper=paper["cub"][:2], student=how) for how, paper in STUDENTS.items()),  # type: ignore[arg-type]
            _glyph_row("Group Loss", "loss.messages=0", "loss.auxiliary_head=group", paper=(65.5, 69.0)),
        ),
        figures=("recall@1", "map@r", "nmi"),
        seeds=5,
        paper_on="CUB-200-2011",
    ),
}


def list_tables() -> dict[str, str]:
    """Every table's name and what it is about."""
    return {name: table.about for name, table in TABLES.items()}


@dataclass(frozen=True)
class Trial:
    """One training of a row."""

    recipe: str
    changes: tuple[str, ...]
    seed: int
    student: str | None = None

    @property
    def folder(self) -> Path:
        """Where it is under the folder of runs."""
        words = [change for change in self.changes if change != ALL_CLASSES] or ["both"]
        taught = [f"student-of-{self.student}"] if self.student else []
        return Path(self.recipe, "+".join([*words, *taught]), f"seed{self.seed}")

    @property
    def teacher(self) -> Trial:
        return replace(self, student=None)


@dataclass(frozen=True)
class Study:
    """A table on its way: where data is and where results go, how many seeds, and settings changed for all rows."""

    table: str
    data: Path
    out: Path
    seeds: int
    changes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        return TABLES[self.table].rows

    def trials(self, row: Row) -> list[list[Trial]]:
        """For each repetition the runs that make the figure: several for an ensemble.

        Repetitions share no run, and in all rows a repetition begins at the same seed, so that rows can be paired.
        """
        stride = max(row.ensemble for row in self.rows)
        seeds = [range(first, first + row.ensemble) for first in range(0, self.seeds * stride, stride)]
        return [[Trial(row.recipe, row.changes, seed, row.student) for seed in members] for members in seeds]

    def path(self, trial: Trial) -> Path:
        return self.out / "runs" / trial.folder

    def row_file(self, row: Row) -> Path:
        return self.out / self.table / f"{row.recipe}-{row.name.replace(' ', '-').replace(',', '')}.json"

    def data_folder(self, recipe: str) -> str:
        """What DATA is for a recipe: a folder that exists, else where it should be."""
        if recipe == "glyphs":
            return recipe
        places = [self.data / name for name in FOLDERS[_benchmark(recipe)]]
        return str(next((place for place in places if place.is_dir()), places[0]))

    def config(self, trial: Trial) -> Config:
        config = settings.override(get_recipe(trial.recipe), [*trial.changes, *self.changes])
        config = settings.update(config, {"data": {"path": self.data_folder(trial.recipe)}})
        return with_seed(student_config(config) if trial.student else config, trial.seed)

    def command(self, trial: Trial) -> str:
        """What trains it, as one would type it."""
        out = ["--out", str(self.path(trial))]
        if trial.student:
            return _line("distil", str(self.path(trial.teacher)), "--how", trial.student, *out)
        changes = [*trial.changes, *self.changes, f"train.seed={trial.seed}"]
        sets = [word for change in changes for word in ("--set", change)]
        return _line("train", self.data_folder(trial.recipe), "--recipe", trial.recipe, *sets, *out)


def _benchmark(recipe: str) -> str:
    return recipe.removesuffix("_256")


def _line(*words: str) -> str:
    return shlex.join(["intrabatch", *words])


@dataclass(frozen=True)
class Planned:
    """A row, what has to be trained for it, and the commands that do it."""

    row: Row
    repetitions: list[list[Trial]]
    commands: list[str]
    not_run: str
    """Why it cannot be run; empty when it can."""


def plan(study: Study) -> list[Planned]:
    """Every row of a table with its exact commands, in order."""
    planned = []
    for row in study.rows:
        repetitions = study.trials(row)
        commands: list[str] = []
        for trials in repetitions:
            for trial in trials:
                commands += ([study.command(trial.teacher)] if trial.student else []) + [study.command(trial)]
            how = ["--refine", row.refine] if row.refine != "none" else []
            commands.append(_line("evaluate", *(str(study.path(trial)) for trial in trials), *how))
        planned.append(Planned(row, repetitions, commands, _missing_data(study, row.recipe)))
    return planned


def _missing_data(study: Study, recipe: str) -> str:
    folder = study.data_folder(recipe)
    if recipe == "glyphs" or Path(folder).is_dir():
        return ""
    benchmark = BENCHMARKS[_benchmark(recipe)]
    return f"put the data set {benchmark.title} at {folder}; it is at {benchmark.home}"


def plan_lines(planned: Sequence[Planned]) -> list[str]:
    """A plan for a person: each row's name over its commands; a command that stood before is not repeated."""
    lines, said = [], set()
    for one in planned:
        lines.append(f"# {one.row.recipe}: {one.row.name}" + (f" (not run: {one.not_run})" if one.not_run else ""))
        lines += [command for command in one.commands if command not in said]
        said |= set(one.commands)
    return lines


def make_study(
    table: str, data: Path, out: Path, seeds: int | None = None, changes: Sequence[str] = ()
) -> Study:
    """The study of a table by its name."""
    if table not in TABLES:
        raise ConfigError(f"unknown table '{table}'{did_you_mean(table, TABLES)}")
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds is {seeds}; expected 1 or more")
    return Study(table, data, out, seeds or TABLES[table].seeds, tuple(changes))


def reproduce(study: Study, progress: Progress | None = None, jobs: int = 1) -> Figures:
    """Run every row that is not done, `jobs` trainings side by side; returns the table, which is written as it grows."""
    progress = progress or Quiet()
    planned = plan(study)
    if jobs > 1:
        trials = _missing_trials(study, planned)
        _side_by_side(study, [trial for trial in trials if not trial.student], jobs, progress)
        _side_by_side(study, [trial for trial in trials if trial.student], jobs, progress)
    table: Figures = {}
    for count in range(1, len(planned) + 1):
        _finish_row(study, planned[count - 1], progress)
        table = write_table(study, planned[:count])
    return table


def _missing_trials(study: Study, planned: Iterable[Planned]) -> list[Trial]:
    """All trainings that rows still need, each once."""
    wanted: dict[Trial, None] = {}
    for one in planned:
        if not one.not_run and _outcome(study, one) is None:
            trials = [trial for trials in one.repetitions for trial in trials]
            wanted |= dict.fromkeys([*(trial.teacher for trial in trials), *trials])
    return [trial for trial in wanted if not (study.path(trial) / "metrics.json").is_file()]
