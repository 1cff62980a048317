"""Curves and the map as SVG inside the page: they take the page's colours, light or dark, and need no script.

Shapes: N points.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .content import SpaceMap
from .images import data_uri, fitted
from .markup import Markup, join, tag
from .palette import class_colour, series_index
from .words import history_title, is_fraction, number_text

Curve = list[tuple[float, float]]

PANEL_WIDTH, PANEL_HEIGHT = 350, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 24
MAP_WIDTH, MAP_MARGIN, MAP_PICTURE = 760.0, 24.0, 34.0
LEAD = 8.0  # from a point up to its picture
MOST_EXEMPLARS = 36


def curves(histories: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Curve]]:
    """For each key of any epoch, the (epoch, value) pairs of every run that has it; fractions in percent.

    Losses come first, then fractions such as validation figures, then the rest.
    """
    keys = dict.fromkeys(key for epochs in histories.values() for epoch in epochs for key in epoch)
    panels: dict[str, dict[str, Curve]] = {}
    for key in sorted(keys, key=lambda key: (not key.startswith("loss"), not is_fraction(key))):
        found = {run: _curve(epochs, key) for run, epochs in histories.items()}
        if key not in ("epoch", "step") and any(found.values()):
            panels[key] = {run: curve for run, curve in found.items() if curve}
    return panels


def _curve(epochs: list[dict[str, float]], key: str) -> Curve:
    """Epochs without the value, or where it is not a number, are left out."""
    scale = 100 if is_fraction(key) else 1
    values = [(float(epoch.get("epoch", i + 1)), epoch.get(key)) for i, epoch in enumerate(epochs)]
    return [(at, scale * v) for at, v in values if isinstance(v, int | float) and math.isfinite(v)]


def value_range(key: str, runs: dict[str, Curve]) -> tuple[float, float]:
    """From the least to the greatest value; all but losses start from zero, lest a ripple look like a wave."""
    values = [value for curve in runs.values() for _, value in curve]
    low, high = min(values), max(values)
    if not key.startswith("loss"):
        low, high = min(low, 0.0), max(high, 0.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def ticks(low: float, high: float, most: int = 5, whole: bool = False) -> list[float]:
    """Round numbers from `low` to `high`, at most `most` and a few steps of 1, 2 or 5 apart."""
    rough = max((high - low) / most, 1e-12)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def panel(key: str, runs: dict[str, Curve], series: dict[str, int]) -> Markup:
    """One small chart: a line per run, its last value beside the title."""
    epochs = [at for curve in runs.values() for at, _ in curve]
    low, high = value_range(key, runs)
    first, last = min(epochs), max(epochs)

    def x(at: float) -> float:
        share = (at - first) / (last - first) if last > first else 0.5
        return round(LEFT + share * (PANEL_WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(TOP + (high - value) / (high - low) * (PANEL_HEIGHT - TOP - BOTTOM), 1)

    bottom = PANEL_HEIGHT - BOTTOM
    lines = [_level(y(value), number_text(value)) for value in ticks(low, high)]
    names = [
        tag("text", f"{at:g}", x=x(at), y=bottom + 16, text_anchor="middle")
        for at in ticks(first, last, most=6, whole=True)
    ]
    drawn = [_line([(x(at), y(value)) for at, value in curve], series[run]) for run, curve in runs.items()]
    final = [tag("span", _last(key, curve), class_=f"last s{series[run]}") for run, curve in runs.items()]
    title = history_title(key)
    picture = tag(
        "svg",
        *lines,
        *names,
        *drawn,
        viewBox=f"0 0 {PANEL_WIDTH} {PANEL_HEIGHT}",
        role="img",
        aria_label=f"{title} by epoch",
    )
    return tag("figure", tag("figcaption", tag("b", title), *final), picture, class_="panel")


def _last(key: str, curve: Curve) -> str:
    value = curve[-1][1]
    return f"{value:.1f}" if is_fraction(key) else number_text(value)


def _level(y: float, text: str) -> Markup:
    label = tag("text", text, x=LEFT - 8, y=round(y + 4, 1), text_anchor="end")
    return join(tag("line", x1=LEFT, x2=PANEL_WIDTH - RIGHT, y1=y, y2=y), label)


def _line(points: Curve, series: int) -> Markup:
    x, y = points[-1]
    path = " ".join(f"{x},{y}" for x, y in points)
    return join(tag("polyline", points=path, class_=f"s{series}"), tag("circle", cx=x, cy=y, r=3, class_=f"s{series}"))


def panels(histories: dict[str, list[dict[str, float]]]) -> list[Markup]:
    series = series_index(list(histories))
    return [panel(key, runs, series) for key, runs in curves(histories).items()]


def placed(points_N2: NDArray[np.floating]) -> tuple[NDArray[np.float64], float]:
    """The points inside a drawing MAP_WIDTH wide, one scale for both axes, and the drawing's height."""
    low_2, high_2 = points_N2.min(axis=0), points_N2.max(axis=0)
    extent_2 = np.maximum(high_2 - low_2, 1e-12)
    inner = MAP_WIDTH - 2 * MAP_MARGIN
    height = float(np.clip(inner * extent_2[1] / extent_2[0], 0.6 * inner, inner))
    scale = min(inner / extent_2[0], height / extent_2[1])
    top = MAP_MARGIN + MAP_PICTURE  # room for a picture above the highest point
    centre_2 = np.array([MAP_WIDTH / 2, height / 2 + top])
    return (points_N2 - (low_2 + high_2) / 2) * scale + centre_2, height + top + MAP_MARGIN


