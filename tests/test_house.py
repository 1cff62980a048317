"""The package as a whole: floors without stairs up, a short list of public names, and sizes one can read."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import intrabatch

ROOT = Path(intrabatch.__file__).parent

# From the ground up. A module may import at its top what stands below it, not what stands beside or above.
FLOORS = [
    ["_version", "errors"],
    ["settings", "config", "report.palette", "saving", "signals"],
    ["recipes"],
    ["data", "messages", "heads", "scores", "report", "progress", "devices"],
    ["group_loss", "many_classes", "neighbours", "metrics", "clustering", "statistics", "backbone"],
    ["model", "refine", "influence", "embed", "run"],
    ["optim", "evaluate"],
    ["steps"],
    ["train", "trained"],
    ["distil"],
    ["workflow", "ensembles", "listening"],
    ["demo", "reproduce"],
    ["commands"],
    ["cli", "__main__"],
]


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def top_level_imports(name, path):
    """Modules of the package imported when this one is."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            if node.module:
                yield ".".join([*base, node.module])
            else:
                yield from (".".join([*base, alias.name]) for alias in node.names)


def floor_of(name):
    for floor, names in enumerate(FLOORS):
        if any(name == known or name.startswith(known + ".") for known in names):
            return floor
    raise AssertionError(f"module {name} is on no floor; add it to FLOORS")


@pytest.mark.parametrize(("name", "path"), [pytest.param(n, p, id=n or "intrabatch") for n, p in modules() if n])
def test_a_module_stands_only_on_those_below(name, path):
    for other in top_level_imports(name, path):
        beside = name.split(".")[0] == other.split(".")[0] or {name.split(".")[0], other} <= set(FLOORS[floor_of(name)])
        assert floor_of(other) < floor_of(name) or beside, f"{name} imports {other}, which stands above it"


def test_no_import_cycles():
    edges = {name: set(top_level_imports(name, path)) for name, path in modules()}
    done = set()

    def visit(name, trail):
        assert name not in trail, " -> ".join([*trail, name])
        if name in done or name not in edges:
            return
        for other in edges[name]:
            visit(other, [*trail, name])
        done.add(name)

    for name in edges:
        visit(name, [])


def test_public_names_are_one_sorted_list_and_all_exist():
    assert intrabatch.__all__ == sorted(intrabatch.__all__)
    for name in intrabatch.__all__:
        assert getattr(intrabatch, name) is not None
    homes = {name for name in intrabatch.__all__ if name != "__version__"}
    assert homes == set(intrabatch._HOMES)
    with pytest.raises(AttributeError, match="module 'intrabatch' has no attribute 'Trainer'"):
        _ = intrabatch.Trainer


def test_no_public_name_is_also_a_module():
    """`from intrabatch import x` would then depend on what was imported before."""
    assert not {name for name, _ in modules()} & set(intrabatch.__all__)


def test_modules_and_functions_stay_readable():
    for name, path in modules():
        text = path.read_text()
        assert len(text.splitlines()) <= 400, f"{name} is too long to read"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{name}.{node.name} is too long"


def test_nothing_heavy_is_imported_by_the_configuration():
    for name in ("errors", "config", "settings", "recipes"):
        text = Path(import_module(f"intrabatch.{name}").__file__).read_text()
        assert "import torch" not in text and "import numpy" not in text
