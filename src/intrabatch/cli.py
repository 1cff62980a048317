"""The command line: words to one call each, errors to one line and an exit code.

Exit 0 on success, 2 on a mistake the user can mend (one line says what, where and how), 1 on our own fault (with the
trace), 130 after Ctrl-C. Nothing heavy is imported before the command is known: `--help` answers at once.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import settings
from ._version import VERSION
from .config import Config, EvalConfig, TrainConfig
from .errors import ConfigError, IntrabatchError, did_you_mean

if TYPE_CHECKING:
    from .data.image_set import ImageSet

Arguments = argparse.Namespace


def main(argv: Sequence[str] | None = None) -> int:
    try:
        arguments = make_parser().parse_args(argv)
        outcome: int = arguments.run(arguments) or 0
        return outcome
    except IntrabatchError as error:
        print(f"intrabatch: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"intrabatch: {_how_to_go_on(stop)}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except Exception:
        traceback.print_exc()
        print("intrabatch: this is a fault of intrabatch; please report it with the lines above", file=sys.stderr)
        return 1


def _how_to_go_on(stop: KeyboardInterrupt) -> str:
    from .train import Interrupted

    if isinstance(stop, Interrupted):
        return f"{stop}; everything is saved. Go on with: intrabatch train --resume {stop.run.path}"
    return "stopped"


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def make_parser() -> Parser:
    parser = Parser(
        prog="intrabatch",
        description="Learn image embeddings by letting all images of a mini-batch exchange messages.",
        epilog="Start with: intrabatch demo",
    )
    parser.add_argument("--version", action="version", version=f"intrabatch {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for add in (_demo, _check, _train, _evaluate, _embed, _search, _config, _data):
        add(commands)
    return parser


def _command(commands: Any, run: Callable[[Arguments], int | None], text: str, example: str) -> Parser:
    name = run.__name__.removeprefix("run_")
    parser: Parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _demo(commands: Any) -> None:
    parser = _command(commands, run_demo, "train, evaluate and show it all on built-in images", "intrabatch demo")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="run folder (default: runs/demo)")
    _add_settings(parser)
    _add_output(parser)


def _check(commands: Any) -> None:
    example = "intrabatch check photos/"
    parser = _command(commands, run_check, "read all images and report what is there and what is wrong", example)
    parser.add_argument("data", metavar="DATA", help="a folder per class, a CSV or Parquet table, or glyphs")
    _add_output(parser)


def _train(commands: Any) -> None:
    example = "intrabatch train photos/ --out runs/photos --set train.epochs=20"
    parser = _command(commands, run_train, "train on labelled images and measure on classes never seen", example)
    parser.add_argument("data", metavar="DATA", nargs="?", help="a folder per class, a CSV or Parquet table, or glyphs")
    parser.add_argument("--recipe", help="start from a recipe (default: folder); intrabatch config lists them")
    parser.add_argument("--out", type=Path, help="run folder (default: runs/ and the name of DATA)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run that was stopped or killed")
    parser.add_argument("--skip-broken", action="store_true", help="leave out files that cannot be read")
    parser.add_argument("--log-to", action="append", default=[], metavar="NAME", help="also log to wandb or mlflow")
    _add_settings(parser)
    _add_output(parser)


def _evaluate(commands: Any) -> None:
    example = "intrabatch evaluate runs/photos"
    parser = _command(commands, run_evaluate, "measure a run, or vectors made elsewhere", example)
    parser.add_argument("trained", metavar="RUN", nargs="?", type=Path, help="a run folder")
    parser.add_argument("data", metavar="DATA", nargs="?", help="labelled images (default: the run's own test classes)")
    text = "vectors with labels: .npz, .parquet, or .npy and .csv"
    parser.add_argument("--embeddings", nargs="+", type=Path, metavar="FILE", help=text)
    parser.add_argument("--refine", metavar="METHOD", help=settings.fields_help(EvalConfig)["refine"])
    _add_settings(parser, with_file=False)
    _add_output(parser)


def _embed(commands: Any) -> None:
    example = "intrabatch embed runs/photos photos/ --out vectors.parquet"
    parser = _command(commands, run_embed, "turn images into vectors", example)
    parser.add_argument("trained", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument("data", metavar="DATA", help="images: labelled as for training, one folder, or one file")
    parser.add_argument("--out", type=Path, required=True, help="a .parquet or .npz file: path, label, vector")
    _add_device(parser)
    _add_output(parser)


def _search(commands: Any) -> None:
    example = "intrabatch search runs/photos --gallery photos/ --query new.jpg"
    parser = _command(commands, run_search, "find the images most like a query", example)
    parser.add_argument("trained", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument("--gallery", required=True, metavar="DATA", help="where to look")
    parser.add_argument("--query", required=True, nargs="+", metavar="IMAGE", help="what to look for")
    parser.add_argument("-k", type=int, default=10, help="how many to show (default: 10)")
    _add_device(parser)
    _add_output(parser)


def _config(commands: Any) -> None:
    example = "intrabatch config folder > mine.yaml"
    parser = _command(commands, run_config, "print a recipe's settings, each with what it means", example)
    parser.add_argument("recipe", nargs="?", help="name of a recipe; without it, the names are listed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")


def _data(commands: Any) -> None:
    example = "intrabatch data cub --root data/"
    parser = _command(commands, run_data, "verify a benchmark's official files and print its protocol", example)
    parser.add_argument("name", metavar="NAME", help="cub, cars196, sop or inshop")
    parser.add_argument("--root", required=True, metavar="DIR", help="the unpacked data set, or the folder it is in")
    _add_output(parser)


def _add_settings(parser: Parser, with_file: bool = True) -> None:
    if with_file:
        parser.add_argument("--config", type=Path, metavar="FILE", help="settings as YAML, over the recipe's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change any setting")
    _add_device(parser)


def _add_device(parser: Parser) -> None:
    parser.add_argument("--device", help=settings.fields_help(TrainConfig)["device"])


def _add_output(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def configured(arguments: Arguments, base: Config) -> Config:
    """The base configuration with --config, --set, --device and --refine applied, in this order."""
    config = base
    if getattr(arguments, "config", None):
        config = settings.update(config, settings.parse_yaml(_read_text(arguments.config), str(arguments.config)))
    config = settings.override(config, arguments.set)
    if arguments.device:
        config = settings.update(config, {"train": {"device": arguments.device}})
    if getattr(arguments, "refine", None):
        config = settings.update(config, {"evaluation": {"refine": arguments.refine}})
    return config


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def run_demo(arguments: Arguments) -> int:
    from .demo import demo
    from .progress import make_display
    from .recipes import glyphs

    summary = demo(configured(arguments, glyphs()), arguments.out, make_display(arguments.quiet))
    print(json.dumps(summary.as_dict(), indent=2) if arguments.json else "\n".join(summary.lines()))
    return 0


def run_check(arguments: Arguments) -> int:
    from .data.check import check

    report = check(_named_images(arguments.data))
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else "\n".join(report.lines()))
    return 0


def _named_images(data: str) -> ImageSet:
    from .config import DataConfig
    from .data.load import load_images

    return load_images(DataConfig(path=data))


def run_train(arguments: Arguments) -> int:
    from .progress import Tracked, make_display
    from .run import Run
    from .train import resume, train
    from .workflow import prepared_images, resumed_images

    display = make_display(arguments.quiet)
    if arguments.resume:
        run = Run.open(arguments.resume)
        progress = Tracked(display, arguments.log_to, run.path, settings.as_mapping(run.config))
        run = resume(run.path, resumed_images(run), progress)
    else:
        config = _training_config(arguments)
        out = arguments.out or Path("runs") / (Path(config.data.path).stem or "run")
        progress = Tracked(display, arguments.log_to, out, settings.as_mapping(config))
        images = prepared_images(config, arguments.skip_broken, display.say)
        run = train(config, images, out, progress)
    _print_figures(run.read_json("metrics.json"), arguments.json)
    return 0


def _training_config(arguments: Arguments) -> Config:
    from .recipes import get_recipe

    is_glyphs = arguments.data == "glyphs"
    config = get_recipe(arguments.recipe or ("glyphs" if is_glyphs else "folder"))
    config = configured(arguments, config)
    return settings.update(config, {"data": {"path": arguments.data}}) if arguments.data else config


def run_evaluate(arguments: Arguments) -> int:
    from .workflow import evaluate_file, evaluate_run

    if bool(arguments.trained) == bool(arguments.embeddings):
        raise ConfigError("give either a RUN or --embeddings FILE; see intrabatch evaluate --help")
    if arguments.embeddings:
        figures = evaluate_file(arguments.embeddings, configured(arguments, Config()))
    else:
        figures = evaluate_run(arguments.trained, arguments.data, lambda config: configured(arguments, config))
    _print_figures(figures, arguments.json)
    return 0


def run_embed(arguments: Arguments) -> int:
    from .data.reading import read_any_images
    from .embed import require_known_kind, save_embeddings
    from .trained import Trained

    require_known_kind(arguments.out)
    trained = Trained.open(arguments.trained, arguments.device or "auto")
    images = _named_images("glyphs") if arguments.data == "glyphs" else read_any_images(arguments.data)
    embeddings = trained.embed(images)
    save_embeddings(arguments.out, embeddings)
    count, size = embeddings.vectors_ND.shape
    summary = {"out": str(arguments.out), "num_images": count, "embedding_size": size, "run": str(trained.run.path)}
    print(json.dumps(summary, indent=2) if arguments.json else f"{arguments.out}: {count} vectors of {size} numbers")
    return 0


def run_search(arguments: Arguments) -> int:
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


def run_config(arguments: Arguments) -> int:
    from .recipes import RECIPES, get_recipe

    if arguments.recipe:
        print(settings.explained(settings.override(get_recipe(arguments.recipe), arguments.set)), end="")
    else:
        for name, recipe in RECIPES.items():
            print(f"{name:<12} {(recipe.__doc__ or '').splitlines()[0]}")
    return 0


def run_data(arguments: Arguments) -> int:
    from dataclasses import asdict

    from .data.benchmarks import BENCHMARKS, counts_of

    if arguments.name not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark '{arguments.name}'{did_you_mean(arguments.name, BENCHMARKS)}")
    benchmark = BENCHMARKS[arguments.name]
    images = benchmark.read(arguments.root)
    found = asdict(counts_of(images)) | {"recall_at": list(benchmark.recall_at), "root": arguments.root}
    print(json.dumps(found, indent=2) if arguments.json else benchmark.describe(images))
    return 0


def _print_figures(figures: dict[str, Any], as_json: bool) -> None:
    from .workflow import figure_lines

    print(json.dumps(figures, indent=2) if as_json else "\n".join(figure_lines(figures)))
