"""HTML that cannot forget to escape: a text becomes markup only through `tag`, which escapes it."""

from __future__ import annotations

import html
import re

VOID = {"circle", "image", "img", "line", "link", "meta", "path", "polyline"}


class Markup(str):
    """A piece of finished HTML or SVG; every other text is escaped when it is put into one."""


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """<name attributes>children</name>; `class_` and `data_i` are written class and data-i, None is left out."""
    shown = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    opening = name + "".join(f' {key}="{html.escape(str(value))}"' for key, value in shown.items())
    return Markup(f"<{opening}/>") if name in VOID else Markup(f"<{opening}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def prose(text: str) -> Markup:
    """Plain words, in which `backticks` set code, and a number keeps its percent sign on its line."""
    escaped = html.escape(text).replace(" %", "\N{NO-BREAK SPACE}%")
    return Markup(re.sub(r"`([^`]+)`", _code, escaped))


def _code(quoted: re.Match[str]) -> str:
    """Each word apart, so that a narrow page breaks a command between its words, not after the dashes of --set."""
    return "<code>" + " ".join(f"<span>{word}</span>" for word in quoted[1].split(" ")) + "</code>"
