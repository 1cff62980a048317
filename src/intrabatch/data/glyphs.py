"""The built-in images: letter shapes from the fonts that matplotlib ships, so that nothing has to be downloaded.

A class is a character, an image one rendering of it: font, pose, stroke, ink, paper and noise are a pure function of
seed, character and index. Scripts are disjoint: Latin, Greek and symbols train and validate, TEST_SCRIPTS test.
Characters that look alike in any font (Latin A, Greek Alpha, Cyrillic A) are one class: the first of them in a fixed
order stands for all. That is found by rendering them, not from a list.
It does not know how the images are used.
Shapes: F fonts, A and B characters, W words of bits in a stamp of X x Y pixels, N images of S x S pixels in 3 colours.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from ..errors import DataError
from .image_set import SPLITS, ArraySource, ImageSet

FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
)
TEST_SCRIPTS = ("ARMENIAN", "CYRILLIC", "GEORGIAN")
STAMP = 24
"""Characters are compared as stamps of this many pixels a side, filled from edge to edge: poses vary in place, size and
stretch, so these must not tell classes apart. A multiple of 8, so that its bits fill whole words."""
NO_CHARACTER = "\ufffe"
"""For this the fonts draw their box for a missing glyph; whatever looks like that box is no class."""

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]
Truths = NDArray[np.bool_]
Words = NDArray[np.uint64]


def glyphs(classes: int = 300, per_class: int = 20, size: int = 64, seed: int = 0) -> ImageSet:
    """Rendered characters: `classes` to train, an eighth as many to validate, half as many (unseen scripts) to test.

    Fewer validate and test where the characters run out. The same arguments give the same bytes, and a character has
    the same images whatever the number of classes.
    """
    asked, least = (classes, per_class, size, seed), (2, 2, 16, 0)
    for name, value, bound in zip(("classes", "per_class", "size", "seed"), asked, least, strict=True):
        if value < bound:
            raise DataError(f"glyphs: {name} is {value}; it must be at least {bound}")
    chosen = _split_characters(classes)
    pixels_NSS3 = np.empty((len(chosen) * per_class, size, size, 3), np.uint8)
    rows: dict[str, int] = {}
    for split, character in chosen:
        for index in range(per_class):
            rng = np.random.default_rng([seed, ord(character), index])
            font = FONTS[rng.integers(len(FONTS))]
            pixels_NSS3[len(rows)] = _rendering(_shape(character, font, size * 3 // 2), size, rng)
            rows[f"{split}/{_class_name(character)}/{font}-{index:02d}"] = len(rows)
    return ImageSet(
        names=tuple(rows),
        labels=np.repeat(np.arange(len(chosen), dtype=np.int64), per_class),
        classes=tuple(_class_name(character) for _, character in chosen),
        source=ArraySource(pixels_NSS3, rows),
        splits=np.repeat([split for split, _ in chosen], per_class),
    )


def _class_name(character: str) -> str:
    return f"U+{ord(character):04X} {unicodedata.name(character)}"


# --- Which characters: covered by every font, and no two alike ---


def _split_characters(classes: int) -> list[tuple[str, str]]:
    """(split, character) of every class, in the order of SPLITS."""
    seen, unseen = _distinct_characters(classes + max(2, classes // 8))
    if len(seen) < classes + 2:
        raise DataError(
            f"glyphs: {classes} training classes asked for, but the fonts have only {len(seen)} distinct characters to "
            f"train and validate ({len(unseen)} to test); ask for at most {len(seen) - 2}, so that 2 validate"
        )
    by_split = {"train": seen[:classes], "val": seen[classes:], "test": unseen[: max(2, classes // 2)]}
    return [(split, character) for split in SPLITS for character in by_split[split]]


@functools.lru_cache(maxsize=8)
def _distinct_characters(num_seen: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The first `num_seen` distinct characters of the training scripts, and all distinct ones of the test scripts.

    The test scripts come first: they are few, and what looks like one of their characters must not train.
    """
    seen: list[str] = []
    unseen: list[str] = []
    for character in _distinct(sorted(_candidates(), key=_is_unseen, reverse=True)):
        (unseen if _is_unseen(character) else seen).append(character)
        if len(seen) == num_seen:
            break
    return tuple(seen), tuple(unseen)


