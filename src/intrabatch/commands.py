"""What each command does: arguments in, one call into the library, figures or text out.

Everything heavy is imported inside the command that needs it.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import settings
from .config import Config
from .errors import ConfigError, IntrabatchError, WriteError, did_you_mean

if TYPE_CHECKING:
    from .data.image_set import ImageSet
    from .progress import Progress
    from .run import Run

Figures = dict[str, Any]
MEASURING = ("evaluation.", "image.crop", "image.resize", "image.store", "train.device", "train.precision")
"""Settings that belong to measuring a run, not to how it came about."""


def configured(arguments: Namespace, base: Config) -> Config:
    """The base configuration with --config, --set, --device, --refine and --nmi-recipe applied, in this order."""
    config = base
    if getattr(arguments, "config", None):
        config = settings.update(config, settings.parse_yaml(_read_text(arguments.config), str(arguments.config)))
    config = settings.override(config, arguments.set)
    if arguments.device:
        config = settings.update(config, {"train": {"device": arguments.device}})
    for option in ("refine", "nmi_recipe"):
        if getattr(arguments, option, None) is not None:
            config = settings.update(config, {"evaluation": {option: getattr(arguments, option)}})
    return config


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def run_demo(arguments: Namespace) -> int:
    from .demo import demo
    from .progress import make_display
    from .recipes import glyphs

    try:
        summary = demo(configured(arguments, glyphs()), arguments.out, make_display(arguments.quiet))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the demo was stopped; the same command begins it anew") from None
    print(json.dumps(summary.as_dict(), indent=2) if arguments.json else "\n".join(summary.lines()))
    return 0


def run_check(arguments: Namespace) -> int:
    from .data.check import check

    report = check(_named_images(arguments.data))
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else "\n".join(report.lines()))
    return 0


def _named_images(data: str) -> ImageSet:
    from .config import DataConfig
    from .data.load import load_images

    return load_images(DataConfig(path=data))


def run_train(arguments: Namespace) -> int:
    from .progress import make_display

    _require_one(arguments, "resume", "seeds", "ensemble")
    _require_no_change(arguments)
    display = make_display(arguments.quiet)
    if arguments.resume:
        figures = _resumed(arguments, display)
    elif arguments.seeds is not None or arguments.ensemble is not None:
        figures = _trained_seeds(arguments, display)
    else:
        figures = _trained(arguments, display)
    _print_figures(figures, arguments.json)
    return 0


def _require_one(arguments: Namespace, *names: str) -> None:
    given = [f"--{name}" for name in names if getattr(arguments, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} cannot be given together; choose one")


def _require_no_change(arguments: Namespace) -> None:
    """A resumed run keeps its settings and images: whatever would change them is a mistake, not to be passed over."""
    flags = ("recipe", "out", "config", "set", "device", "skip_broken")
    changed = [f"--{name.replace('_', '-')}" for name in flags if getattr(arguments, name)]
    if arguments.resume and changed:
        raise ConfigError(f"--resume keeps the run's own images and settings; leave out {', '.join(changed)}")
    if (arguments.seeds is not None or arguments.ensemble is not None) and arguments.log_to:
        raise ConfigError("--log-to follows one run; leave it out with --seeds and --ensemble")


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """Ctrl-C says how to go on also when it does not fall into a step; a mistake leaves no empty run behind."""
    from .run import discard_unstarted, resume_option

    is_new = not path.exists()
    try:
        yield
    except WriteError as error:
        raise WriteError(f"{error}; make room, then: intrabatch train {resume_option(path)}") from None
    except IntrabatchError:
        if is_new:
            discard_unstarted(path)
        raise
    except KeyboardInterrupt as stop:
        if stop.args or not (path / "config.yaml").is_file() or (path / "metrics.json").is_file():
            raise
        raise KeyboardInterrupt(f"stopped. Go on with: intrabatch train {resume_option(path)}") from None


def _trained(arguments: Namespace, display: Progress) -> Figures:
    from .progress import Tracked
    from .run import require_free
    from .train import train
    from .workflow import prepared_images

    config, out = _training_config(arguments)
    require_free(out)  # before the images are read, which may take minutes
    progress = Tracked(display, arguments.log_to, out, settings.as_mapping(config))
    images = prepared_images(config, arguments.skip_broken, display.say)
    with _resumable(out):
        return _figures(train(config, images, out, progress))


def _resumed(arguments: Namespace, display: Progress) -> Figures:
    from .distil import is_student, resume_distil
    from .progress import Tracked
    from .run import Run
    from .train import resume
    from .workflow import resumed_images

    run = Run.open(arguments.resume)
    if arguments.data:
        run = run.moved_to(_whole_path(arguments.data))
    images = resumed_images(run)
    if arguments.data:
        run.save_config()  # not before: all of the images are there
    progress = Tracked(display, arguments.log_to, run.path, settings.as_mapping(run.config))
    go_on = resume_distil if is_student(run.path) else resume
    with _resumable(run.path):
        return _figures(go_on(run.path, images, progress))


def _trained_seeds(arguments: Namespace, display: Progress) -> Figures:
    from .ensembles import train_ensemble, train_seeds
    from .workflow import prepared_images

    config, out = _training_config(arguments)
    images = prepared_images(config, arguments.skip_broken, display.say)
    if arguments.seeds is not None:
        return train_seeds(config, images, out, arguments.seeds, display)
    return train_ensemble(config, images, out, arguments.ensemble, display)


def _figures(run: Run) -> Figures:
    figures: Figures = run.read_json("metrics.json")
    return figures


def _training_config(arguments: Namespace) -> tuple[Config, Path]:
    """What to train, and the folder to train it in."""
    from .recipes import get_recipe

    is_glyphs = arguments.data == "glyphs"
    config = get_recipe(arguments.recipe or ("glyphs" if is_glyphs else "folder"))
    config = configured(arguments, config)
    if arguments.data:
        config = settings.update(config, {"data": {"path": arguments.data}})
    out = arguments.out or Path("runs") / (Path(config.data.path).stem or "run")
    return settings.update(config, {"data": {"path": _whole_path(config.data.path)}}), out


def _whole_path(data: str) -> str:
    """DATA as the run is to find it again from wherever it is opened."""
    return data if data in ("", "glyphs") else str(Path(data).absolute())


def run_evaluate(arguments: Namespace) -> int:
    from .ensembles import compare_runs, comparison_lines, evaluate_ensemble
    from .workflow import evaluate_file, evaluate_run

    runs, data = _runs_and_data(arguments.what)
    if bool(runs) == bool(arguments.embeddings):
        raise ConfigError("give either a RUN or --embeddings FILE; see intrabatch evaluate --help")
    change = partial(_measuring, arguments)
    if arguments.compare:
        if len(runs) != 2:
            other = f"; {data} is no run folder" if data else ""
            raise ConfigError(f"--compare is for two runs; got {len(runs)}{other}")
        if arguments.nmi_recipe:
            raise ConfigError("--compare is of retrieval figures, query by query; leave out --nmi-recipe")
        found = compare_runs(runs[0], runs[1], data, change)
        print(json.dumps(found, indent=2) if arguments.json else "\n".join(comparison_lines(found)))
        return 0
    if arguments.embeddings:
        figures = evaluate_file(arguments.embeddings, change(Config()))
    elif len(runs) == 1:
        figures = evaluate_run(runs[0], data, change)
    else:
        figures = evaluate_ensemble(runs, data, change)
    _print_figures(figures, arguments.json)
    return 0


def _measuring(arguments: Namespace, trained: Config) -> Config:
    """A run's settings with those changed that belong to measuring; what it was trained with is not to be told anew."""
    config = configured(arguments, trained)
    before = dict(settings.walk(trained))
    for key, value in settings.walk(config):
        if value != before[key] and not key.startswith(MEASURING):
            what = ", ".join(one + "*" * one.endswith(".") for one in MEASURING)
            raise ConfigError(f"--set {key}: it was decided when the run was trained; evaluate can change {what}")
    return config


