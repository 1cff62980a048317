"""The documents: their files exist, their commands parse, their code runs, and what they name is there.

    python tests/test_docs.py    writes docs/cli.md and docs/tree.md anew
"""

import ast
import re
import shlex
from argparse import _SubParsersAction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from intrabatch import get_recipe
from intrabatch.cli import main, make_parser

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"


@pytest.mark.parametrize("line", [line for block in blocks("sh") for line in block.splitlines()])
def test_commands_of_the_readme_are_understood(line):
    words = shlex.split(line, comments=True)
    if words[0] == "intrabatch":
        make_parser().parse_args(words[1:])
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    else:
        extra = re.fullmatch(r"pip install \.\[(\w+)\]", " ".join(words)).group(1)
        assert re.search(rf"^{extra} = ", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)


def make_photos(root):
    """Twelve classes of four pictures, photos/cat/01.jpg the first of them."""
    rng = np.random.default_rng(0)
    for name in ["cat", *"abcdefghijk"]:
        (root / "photos" / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 255, (24, 24, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / "photos" / name / f"0{i + 1}.jpg")


def test_commands_for_ones_own_photos_run(tmp_path, monkeypatch, capsys):
    """One after the other as they stand there; make and pip are what brought this test here."""
    make_photos(tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("intrabatch")]
    assert [shlex.split(line)[1] for line in lines] == ["check", "train", "search", "embed"]
    for line in lines:
        assert main(shlex.split(line, comments=True)[1:]) == 0, capsys.readouterr().err
    assert "photos/cat/01.jpg" in capsys.readouterr().out
    assert (tmp_path / "runs" / "photos" / "metrics.json").is_file() and (tmp_path / "vectors.parquet").is_file()


@pytest.mark.parametrize("code", blocks("python"), ids=["loss", "library"])
def test_code_of_the_readme_runs(code, tmp_path, monkeypatch, capsys):
    """As it stands there, on a folder `photos`; only the recipe is made smaller."""
    make_photos(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("intrabatch.get_recipe", small)
    exec(compile(code, "README.md", "exec"), {})
    assert "runs/library" not in code or len(capsys.readouterr().out.split()) >= 5


def small(name):
    from intrabatch import settings

    options = ["image.crop=32", "image.resize=32", "train.epochs=1", "train.device=cpu", "batch.images=2"]
    return settings.override(get_recipe(name), options)


def test_the_tour_names_files_in_this_package():
    tour = re.findall(r"\(src/intrabatch/([\w/]+\.py)\)", README)
    assert len(tour) >= 9 and all((ROOT / "src/intrabatch" / name).is_file() for name in tour)


def command_line_page():
    """docs/cli.md: what every command answers to --help."""
    parser = make_parser()
    commands = next(action for action in parser._actions if isinstance(action, _SubParsersAction))
    parts = [("intrabatch", parser), *((f"intrabatch {name}", one) for name, one in commands.choices.items())]
    head = "# The command line\n\nWhat every command answers to `--help`; written by `python tests/test_docs.py`.\n"
    return head + "".join(f"\n## {name}\n\n```text\n{one.format_help()}```\n" for name, one in parts)


def tree_page():
    """docs/tree.md: every module with the first sentence of what it says about itself."""
    package = ROOT / "src/intrabatch"
    head = "The package as it lies on disk, written by `python tests/test_docs.py`; for a reading order see "
    lines = ["# The files", "", head + "[the tour](../README.md#a-guided-tour).", ""]
    lines += ["| file | what it does |", "|---|---|"]
    for path in sorted(package.rglob("*.py"), key=lambda path: (path.parent, path.name)):
        said = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]
        name = path.relative_to(package)
        lines += [f"| [{name}](../src/intrabatch/{name}) | {said} |"] if said else []
    return "\n".join(lines) + "\n"


PAGES = {"docs/cli.md": command_line_page, "docs/tree.md": tree_page}


@pytest.mark.parametrize("name", PAGES)
def test_pages_agree_with_the_code(name, monkeypatch):
    """Word by word; Python's versions break the lines of a help text differently."""
    monkeypatch.setenv("COLUMNS", "80")
    written = (ROOT / name).read_text(encoding="utf-8")
    assert written.split() == PAGES[name]().split(), "write it anew: python tests/test_docs.py"


def test_version_and_changelog_agree():
    from intrabatch import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_constraints_are_names_and_versions_only():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), line


if __name__ == "__main__":
    import os

    os.environ["COLUMNS"] = "80"
    for page, text in PAGES.items():
        (ROOT / page).write_text(text(), encoding="utf-8")
