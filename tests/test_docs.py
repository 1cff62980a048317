"""The documents: their files exist, their commands parse, their code runs, and what they name is there."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from intrabatch import get_recipe
from intrabatch.cli import make_parser

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


@pytest.mark.parametrize("code", blocks("python"), ids=["loss", "library"])
def test_code_of_the_readme_runs(code, tmp_path, monkeypatch, capsys):
    """As it stands there, on a folder `photos`; only the recipe is made smaller."""
    rng = np.random.default_rng(0)
    for name in "abcdefghijkl":
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 255, (24, 24, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
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


def test_version_and_changelog_agree():
    from intrabatch import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_constraints_are_names_and_versions_only():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), line