def exemplars(points_N2: NDArray[np.float64], labels_N: NDArray[np.int64], apart: float) -> list[int]:
    """The middle point of the tightest classes, no two closer than `apart` along both axes."""
    found = []
    for label in np.unique(labels_N):
        members = np.flatnonzero(labels_N == label)
        distances = np.linalg.norm(points_N2[members] - np.median(points_N2[members], axis=0), axis=1)
        if len(members) >= 3:
            found.append((float(distances.mean()), int(members[distances.argmin()])))
    chosen: list[int] = []
    for _, i in sorted(found):
        if all(np.abs(points_N2[i] - points_N2[j]).max() >= apart for j in chosen):
            chosen.append(i)
    return chosen[:MOST_EXEMPLARS]


def space_map(space: SpaceMap) -> Markup:
    """The map: a dot per image in its class's colour, and a few of the images themselves."""
    points_N2, height = placed(space.points_N2)
    points_N2 = points_N2.round(1)
    groups = []
    for label in np.unique(space.labels_N):
        dots = [
            tag("circle", cx=f"{points_N2[i, 0]:g}", cy=f"{points_N2[i, 1]:g}", r="3.2", data_i=i)
            for i in np.flatnonzero(space.labels_N == label)
        ]
        groups.append(tag("g", tag("title", space.classes[label]), *dots, fill=class_colour(int(label))))
    shown = exemplars(points_N2, space.labels_N, MAP_PICTURE * 1.5) if space.thumbnails else []
    pictures = [_exemplar(space, points_N2, i) for i in shown]
    viewbox = f"0 0 {MAP_WIDTH:g} {height:.0f}"
    return tag(
        "svg", *groups, *pictures, class_="map", viewBox=viewbox, role="img", aria_label="Map of the embedding space"
    )


def _exemplar(space: SpaceMap, points_N2: NDArray[np.float64], i: int) -> Markup:
    assert space.thumbnails is not None
    x, y = points_N2[i]
    side = MAP_PICTURE
    address = data_uri(fitted(space.thumbnails[i], 2 * int(side)))
    left, top = f"{x - side / 2:.1f}", f"{y - side - LEAD:.1f}"
    picture = tag("image", x=left, y=top, width=f"{side:g}", height=f"{side:g}", href=address)
    return tag(
        "g", tag("line", x1=f"{x:g}", y1=f"{y:g}", x2=f"{x:g}", y2=f"{y - LEAD:.1f}"), picture, class_="exemplar"
    )
