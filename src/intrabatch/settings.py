"""Frozen dataclasses as configuration: their help, their YAML, and overrides such as `train.epochs=5`.

The text under each field is its only documentation; `fields_help` reads it from the source. Everything given from
outside is checked against the field's type, and an unknown key is answered with the nearest right name.
This module knows no particular setting.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml

from .errors import ConfigError, did_you_mean

T = TypeVar("T")


def as_mapping(config: Any) -> dict[str, Any]:
    """The configuration as nested plain values, ready for YAML or JSON."""
    plain = dataclasses.asdict(config)
    return {key: _plain(value) for key, value in plain.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def as_yaml(config: Any) -> str:
    return yaml.safe_dump(as_mapping(config), sort_keys=False, allow_unicode=True)


def explained(config: Any) -> str:
    """The configuration as YAML, each setting under the text that says what it means."""
    lines = []
    for section in dataclasses.fields(config):
        value = getattr(config, section.name)
        if not dataclasses.is_dataclass(value):
            lines += [f"# {fields_help(type(config))[section.name]}", _yaml_line(section.name, value), ""]
            continue
        lines += [f"# {fields_help(type(config))[section.name]}", f"{section.name}:"]
        for name, text in fields_help(type(value)).items():
            lines += ["  # " + line for line in textwrap.wrap(text, 96, break_on_hyphens=False)]
            lines += ["  " + _yaml_line(name, getattr(value, name))]
        lines.append("")
    return "\n".join(lines)


def _yaml_line(name: str, value: Any) -> str:
    text = yaml.safe_dump(_plain(value), default_flow_style=True, allow_unicode=True, width=1000)
    return f"{name}: {text.strip().removesuffix('...').strip()}"


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """A YAML mapping, or a ConfigError that names the file and line."""
    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: not readable as YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{where}: expected settings as 'section:' and 'key: value', got {type(loaded).__name__}")
    return loaded


def update(config: T, changes: Mapping[str, Any], where: str = "") -> T:
    """A copy of `config` with nested `changes` made; every key and type is checked."""
    hints = get_type_hints(type(config))
    made: dict[str, Any] = {}
    for key, value in changes.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in hints:
            section = path.removesuffix(str(key))  # of the nearest name too, so that it can be pasted
            nearest = did_you_mean(str(key), hints).replace("mean '", f"mean '{section}")
            raise ConfigError(f"unknown key '{path}'{nearest}")
        current = getattr(config, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                names = ", ".join(get_type_hints(type(current)))
                raise ConfigError(f"{path} is a section, got {value!r}; set one of its keys: {names}")
            made[key] = update(current, value, path)
        else:
            made[key] = _checked(value, hints[key], path)
    return dataclasses.replace(config, **made)  # type: ignore[type-var]


def override(config: T, assignments: list[str]) -> T:
    """Apply 'section.key=value' texts, as `--set` gives them; values are read as YAML."""
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected KEY=VALUE, for example --set train.epochs=5")
        changes: Any = _read_value(value)
        keys = path.strip().split(".")
        if len(keys) == 1 and keys[0] not in get_type_hints(type(config)):
            raise ConfigError(f"unknown key '{path}'{_nearest_path(config, path)}")
        for key in reversed(keys):
            changes = {key: changes}
        config = update(config, changes)
    return config


def _nearest_path(config: Any, word: str) -> str:
    """For a key without its section: the full path of the key of that name, or the sections."""
    paths = {path.rpartition(".")[2]: path for path, _ in walk(config)}
    return f"; did you mean '{paths[word]}'?" if word in paths else did_you_mean(word, get_type_hints(type(config)))


def walk(config: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf as ('section.key', value)."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        path = f"{where}.{field.name}" if where else field.name
        if dataclasses.is_dataclass(value):
            yield from walk(value, path)
        else:
            yield path, value


def fields_help(kind: type) -> dict[str, str]:
    """The text under each field of a dataclass, read from its source."""
    node = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(node, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            documented = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            texts[field.target.id] = " ".join(str(text.value.value).split()) if documented else ""  # type: ignore[attr-defined]
    return texts


def _read_value(text: str) -> Any:
    """YAML's reading of a value, except that it takes 1e-4 for a text: read numbers as Python does."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if value is not None or text in ("null", "~", "none") else text


def _checked(value: Any, kind: Any, path: str) -> Any:
    """`value` as the annotated type, or a ConfigError that says what was expected."""
    if get_origin(kind) is types.UnionType:
        if value is None or value == "none":
            return None
        return _checked(value, next(k for k in get_args(kind) if k is not type(None)), path)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ConfigError(f"{path} is {value!r}{did_you_mean(str(value), [str(c) for c in get_args(kind)])}")
        return value
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{path} is {value!r}; expected a list such as [1, 2, 4]")
        return tuple(_checked(item, get_args(kind)[0], path) for item in value)
    return _checked_plain(value, kind, path)


def _checked_plain(value: Any, kind: type, path: str) -> Any:
    expected = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str | int | float):
        return str(value)
    if kind in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if kind is float and math.isfinite(number):
            return number
        if kind is int and math.isfinite(number) and number.is_integer():
            return int(number)
    raise ConfigError(f"{path} is {value!r}; expected {expected}")
