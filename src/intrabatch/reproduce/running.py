"""A table done row by row: train what is missing, measure, and write the table down after every row.

What is finished is kept, and what was interrupted goes on from its checkpoint; a row that cannot be run says why and
does not stop the others. With several jobs all missing trainings are done first, side by side: processes take one after
the other. Images are decoded once for all of them, into a file that lies in the study's folder as long as it runs.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from multiprocessing import connection
from multiprocessing.queues import Queue
from pathlib import Path

import torch

from .. import settings
from ..config import Config, DataConfig
from ..data.image_set import ImageSet
from ..data.packed import pack
from ..data.pixels import estimate_bytes
from ..ensembles import ensemble_figures, require_same_settings, student_run, tested_split, trained_run
from ..errors import ConfigError, IntrabatchError, WriteError
from ..progress import Progress, Quiet
from ..run import Run
from ..saving import write_whole
from ..signals import handled, interrupt, stop_signals
from ..trained import Trained
from ..workflow import prepared_images
from .study import Planned, Study, Trial, plan
from .tables import Row
from .written import Figures, table_lines, table_of


def reproduce(study: Study, progress: Progress | None = None, jobs: int = 1) -> Figures:
    """Run every row that is not done, `jobs` trainings side by side; returns the table, written as it grows."""
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; expected 1 or more")
    shutil.rmtree(study.decoded, ignore_errors=True)  # of a study that was killed
    try:
        study.decoded.mkdir(parents=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {study.decoded}: {error.strerror}; choose another --out") from None
    try:
        with handled(interrupt, signal.SIGTERM, signal.SIGHUP):
            return _reproduced(study, plan(study), progress or Quiet(), jobs)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; what is done is kept. Go on with: the same command") from None
    finally:
        _images_of.cache_clear()
        shutil.rmtree(study.decoded, ignore_errors=True)


def _reproduced(study: Study, planned: Sequence[Planned], progress: Progress, jobs: int) -> Figures:
    _require_same_study(study, planned)
    if jobs > 1:
        trials = _missing_trials(study, planned)
        _side_by_side(study, [trial for trial in trials if not trial.student], jobs, progress)
        students = [trial for trial in trials if trial.student and _is_done(study, trial.teacher)]
        _side_by_side(study, students, jobs, progress)
    outcomes: list[Figures] = []
    for one in planned:
        outcomes.append(_outcome(study, one, progress))
        table = table_of(study, outcomes, jobs)
        _write(study.report_file().with_suffix(".json"), json.dumps(table, indent=2))
        _write(study.report_file(), "\n".join(table_lines(table)))
    return table


def _require_same_study(study: Study, planned: Sequence[Planned]) -> None:
    """Before a table is written over: were the runs that lie there trained with the settings asked for now?"""
    for one in planned:
        for trial in [] if one.problem else [trial for trials in one.repetitions for trial in trials]:
            if _is_done(study, trial):
                require_same_settings(Run.open(study.path(trial)), study.config(trial))


def _is_done(study: Study, trial: Trial) -> bool:
    return (study.path(trial) / "metrics.json").is_file()


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
    if all("best_test_epoch" in one for one in found):
        outcome["best_test"] = [one["best_test_epoch"]["metrics"]["recall@1"] for one in found]
    outcome["seconds"] = [sum(_seconds(study.path(trial)) for trial in trials) for trials in planned.repetitions]
    _write(study.row_file(row), json.dumps(outcome, indent=2))
    return outcome


def _environment(path: Path) -> Figures:
    """What a run was made with."""
    made: Figures = Run.open(path).read_json("environment.json")
    return made


def _seconds(path: Path) -> float:
    """How long a run trained, its evaluations left out."""
    return float(sum(epoch.get("seconds", 0.0) for epoch in Run.open(path).history()))


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
    images = _images(runs[0].config, study.decoded)
    assert images.splits is not None
    split = tested_split(images.splits.tolist())
    if len(runs) > 1:
        return ensemble_figures(trained, images.only(split), split)
    config = settings.update(runs[0].config, {"evaluation": {"refine": row.refine}})
    return replace(trained[0], run=replace(runs[0], config=config)).evaluate(images.only(split), split)


def _finished(study: Study, trial: Trial, progress: Progress) -> Run:
    """The run of a trial, trained now or before; a student's teacher first."""
    config, path = study.config(trial), study.path(trial)
    if not trial.student:
        return trained_run(config, _images(config, study.decoded), path, progress)
    teacher = _finished(study, trial.teacher, progress).path
    return student_run(teacher, trial.student, _images(config, study.decoded), path, progress, config)


