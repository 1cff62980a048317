"""Training curves as SVG inside the page: they take the page's colours, light or dark, and need no script."""

from __future__ import annotations

import math
from collections.abc import Callable

from .markup import Markup, join, tag
from .palette import series_index
from .words import history_title, is_fraction, number_text

Curve = list[tuple[float, float]]

WIDTH, HEIGHT = 350, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 24


def curves(histories: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Curve]]:
    """For each key of any epoch, the (epoch, value) pairs of every run that has it; fractions in percent.

    Losses come first, then fractions such as validation figures, then the rest.
    """
    keys = dict.fromkeys(key for epochs in histories.values() for epoch in epochs for key in epoch)
    panels: dict[str, dict[str, Curve]] = {}
    for key in sorted(keys, key=lambda key: (not key.startswith("loss"), not is_fraction(key))):
        found = {run: _curve(epochs, key) for run, epochs in histories.items()}
        if key not in ("epoch", "step", "seconds") and any(found.values()):
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


def panels(histories: dict[str, list[dict[str, float]]]) -> list[Markup]:
    """All curves as small charts."""
    series = series_index(list(histories))
    return [_panel(key, runs, series) for key, runs in curves(histories).items()]


def _panel(key: str, runs: dict[str, Curve], series: dict[str, int]) -> Markup:
    """One small chart: a line per run, its last value beside the title."""
    epochs = [at for curve in runs.values() for at, _ in curve]
    first, last, (low, high) = min(epochs), max(epochs), value_range(key, runs)
    x = _scale(first, last, LEFT, WIDTH - RIGHT)
    y = _scale(low, high, HEIGHT - BOTTOM, TOP)
    levels = [_level(y(value), number_text(value)) for value in ticks(low, high)]
    names = [_epoch(x(at), f"{at:g}") for at in ticks(first, last, most=6, whole=True)]
    lines = [_line([(x(at), y(value)) for at, value in curve], series[run]) for run, curve in runs.items()]
    final = [tag("span", _last(key, curve), class_=f"last s{series[run]}") for run, curve in runs.items()]
    title, box = history_title(key), f"0 0 {WIDTH} {HEIGHT}"
    picture = tag("svg", *levels, *names, *lines, viewBox=box, role="img", aria_label=f"{title} by epoch")
    return tag("figure", tag("figcaption", tag("b", title), *final), picture, class_="panel")


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Where a value between `low` and `high` is drawn between `start` and `end`; in the middle when they are one."""
    return lambda value: round(start + (end - start) * ((value - low) / (high - low) if high > low else 0.5), 1)


def _last(key: str, curve: Curve) -> str:
    value = curve[-1][1]
    return f"{value:.1f}" if is_fraction(key) else number_text(value)


def _level(y: float, text: str) -> Markup:
    label = tag("text", text, x=LEFT - 8, y=round(y + 4, 1), text_anchor="end")
    return join(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y), label)


def _epoch(x: float, text: str) -> Markup:
    return tag("text", text, x=x, y=HEIGHT - BOTTOM + 16, text_anchor="middle")


def _line(points: Curve, series: int) -> Markup:
    """A line with a dot at its end: the dot alone when there is one epoch."""
    path = " ".join(f"{x},{y}" for x, y in points)
    end = tag("circle", cx=points[-1][0], cy=points[-1][1], r=3, class_=f"s{series}")
    return join(tag("polyline", points=path, class_=f"s{series}"), end)