def _runs_and_data(words: list[str]) -> tuple[list[Path], str | None]:
    """All words are runs, except a last one that is not a run folder while those before it are."""
    last_is_data = len(words) > 1 and not (Path(words[-1]) / "config.yaml").is_file()
    runs = [Path(word) for word in (words[:-1] if last_is_data else words)]
    return runs, words[-1] if last_is_data else None


def run_embed(arguments: Namespace) -> int:
    from .embed import require_known_kind, save_embeddings
    from .trained import Trained
    from .workflow import any_images

    require_known_kind(arguments.out)
    trained = Trained.open(arguments.trained, arguments.device or "auto")
    embeddings = trained.embed(any_images(arguments.data))
    save_embeddings(arguments.out, embeddings)
    count, size = embeddings.vectors_ND.shape
    summary = {"out": str(arguments.out), "num_images": count, "embedding_size": size, "run": str(trained.run.path)}
    print(json.dumps(summary, indent=2) if arguments.json else f"{arguments.out}: {count} vectors of {size} numbers")
    return 0


def run_search(arguments: Namespace) -> int:
    from .workflow import search_files

    found = search_files(arguments.trained, arguments.gallery, arguments.query, arguments.k, arguments.device or "auto")
    if arguments.json:
        print(json.dumps({"run": str(arguments.trained), "results": found}, indent=2, ensure_ascii=False))
        return 0
    for result in found:
        print(result["query"])
        for rank, hit in enumerate(result["hits"], 1):
            print(f"  {rank:>3}  {hit['score']:.3f}  {hit['path']}  [{hit['label']}]")
    return 0