def _is_unseen(character: str) -> bool:
    """Whether the script of `character` is kept for testing; its name may hold more: MODIFIER LETTER CYRILLIC EN."""
    return any(script in unicodedata.name(character) for script in TEST_SCRIPTS)


def _candidates() -> list[str]:
    """What all fonts cover, without spaces, marks and controls, in a fixed order that mixes letters and symbols."""
    from matplotlib.ft2font import FT2Font

    covered = set.intersection(*(set(FT2Font(str(_font_file(font))).get_charmap()) for font in FONTS))
    visible = (code for code in covered if unicodedata.category(chr(code))[0] not in "CMZ")
    return [chr(code) for code in sorted(visible, key=_scrambled)]


def _scrambled(code: int) -> int:
    """Multiplicative hashing: neighbouring code points end up far apart, each at a place of its own."""
    return code * 2654435761 % 2**32


def _distinct(candidates: Iterable[str]) -> Iterator[str]:
    """Those candidates that are not blank and look like none before them, nor like the box for a missing glyph."""
    kept = _stamps([NO_CHARACTER])
    for batch in _batches(candidates, 64):
        stamps = _stamps(batch)
        refused_A = stamps.blank() | stamps.alike(kept).any(axis=1)
        alike_AA = stamps.alike(stamps)
        new: list[int] = []
        for row in np.flatnonzero(~refused_A).tolist():
            if not alike_AA[row, new].any():
                new.append(row)
        yield from (batch[row] for row in new)
        kept = kept.joined(stamps, new)


def _batches(items: Iterable[str], num: int) -> Iterator[list[str]]:
    rest = iter(items)
    while batch := list(islice(rest, num)):
        yield batch


@dataclass(frozen=True)
class _Stamps:
    """Characters as squares of bits in each font: where their ink is solid, and where it is far away."""

    solid_FAW: Words
    far_FAW: Words

    def blank(self) -> Truths:
        """Which characters have no ink in at least one font."""
        return np.asarray(~self.solid_FAW.any(axis=2).all(axis=0))

    def alike(self, others: _Stamps) -> Truths:
        """Which of these A characters look like which of the B others in at least one font.

        They do when no solid ink of either is far from the other's.
        """
        apart_FAB = np.zeros((*self.solid_FAW.shape[:2], others.solid_FAW.shape[1]), np.uint64)
        for word in range(self.solid_FAW.shape[2]):
            apart_FAB |= self.solid_FAW[:, :, None, word] & others.far_FAW[:, None, :, word]
            apart_FAB |= self.far_FAW[:, :, None, word] & others.solid_FAW[:, None, :, word]
        return np.asarray((apart_FAB == 0).any(axis=0))

    def joined(self, others: _Stamps, rows: list[int]) -> _Stamps:
        """These characters, followed by some of the others."""
        return _Stamps(
            np.concatenate([self.solid_FAW, others.solid_FAW[:, rows]], axis=1),
            np.concatenate([self.far_FAW, others.far_FAW[:, rows]], axis=1),
        )


def _stamps(characters: Sequence[str]) -> _Stamps:
    """Solid is what ink covers by half; far, what is not even next to a pixel that ink covers by a quarter."""
    cover_FAXY = np.zeros((len(FONTS), len(characters), STAMP, STAMP), np.uint8)
    for f, font in enumerate(FONTS):
        for a, character in enumerate(characters):
            shape = _shape(character, font, 2 * STAMP)
            cover_FAXY[f, a] = np.asarray(shape.resize((STAMP, STAMP), Image.Resampling.BOX))
    inked = np.pad(cover_FAXY > 64, ((0, 0), (0, 0), (1, 1), (1, 1)))
    near = inked[..., :-2, :] | inked[..., 1:-1, :] | inked[..., 2:, :]
    near = near[..., :-2] | near[..., 1:-1] | near[..., 2:]
    return _Stamps(_words(cover_FAXY > 128), _words(~near))


