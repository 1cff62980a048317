"""The command line: words to one call each, errors to one line and an exit code.

Exit 0 on success, 2 on a mistake the user can mend (one line says what, where and how), 1 on our own fault (with the
trace), 130 after Ctrl-C. Nothing heavy is imported before the command is known: `--help` answers at once.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import commands as do
from . import settings
from ._version import VERSION
from .config import EvalConfig, TrainConfig
from .errors import ConfigError, IntrabatchError

REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.ELOOP}
"""What the machine refuses wherever it is met: no permission, no space, no such names. Not our fault."""


def main(argv: Sequence[str] | None = None) -> int:
    try:
        arguments = make_parser().parse_args(argv)
        outcome: int = arguments.run(arguments)
        return outcome
    except IntrabatchError as error:
        print(f"intrabatch: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"intrabatch: {_how_to_go_on(stop)}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        return 0
    except OSError as error:
        if error.errno not in REFUSALS:
            return _our_fault()
        print(f"intrabatch: {error.filename or 'the system refuses'}: {str(error.strerror).lower()}", file=sys.stderr)
        return 2
    except Exception:
        return _our_fault()


def _our_fault() -> int:
    traceback.print_exc()
    print("intrabatch: this is a fault of intrabatch; please report it with the lines above", file=sys.stderr)
    return 1


def _how_to_go_on(stop: KeyboardInterrupt) -> str:
    from .train import Interrupted

    if isinstance(stop, Interrupted):
        from .run import resume_option

        return f"{stop}; everything is saved. Go on with: intrabatch train {resume_option(stop.run.path)}"
    return str(stop) or "stopped"


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
    for add in (_demo, _check, _train, _evaluate, _embed, _search, _config, _data, _distil, _influence, _reproduce):
        add(commands)
    return parser


def _command(commands: Any, run: Callable[[argparse.Namespace], int], text: str, example: str) -> Parser:
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
    parser = _command(commands, do.run_demo, "train, evaluate and show it all on built-in images", "intrabatch demo")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="run folder (default: runs/demo)")
    _add_settings(parser)
    _add_output(parser)


def _check(commands: Any) -> None:
    example = "intrabatch check photos/"
    parser = _command(commands, do.run_check, "read all images and report what is there and what is wrong", example)
    parser.add_argument("data", metavar="DATA", help="a folder per class, a CSV or Parquet table, or glyphs")
    _add_output(parser)


def _train(commands: Any) -> None:
    example = "intrabatch train photos/ --out runs/photos --set train.epochs=20"
    parser = _command(commands, do.run_train, "train on labelled images and measure on classes never seen", example)
    parser.add_argument("data", metavar="DATA", nargs="?", help="a folder per class, a CSV or Parquet table, or glyphs")
    parser.add_argument("--recipe", help="start from a recipe (default: folder); intrabatch config lists them")
    parser.add_argument("--out", type=Path, help="run folder (default: runs/ and the name of DATA)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run that was stopped or killed")
    parser.add_argument("--skip-broken", action="store_true", help="leave out files that cannot be read")
    parser.add_argument("--seeds", type=int, metavar="N", help="train N seeds; report mean, spread and interval")
    parser.add_argument("--ensemble", type=int, metavar="N", help="train N seeds; report them as one ensemble")
    parser.add_argument("--log-to", action="append", default=[], metavar="NAME", help="also log to wandb or mlflow")
    _add_settings(parser)
    _add_output(parser)


def _evaluate(commands: Any) -> None:
    example = "intrabatch evaluate runs/photos"
    parser = _command(commands, do.run_evaluate, "measure a run, or vectors made elsewhere", example)
    text = "run folders (several are one ensemble), then, if not the runs' own test classes, labelled images"
    parser.add_argument("what", metavar="RUN... [DATA]", nargs="*", help=text)
    parser.add_argument("--compare", action="store_true", help="two runs, named before it: is the second better?")
    text = "vectors with labels: .npz, .parquet, or .npy and .csv"
    parser.add_argument("--embeddings", nargs="+", type=Path, metavar="FILE", help=text)
    texts = settings.fields_help(EvalConfig)
    parser.add_argument("--refine", metavar="METHOD", help=texts["refine"])
    parser.add_argument("--nmi-recipe", metavar="{greedy,random}", help=texts["nmi_recipe"])
    _add_settings(parser, with_file=False)
    _add_output(parser)


def _embed(commands: Any) -> None:
    example = "intrabatch embed runs/photos photos/ --out vectors.parquet"
    parser = _command(commands, do.run_embed, "turn images into vectors", example)
    parser.add_argument("trained", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument("data", metavar="DATA", help="images: labelled as for training, one folder, or one file")
    parser.add_argument("--out", type=Path, required=True, help="a .parquet or .npz file: path, label, vector")
    _add_device(parser)
    _add_output(parser)


def _search(commands: Any) -> None:
    example = "intrabatch search runs/photos --gallery photos/ --query new.jpg"
    parser = _command(commands, do.run_search, "find the images most like a query", example)
    parser.add_argument("trained", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument("--gallery", required=True, metavar="DATA", help="where to look")
    parser.add_argument("--query", required=True, nargs="+", metavar="IMAGE", help="what to look for")
    parser.add_argument("-k", type=int, default=10, help="how many to show (default: 10)")
    _add_device(parser)
    _add_output(parser)


def _config(commands: Any) -> None:
    example = "intrabatch config folder > mine.yaml"
    parser = _command(commands, do.run_config, "print a recipe's settings, each with what it means", example)
    parser.add_argument("recipe", nargs="?", help="name of a recipe; without it, the names are listed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")


def _data(commands: Any) -> None:
    example = "intrabatch data cub --root data/"
    parser = _command(commands, do.run_data, "verify a benchmark's official files and print its protocol", example)
    parser.add_argument("name", metavar="NAME", help="cub, cars196, sop or inshop")
    parser.add_argument("--root", required=True, metavar="DIR", help="the unpacked data set, or the folder it is in")
    _add_output(parser)


def _distil(commands: Any) -> None:
    example = "intrabatch distil runs/photos --how features --out runs/student"
    parser = _command(commands, do.run_distil, "let a run with message passing teach a bare backbone", example)
    parser.add_argument("teacher", metavar="RUN", type=Path, help="a run trained with message passing")
    parser.add_argument("--how", required=True, metavar="WAY", help="predictions, features or relations")
    parser.add_argument("--out", type=Path, required=True, help="run folder of the student; one cut short goes on")
    _add_settings(parser, with_file=False)
    _add_output(parser)


def _influence(commands: Any) -> None:
    example = "intrabatch influence runs/photos --out runs/photos-influence"
    parser = _command(commands, do.run_influence, "show which neighbours in a batch count for an image", example)
    parser.add_argument("trained", metavar="RUN", type=Path, help="a run trained with message passing")
    parser.add_argument("data", metavar="DATA", nargs="?", help="labelled images (default: the run's own)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where pictures and figures go")
    text = "which of the run's own images: train, val or test (default: train, the classes its head knows)"
    parser.add_argument("--split", default="train", help=text)
    parser.add_argument("--seed", type=int, default=0, help="of the batch that is drawn (default: 0)")
    _add_device(parser)
    _add_output(parser)


def _reproduce(commands: Any) -> None:
    example = "intrabatch reproduce training-losses --data data/"
    parser = _command(commands, do.run_reproduce, "run a table: the paper's figures beside ours", example)
    parser.add_argument("table", metavar="TABLE", nargs="?", help="its name, as --list gives it")
    parser.add_argument("--list", action="store_true", help="list the tables")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder that holds the benchmarks")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="where runs and tables go")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of every row, run nothing")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds of every row (default: the table's)")
    jobs = "trainings side by side (default: 1); on one GPU they take turns unless nvidia-cuda-mps-control -d runs"
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help=jobs)
    _add_settings(parser, with_file=False)
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