def run_config(arguments: Namespace) -> int:
    from .recipes import RECIPES, get_recipe

    if arguments.recipe:
        print(settings.explained(settings.override(get_recipe(arguments.recipe), arguments.set)), end="")
    else:
        for name, recipe in RECIPES.items():
            print(f"{name:<14} {(recipe.__doc__ or '').splitlines()[0]}")
    return 0


def run_data(arguments: Namespace) -> int:
    from dataclasses import asdict

    from .data.benchmarks import BENCHMARKS, counts_of

    if arguments.name not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark '{arguments.name}'{did_you_mean(arguments.name, BENCHMARKS)}")
    benchmark = BENCHMARKS[arguments.name]
    images = benchmark.read(arguments.root)
    found = asdict(counts_of(images)) | {"recall_at": list(benchmark.recall_at), "root": arguments.root}
    print(json.dumps(found, indent=2) if arguments.json else benchmark.describe(images))
    return 0


def run_distil(arguments: Namespace) -> int:
    from .distil import student_config
    from .ensembles import student_run
    from .progress import make_display
    from .run import Run
    from .workflow import prepared_images, resumed_images

    teacher, display = Run.open(arguments.teacher), make_display(arguments.quiet)
    config = configured(arguments, student_config(teacher.config))
    same_data = config.data == teacher.config.data
    images = resumed_images(teacher) if same_data else prepared_images(config, False, display.say)
    run = student_run(teacher.path, arguments.how, images, arguments.out, display, config)
    _print_figures(_figures(run), arguments.json)
    return 0


def run_influence(arguments: Namespace) -> int:
    from .listening import images_to_ask, listen, listening_lines, save_listening
    from .trained import Trained

    trained = Trained.open(arguments.trained, arguments.device or "auto")
    images = images_to_ask(trained, arguments.data, arguments.split)
    about = {"run": str(trained.run.path), "images": arguments.data or arguments.split, "seed": arguments.seed}
    figures = save_listening(arguments.out, listen(trained, images, arguments.seed), about)
    print(json.dumps(figures, indent=2) if arguments.json else "\n".join(listening_lines(figures, arguments.out)))
    return 0


def run_reproduce(arguments: Namespace) -> int:
    from .progress import make_display
    from .reproduce import make_study, plan, plan_lines, reproduce, table_lines, tables_lines

    if arguments.list or not arguments.table:
        print("\n".join(tables_lines()))
        return 0
    changes = arguments.set + ([f"train.device={arguments.device}"] if arguments.device else [])
    study = make_study(arguments.table, arguments.data or Path("data"), arguments.out, arguments.seeds, changes)
    if arguments.dry_run:
        print("\n".join(plan_lines(plan(study))))
        return 0
    table = reproduce(study, make_display(arguments.quiet), arguments.jobs)
    print(json.dumps(table, indent=2) if arguments.json else "\n".join(table_lines(table)))
    if not any("metrics" in row for row in table["rows"]):
        raise ConfigError(f"no row of {arguments.table} was run; the first: {table['rows'][0]['not_run']}")
    return 0


def _print_figures(figures: Figures, as_json: bool) -> None:
    from .workflow import figure_lines

    print(json.dumps(figures, indent=2) if as_json else "\n".join(figure_lines(figures)))