def _words(bits_FAXY: Truths) -> Words:
    """The bits of each stamp in words of 64."""
    bits_FAP = bits_FAXY.reshape(*bits_FAXY.shape[:2], STAMP * STAMP)
    return np.packbits(bits_FAP, axis=2).view(np.uint64)


# --- How they look: a shape from a font, then pose, stroke, colours and noise ---


@functools.lru_cache(maxsize=64)
def _font(name: str, height: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_font_file(name)), height, layout_engine=ImageFont.Layout.BASIC)


def _font_file(name: str) -> Path:
    import matplotlib

    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
    if not path.is_file():
        raise DataError(f"glyphs: the font {path} is missing; matplotlib as pip installs it has it")
    return path


@functools.lru_cache(maxsize=len(FONTS))
def _shape(character: str, font: str, height: int) -> Image.Image:
    """The ink of a character as a grey image without margins; one black pixel when there is no ink."""
    typeface = _font(font, height)
    left, top, right, bottom = typeface.getbbox(character)
    canvas = Image.new("L", (math.ceil(right - left) + 2, math.ceil(bottom - top) + 2))
    ImageDraw.Draw(canvas).text((1 - left, 1 - top), character, fill=255, font=typeface)
    box = canvas.getbbox()
    return canvas.crop(box) if box else Image.new("L", (1, 1))


def _rendering(shape: Image.Image, size: int, rng: np.random.Generator) -> Pixels:
    """One image: the shape in a random pose and stroke, on cloudy paper, with noise over all."""
    ink_SS = _stroked(_posed(shape, size, rng), rng)
    colour_3, paper_3 = rng.uniform(0, 0.45, 3), rng.uniform(0.55, 1, 3)
    clouds = Image.fromarray(rng.normal(0, 0.07, (6, 6)).astype(np.float32))
    image_3SS = ink_SS * (colour_3 - paper_3).astype(np.float32)[:, None, None]
    image_3SS += paper_3.astype(np.float32)[:, None, None]
    image_3SS += np.asarray(clouds.resize((size, size), Image.Resampling.BICUBIC))
    image_3SS += _noise_levels().take(rng.integers(0, 256, image_3SS.shape, np.uint8))
    pixels_3SS = (image_3SS * 255).clip(0, 255).astype(np.uint8)
    return pixels_3SS.transpose(1, 2, 0)


def _posed(shape: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """The shape on a square canvas: turned, slanted, stretched, scaled, and placed so that nothing is cut off."""
    turn, slant, stretch, fill, *place = rng.uniform(-1, 1, 6)
    scale = (0.65 + 0.15 * fill) * size / max(shape.size)
    turned = np.array([[np.cos(0.2 * turn), -np.sin(0.2 * turn)], [np.sin(0.2 * turn), np.cos(0.2 * turn)]])
    slanted = np.array([[1, 0.2 * slant], [0, 1]])
    pose = turned @ slanted @ np.diag(scale * np.exp([0.15 * stretch, -0.15 * stretch]))
    room = np.maximum(size - np.abs(pose) @ shape.size, 0)
    centre = (size + np.array(place) * room) / 2
    to_shape = np.linalg.inv(pose)
    origin = np.array(shape.size) / 2 - to_shape @ centre
    coefficients = np.column_stack([to_shape, origin]).ravel().tolist()
    return shape.transform((size, size), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)


def _stroked(ink: Image.Image, rng: np.random.Generator) -> Floats:
    """Ink between 0 and 1 with a heavier or lighter, sharper or softer stroke: blurred, then cut at a random level."""
    level, steepness = rng.uniform(0.15, 0.5), rng.uniform(1, 2)
    blurred_SS = np.asarray(ink.filter(ImageFilter.GaussianBlur(ink.width / 64)), np.float32) / 255
    cut_SS = 0.5 + steepness / 2 * (blurred_SS / level - 1)
    return cut_SS.clip(0, 1)


@functools.cache
def _noise_levels() -> Floats:
    """256 equally likely values of a normal distribution: picked by random bytes, three times as fast as drawing it."""
    normal = NormalDist(0, 0.12)
    return np.array([normal.inv_cdf((byte + 0.5) / 256) for byte in range(256)], np.float32)
