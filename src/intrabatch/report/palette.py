"""The colours of runs and classes, the same on the page and in the pictures."""

from __future__ import annotations

import math

# (on light paper, on dark paper, dashes): told apart without colour too.
SERIES = (
    ("#c05a12", "#f0a060", "5 3"),
    ("#1f5fa8", "#7db4f0", ""),
    ("#2b7a5b", "#6fcba4", "1.5 3"),
    ("#8a3f86", "#d796d3", "8 3 1.5 3"),
    ("#7a6a12", "#d6c25a", "3 2"),
    ("#8f2f3f", "#ee8d9c", "10 4"),
)
RIGHT, WRONG = "#1a8a4a", "#c8372d"
NEUTRAL = "#8b9098"
INK, SOFT, RULE, PAPER = "#1c2026", "#5f656e", "#e2dfd8", "#ffffff"
MOST_CLASSES_IN_LEGEND = 12
GOLDEN_ANGLE = 137.508


def series_index(names: list[str]) -> dict[str, int]:
    """Which of SERIES each run is drawn in; beyond the last they begin again."""
    return {name: i % len(SERIES) for i, name in enumerate(names)}


def class_colour(index: int) -> str:
    """A hue for a class, of even lightness, readable on light and dark; neighbouring indices lie far apart."""
    return _oklch(0.58 + 0.1 * (index % 2), 0.13, index * GOLDEN_ANGLE + 250)


def _oklch(lightness: float, chroma: float, hue_degrees: float) -> str:
    """OKLCH to #rrggbb, by the published matrices of the OKLab colour space."""
    a = chroma * math.cos(math.radians(hue_degrees))
    b = chroma * math.sin(math.radians(hue_degrees))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(max(value, 0.0), 1.0))):02x}" for value in linear)


def _gamma(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