def _images(config: Config, decoded: Path) -> ImageSet:
    """The images with their split, checked and decoded the first time they are wanted."""
    return _images_of(config.data, config.image.resize, decoded)


@lru_cache(maxsize=1)
def _images_of(data: DataConfig, side: int, decoded: Path) -> ImageSet:
    kept = decoded / _name(data, side)
    if kept.exists():
        found: ImageSet = pickle.loads(kept.read_bytes())
        return found
    images = prepared_images(replace(Config(), data=data), skip_broken=False, say=lambda text: None)
    whatever_split = replace(data, val_fraction=0.0, test_fraction=0.0, split_seed=0, hide_test=False)
    if estimate_bytes(images, side) < shutil.disk_usage(decoded).free / 2:
        images = pack(images, side, decoded / f"{_name(whatever_split, side)}.pixels")
    write_whole(kept, lambda fresh: fresh.write_bytes(pickle.dumps(images)))
    return images


def _name(data: DataConfig, side: int) -> str:
    return hashlib.sha256(f"{data} {side}".encode()).hexdigest()[:16]


# Side by side


def _missing_trials(study: Study, planned: Sequence[Planned]) -> list[Trial]:
    """All trainings that rows still need, each once, teachers before students."""
    rows = [one for one in planned if not one.problem and _done(study, one) is None]
    trials = [trial for one in rows for trials in one.repetitions for trial in trials]
    wanted = dict.fromkeys([*(trial.teacher for trial in trials), *trials])
    return [trial for trial in wanted if not _is_done(study, trial)]


def _side_by_side(study: Study, trials: Sequence[Trial], jobs: int, progress: Progress) -> None:
    """The trainings, taken one after the other by `jobs` processes; a stop lets all of them save first."""
    for trial in trials:
        with suppress(IntrabatchError):  # told by the row
            _images(study.config(trial), study.decoded)
    context = multiprocessing.get_context("spawn")
    left: Queue[Trial | None] = context.Queue()
    for one in [*trials, *[None] * jobs]:
        left.put(one)
    processes = []
    untold = {study.path(trial) for trial in trials}
    with stop_signals() as stopped:
        try:
            with handled(signal.SIG_IGN, signal.SIGINT):  # inherited: Ctrl-C is for the first process, which tells them
                for _ in range(min(jobs, len(trials))):
                    processes.append(context.Process(target=_train_in_turn, args=(study, left, jobs)))
                    processes[-1].start()
            while any(process.is_alive() for process in processes) and not stopped.is_set():
                connection.wait([process.sentinel for process in processes if process.is_alive()], timeout=1)
                _tell_finished(untold, progress)
        finally:
            for process in processes:
                process.terminate()
            left.cancel_join_thread()
            for process in processes:
                process.join()
    if stopped.is_set():
        raise KeyboardInterrupt
    _tell_finished(untold, progress)


def _tell_finished(left: set[Path], progress: Progress) -> None:
    """Say which trainings are done since the last look, and take them from those that are left."""
    for path in sorted(path for path in left if (path / "metrics.json").is_file()):
        left.remove(path)
        progress.say(f"{path}: done; {len(left)} to go")


def _train_in_turn(study: Study, left: Queue[Trial | None], jobs: int) -> None:
    """In a process of its own, with its share of the processor. An error is told by the row, which tries again."""
    os.setpgrp()  # training listens to Ctrl-C again, which a terminal sends to a whole group
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    first = multiprocessing.parent_process()
    while first is not None and first.is_alive() and (trial := left.get()) is not None:
        try:
            _finished(study, trial, Quiet())
        except IntrabatchError:
            continue
        except KeyboardInterrupt:
            sys.exit(130)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = text if text.endswith("\n") else text + "\n"
    write_whole(path, lambda fresh: fresh.write_text(whole, encoding="utf-8"))
