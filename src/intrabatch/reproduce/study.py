"""One table in one place: which trainings its rows need, where they go, and the commands that do the same by hand.

    OUT/runs/cars196/both/seed0/   a training, once, however many rows and tables use it
    OUT/main/cars196-both.json     a row that is done, with its commands
    OUT/main.md, main.json     the table as far as it is done

Nothing is run here.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import settings
from ..config import Config
from ..data.benchmarks import BENCHMARKS
from ..distil import student_config
from ..ensembles import with_seed
from ..errors import ConfigError, did_you_mean
from ..recipes import get_recipe
from .tables import ALL_CLASSES, TABLES, Row, Table

FOLDERS = {
    "cub": ("cub", "CUB_200_2011"),
    "cars196": ("cars196", "Cars196", "stanford_cars"),
    "sop": ("sop", "Stanford_Online_Products"),
    "inshop": ("inshop", "In-shop Clothes Retrieval Benchmark", "In-Shop"),
}
"""Where a data set may be inside the folder of all data."""
LONGEST_NAME = 150
"""Characters of a run folder's name; file systems take 255."""


@dataclass(frozen=True)
class Trial:
    """One training of a row: a run of its own, or a student of one."""

    recipe: str
    changes: tuple[str, ...]
    seed: int
    student: str | None = None

    @property
    def teacher(self) -> Trial:
        return replace(self, student=None)

    @property
    def folder(self) -> Path:
        """Its place among all runs."""
        words = [change for change in self.changes if change != ALL_CLASSES] or ["both"]
        words += [f"student-of-{self.student}"] if self.student else []
        name = "+".join(words)
        if len(name) > LONGEST_NAME:
            name = f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return Path(self.recipe, name, f"seed{self.seed}")


@dataclass(frozen=True)
class Planned:
    """A row, the trainings of each of its repetitions, and the commands that do it."""

    row: Row
    repetitions: list[list[Trial]]
    commands: list[str]
    problem: str
    """Why it cannot be run; empty when it can."""


@dataclass(frozen=True)
class Study:
    """A table under way: where data is and results go, how many seeds, and settings changed for all rows."""

    name: str
    data: Path
    out: Path
    seeds: int
    changes: tuple[str, ...] = ()
    report: Path | None = None
    """Where the table goes as Markdown, and as JSON beside it; by default OUT/TABLE.md."""

    @property
    def table(self) -> Table:
        return TABLES[self.name]

    @property
    def decoded(self) -> Path:
        """Where decoded images lie while the study runs."""
        return self.out / f"decoded-{self.name}"

    def path(self, trial: Trial) -> Path:
        return self.out / "runs" / trial.folder

    def row_file(self, row: Row) -> Path:
        return self.out / self.name / f"{row.recipe}-{row.name.replace(',', '').replace(' ', '-')}.json"

    def report_file(self) -> Path:
        return self.report or self.out / f"{self.name}.md"

    def repetitions(self, row: Row) -> list[list[Trial]]:
        """For each repetition its runs: one, or those of an ensemble.

        No run is in two repetitions, and a repetition begins at the same seed in every row, so that rows can be paired.
        """
        stride = max(row.ensemble for row in self.table.rows)
        starts = range(0, self.seeds * stride, stride)
        return [
            [Trial(row.recipe, row.changes, first + member, row.student) for member in range(row.ensemble)]
            for first in starts
        ]

    def data_folder(self, recipe: str) -> str:
        """What DATA is for a recipe: the folder that is there, else the one where it should be."""
        if recipe == "glyphs":
            return recipe
        places = [self.data / name for name in FOLDERS[_benchmark(recipe)]]
        return str(next((place for place in places if place.is_dir()), places[0]))

    def problem(self, row: Row) -> str:
        """What is missing, and where to put it."""
        folder = self.data_folder(row.recipe)
        if row.recipe == "glyphs" or Path(folder).is_dir():
            return ""
        benchmark = BENCHMARKS[_benchmark(row.recipe)]
        return f"put the data set {benchmark.title} at {folder}; it is at {benchmark.home}"

    def config(self, trial: Trial) -> Config:
        config = settings.override(get_recipe(trial.recipe), [*trial.changes, *self.changes])
        config = settings.update(config, {"data": {"path": self.data_folder(trial.recipe)}})
        return with_seed(student_config(config) if trial.student else config, trial.seed)

    def commands(self, row: Row) -> list[str]:
        """What one would type to have this row by hand, in order."""
        lines = []
        for trials in self.repetitions(row):
            for trial in trials:
                lines += [self.command(trial.teacher), self.command(trial)] if trial.student else [self.command(trial)]
            how = ["--refine", row.refine] if row.refine != "none" else []
            if how or len(trials) > 1:
                lines.append(_line("evaluate", *(str(self.path(trial)) for trial in trials), *how))
        return lines

    def command(self, trial: Trial) -> str:
        """What trains a run."""
        out = ["--out", str(self.path(trial))]
        if trial.student:
            return _line("distil", str(self.path(trial.teacher)), "--how", trial.student, *out)
        changes = [*trial.changes, *self.changes, f"train.seed={trial.seed}"]
        options = [word for change in changes for word in ("--set", change)]
        return _line("train", self.data_folder(trial.recipe), "--recipe", trial.recipe, *options, *out)


def make_study(
    name: str,
    data: Path,
    out: Path,
    seeds: int | None = None,
    changes: Sequence[str] = (),
    report: Path | None = None,
) -> Study:
    """The study of the table called `name`, with the table's own number of seeds unless told."""
    if name not in TABLES:
        raise ConfigError(f"unknown table '{name}'{did_you_mean(name, TABLES)}")
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds is {seeds}; expected 1 or more")
    study = Study(name, data, out, seeds or TABLES[name].seeds, tuple(changes), report)
    for row in study.table.rows:
        study.config(study.repetitions(row)[0][0])  # a wrong setting is told now, not after the first trainings
    return study


def plan(study: Study) -> list[Planned]:
    """Every row with its trainings and exact commands, in order."""
    return [Planned(row, study.repetitions(row), study.commands(row), study.problem(row)) for row in study.table.rows]


def plan_lines(planned: Sequence[Planned]) -> list[str]:
    """A plan for a person: each row's name over its commands, those that no row before has had."""
    lines: list[str] = []
    for one in planned:
        lines.append(f"# {one.row.recipe}, {one.row.name}" + (f": not run: {one.problem}" if one.problem else ""))
        lines += [command for command in one.commands if command not in lines]
    return lines


def _benchmark(recipe: str) -> str:
    return recipe.removesuffix("_256").removesuffix("_paper")


def _line(*words: str) -> str:
    return shlex.join(["intrabatch", *words])
