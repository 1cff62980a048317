"""A table done row by row: train what is missing, measure, and write the table down after every row.

What is finished is kept, and what was interrupted goes on from its checkpoint; a row that cannot be run says why and
does not stop the others. With several jobs all missing trainings are done first, side by side, each in a process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from .. import settings
from ..config import Config, DataConfig
from ..data.image_set import ImageSet, RememberingSource
from ..ensembles import ensemble_figures, require_same_settings, student_run, trained_run
from ..errors import ConfigError, IntrabatchError
from ..progress import Progress, Quiet
from ..run import Run
from ..saving import write_whole
from ..statistics import over_seeds
from ..train import stop_signals
from ..trained import Trained
from ..workflow import prepared_images
from .study import Planned, Study, Trial, plan
from .tables import Row

Figures = dict[str, Any]


def reproduce(study: Study, progress: Progress | None = None, jobs: int = 1) -> Figures:
    """Run every row that is not done, `jobs` trainings side by side; returns the table, written as it grows."""
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; expected 1 or more")
    try:
        return _reproduced(study, plan(study), progress or Quiet(), jobs)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; what is done is kept. Go on with: the same command") from None


def _reproduced(study: Study, planned: Sequence[Planned], progress: Progress, jobs: int) -> Figures:
    _require_same_study(study, planned)
    if jobs > 1:
        trials = _missing_trials(study, planned)
        _side_by_side(study, [trial for trial in trials if not trial.student], jobs, progress)
        _side_by_side(study, [trial for trial in trials if trial.student], jobs, progress)
    outcomes: list[Figures] = []
    for one in planned:
        outcomes.append(_outcome(study, one, progress))
        table = _table(study, outcomes)
        _write(study.report_file().with_suffix(".json"), json.dumps(table, indent=2))
        _write(study.report_file(), "\n".join(table_lines(table)))
    return table


def _require_same_study(study: Study, planned: Sequence[Planned]) -> None:
    """Before a table is written over: were the runs that lie there trained with the settings asked for now?"""
    for one in planned:
        for trial in [] if one.problem else [trial for trials in one.repetitions for trial in trials]:
            if (study.path(trial) / "metrics.json").is_file():
                require_same_settings(Run.open(study.path(trial)), study.config(trial))


# One row


def _outcome(study: Study, planned: Planned, progress: Progress) -> Figures:
    """What a row gave, now or before, or why it gave nothing."""
    row = planned.row
    said = {"row": row.name, "recipe": row.recipe, "paper": row.paper, "commands": planned.commands}
    if planned.problem:
        return said | {"not_run": planned.problem}
    done = _done(study, planned)
    if done:
        return done
    progress.say(f"{study.name}: {row.recipe}, {row.name}")
    try:
        found = [_measured(study, row, trials, progress) for trials in planned.repetitions]
    except IntrabatchError as error:
        progress.say(f"not run: {error}")
        return said | {"not_run": str(error)}
    runs = [[str(study.path(trial)) for trial in trials] for trials in planned.repetitions]
    metrics = [one["metrics"] for one in found]
    outcome = said | {"runs": runs, "metrics": metrics, "protocol": found[0]["protocol"]}
    outcome |= {"environment": _environment(study.path(planned.repetitions[0][0]))}
    _write(study.row_file(row), json.dumps(outcome, indent=2))
    return outcome


def _environment(path: Path) -> Figures:
    """What a run was made with."""
    made: Figures = Run.open(path).read_json("environment.json")
    return made


def _done(study: Study, planned: Planned) -> Figures | None:
    """The row's outcome when the same commands gave one before; a file that is not whole is written again."""
    try:
        outcome: Figures = json.loads(study.row_file(planned.row).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return outcome if outcome.get("commands") == planned.commands else None


def _measured(study: Study, row: Row, trials: Sequence[Trial], progress: Progress) -> Figures:
    """Figures and protocol of one repetition, its runs trained if they are not yet."""
    runs = [_finished(study, trial, progress) for trial in trials]
    if row.refine == "none" and len(runs) == 1:
        figures: Figures = runs[0].read_json("metrics.json")
        return figures
    trained = [Trained.open(run.path, run.config.train.device) for run in runs]
    images = _images(runs[0].config.data).only("test")
    if len(runs) > 1:
        return ensemble_figures(trained, images, "test")
    config = settings.update(runs[0].config, {"evaluation": {"refine": row.refine}})
    return replace(trained[0], run=replace(runs[0], config=config)).evaluate(images, "test")


def _finished(study: Study, trial: Trial, progress: Progress) -> Run:
    """The run of a trial, trained now or before; a student's teacher first."""
    config, path = study.config(trial), study.path(trial)
    if not trial.student:
        return trained_run(config, _images(config.data), path, progress)
    teacher = _finished(study, trial.teacher, progress).path
    return student_run(teacher, trial.student, _images(config.data), path, progress, config)


@lru_cache(maxsize=1)
def _images(data: DataConfig) -> ImageSet:
    """The images with their split: read once for all rows on the same data."""
    images = prepared_images(replace(Config(), data=data), skip_broken=False, say=lambda text: None)
    return replace(images, source=RememberingSource(images.source))


# Side by side


def _missing_trials(study: Study, planned: Sequence[Planned]) -> list[Trial]:
    """All trainings that rows still need, each once, teachers before students."""
    rows = [one for one in planned if not one.problem and _done(study, one) is None]
    trials = [trial for one in rows for trials in one.repetitions for trial in trials]
    wanted = dict.fromkeys([*(trial.teacher for trial in trials), *trials])
    return [trial for trial in wanted if not (study.path(trial) / "metrics.json").is_file()]


def _side_by_side(study: Study, trials: Sequence[Trial], jobs: int, progress: Progress) -> None:
    """The trainings dealt to `jobs` processes, each of which reads images once; a stop lets all of them save first."""
    context = multiprocessing.get_context("spawn")
    hands = [list(trials[number::jobs]) for number in range(min(jobs, len(trials)))]
    processes = [context.Process(target=_train_in_turn, args=(study, hand, jobs)) for hand in hands]
    with stop_signals() as stopped:
        for process in processes:
            process.start()
        left = {study.path(trial) for trial in trials}
        while any(process.is_alive() for process in processes) and not stopped.is_set():
            connection.wait([process.sentinel for process in processes if process.is_alive()], timeout=1)
            _tell_finished(left, progress)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
    if stopped.is_set():
        raise KeyboardInterrupt
    _tell_finished(left, progress)


def _tell_finished(left: set[Path], progress: Progress) -> None:
    """Say which trainings are done since the last look, and take them from those that are left."""
    for path in sorted(path for path in left if (path / "metrics.json").is_file()):
        left.remove(path)
        progress.say(f"{path}: done; {len(left)} to go")


def _train_in_turn(study: Study, trials: Sequence[Trial], jobs: int) -> None:
    """In a process of its own, with its share of the processor. An error is told by the row, which tries again."""
    os.setpgrp()  # Ctrl-C goes to the first process alone, which tells this one once: a second time would not save
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    for trial in trials:
        try:
            _finished(study, trial, Quiet())
        except IntrabatchError:
            continue
        except KeyboardInterrupt:
            sys.exit(130)


# The table


def _table(study: Study, outcomes: Sequence[Figures]) -> Figures:
    """All rows so far: the paper's figure and ours with its interval, in percent, and the gain over the baseline."""
    table = study.table
    base = {one["recipe"]: one for one in outcomes if one["row"] == table.baseline and "metrics" in one}
    return {
        "table": study.name,
        "about": table.about,
        "figures": list(table.figures),
        "paper_on": table.paper_on,
        "baseline": table.baseline,
        "seeds": study.seeds,
        "changes": list(study.changes),
        "rows": [_row(one, table.figures, base.get(one["recipe"])) for one in outcomes],
    }


def _row(outcome: Figures, names: Sequence[str], base: Figures | None) -> Figures:
    """An outcome with its means and intervals."""
    if "metrics" not in outcome:
        return outcome
    ours = {
        name: _percent([one[name] for one in outcome["metrics"]]) for name in names if name in outcome["metrics"][0]
    }
    row = outcome | {"ours": ours}
    if base and base is not outcome and len(outcome["metrics"]) > 1:
        pairs = list(zip(outcome["metrics"], base["metrics"], strict=True))
        row["gain"] = {name: _percent([own[name] - other[name] for own, other in pairs]) for name in ours}
    return row


def _percent(values: Sequence[float]) -> dict[str, float]:
    """The mean over repetitions and, of two or more, half of its 95 % interval."""
    percents = [100 * value for value in values]
    if len(percents) == 1:
        return {"mean": percents[0]}
    interval = over_seeds(percents)
    return {"mean": interval.mean, "half": interval.high - interval.mean}


def table_lines(table: Figures) -> list[str]:
    """The table for a person, in Markdown: in each cell the paper's figure and ours."""
    names, seeds = table["figures"], table["seeds"]
    gained = seeds > 1 and any("gain" in row for row in table["rows"])
    against = [f"{names[0]} against {table['baseline']}"] if gained else []
    header = ["data", "row", *names, *against, "protocol"]
    lines = [f"# {table['table']}: {table['about']}", "", _explained(table), ""]
    lines += [_line(header), _line(["---"] * len(header))]
    for row in table["rows"]:
        cells = [f"{_paper(row, name)} / {_cell(row.get('ours', {}).get(name))}" for name in names]
        gain = [_cell(row.get("gain", {}).get(names[0]), sign="+")] if gained else []
        lines.append(_line([row["recipe"], row["row"], *cells, *gain, _protocol(row)]))
    return [*lines, "", *_footer(table)]


def _explained(table: Figures) -> str:
    paper = f"the paper's figure on {table['paper_on']}" if table["paper_on"] else "the paper's figure"
    interval = ""
    if table["seeds"] > 1:
        interval = f" Ours: mean of {table['seeds']} repetitions ± half of the 95 % t interval"
        interval += "; a gain is paired by seed."
    return f"Each cell: {paper} / ours, in percent.{interval}"


def _paper(row: Figures, name: str) -> str:
    value = (row["paper"] or {}).get(name)
    return "–" if value is None else f"{value:.1f}"


def _cell(found: dict[str, float] | None, sign: str = "") -> str:
    if found is None:
        return "–"
    half = f" ± {found['half']:.1f}" if "half" in found else ""
    return f"{found['mean']:{sign}.1f}{half}"


def _protocol(row: Figures) -> str:
    if "not_run" in row:
        return f"not run: {row['not_run']}"
    protocol = row["protocol"]
    return f"{protocol['epoch_chosen']} of {protocol['epochs']} epochs, {protocol['num_classes']} unseen classes"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _footer(table: Figures) -> list[str]:
    """How the table was made, and on what."""
    sets = "".join(f" --set {change}" for change in table["changes"])
    lines = [f"Made by `intrabatch reproduce {table['table']} --seeds {table['seeds']}{sets}`."]
    made = [_made_with(row["environment"]) for row in table["rows"] if "environment" in row]
    return [*lines, *dict.fromkeys(made)]


def _made_with(made: Figures) -> str:
    """Versions and machine; rows of one table may differ in them."""
    commit, _, changed = (made["git"] or "").partition("-")
    said = f" (commit {commit[:7]}{', with uncommitted changes' if changed else ''})" if commit else ""
    versions = f"intrabatch {made['intrabatch']}{said}, torch {made['packages']['torch']}"
    system, threads = made["platform"].partition("-")[0], made["cpu_threads"]
    return f"{versions}, {system}, device {made['device']}, {threads} thread{'s' * (threads > 1)} a training."


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = text if text.endswith("\n") else text + "\n"
    write_whole(path, lambda fresh: fresh.write_text(whole, encoding="utf-8"))
