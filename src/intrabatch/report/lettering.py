"""Text in pictures: always the DejaVu Sans that comes with matplotlib, so that it looks the same on every machine."""

from __future__ import annotations

import functools
from pathlib import Path

import matplotlib
from matplotlib.ft2font import FT2Font
from PIL import ImageFont

FONT_FILE = ("fonts", "ttf", "DejaVuSans.ttf")


def font_file() -> Path:
    return Path(matplotlib.get_data_path()).joinpath(*FONT_FILE)


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(font_file()), size)


@functools.cache
def _letters() -> frozenset[str]:
    return frozenset(map(chr, FT2Font(str(font_file())).get_charmap()))


def drawable(text: str) -> str:
    """The text on one line; letters that the font lacks become a white square."""
    return "".join(letter if letter in _letters() else "□" for letter in " ".join(text.split()))


def shortened(text: str, pixels: int, size: int) -> str:
    """One drawable line no wider than `pixels`, cut with an ellipsis."""
    text = drawable(text)
    if font(size).getlength(text) <= pixels:
        return text
    while text and font(size).getlength(text + "…") > pixels:
        text = text[:-1]
    return text + "…"
