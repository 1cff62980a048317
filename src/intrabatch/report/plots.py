"""Curves, the map and matrices as PNG, drawn with matplotlib's objects; its global state is left alone.

Shapes: N points, B samples of a batch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from numpy.typing import NDArray

from .content import Picture, SpaceMap
from .curves import Curve, curves, ticks, value_range
from .images import fitted
from .lettering import drawable, font_file, shortened
from .maps import WIDTH, exemplars, placed
from .palette import INK, MOST_CLASSES_IN_LEGEND, PAPER, RIGHT, RULE, SERIES, SOFT, class_colour, series_index
from .words import history_title, number_text

DPI = 150
PANEL_INCHES = (4.0, 2.4)
MAP_INCHES = 9.0
MATRIX_INCHES = (3.6, 3.9)
LEGEND_PIXELS = 120  # room for a name in the legend, at 9 pixels a letter's height


def curves_png(path: Path, histories: dict[str, list[dict[str, float]]]) -> None:
    """All curves as small charts side by side, a line per run."""
    panels, series = curves(histories), series_index(list(histories))
    columns = min(3, len(panels))
    num_rows = -(-len(panels) // columns)
    figure = _figure(columns * PANEL_INCHES[0], num_rows * PANEL_INCHES[1] + 0.35)
    for i, (key, runs) in enumerate(panels.items()):
        _panel(figure.add_subplot(num_rows, columns, i + 1), key, runs, series)
    _legend(figure, list(series), [_line([], [], index) for index in series.values()])
    figure.savefig(path, metadata={"Software": None})


def map_png(path: Path, space: SpaceMap) -> None:
    """A dot per image in its class's colour, with a few of the images; a legend when the classes are few."""
    points_N2, height = placed(space.points_N2)
    figure = _figure(MAP_INCHES, MAP_INCHES * height / WIDTH)
    axes = figure.add_subplot()
    axes.set(xlim=(0, WIDTH), ylim=(height, 0), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)
    colours = [class_colour(label) for label in space.labels_N.tolist()]
    axes.scatter(points_N2[:, 0], points_N2[:, 1], s=14, c=colours, alpha=0.8, linewidths=0)
    if space.thumbnails:
        for i in exemplars(points_N2, space.labels_N):
            axes.add_artist(_exemplar(space.thumbnails[i], points_N2[i]))
    used = sorted(set(space.labels_N.tolist()))
    if len(used) <= MOST_CLASSES_IN_LEGEND:
        dots = [Line2D([], [], marker="o", linestyle="", color=class_colour(i)) for i in used]
        _legend(figure, [space.classes[i] for i in used], dots)
    figure.savefig(path, metadata={"Software": None})


def matrices_png(path: Path, matrices: dict[str, NDArray[np.floating]], labels_B: NDArray[np.int64]) -> None:
    """Matrices of one batch side by side under one scale; green squares hold samples of one class, the diagonal is
    left out."""
    figure = _figure(MATRIX_INCHES[0] * len(matrices) + 0.6, MATRIX_INCHES[1])
    shares = {title: np.where(np.eye(len(labels_B), dtype=bool), np.nan, matrix) for title, matrix in matrices.items()}
    highest = max(float(np.nanquantile(matrix, 0.99)) for matrix in shares.values())
    colours = LinearSegmentedColormap.from_list("weight", [PAPER, SERIES[1][0]]).with_extremes(bad=RULE)
    panels = [figure.add_subplot(1, len(matrices), i + 1) for i in range(len(matrices))]
    for axes, (title, matrix) in zip(panels, shares.items(), strict=True):
        drawn = axes.imshow(matrix, cmap=colours, vmin=0, vmax=highest, interpolation="nearest")
        starts = np.flatnonzero(np.diff(labels_B, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(labels_B)], strict=True):
            corner, side = (start - 0.5, start - 0.5), end - start
            axes.add_patch(Rectangle(corner, side, side, fill=False, edgecolor=RIGHT, linewidth=1.2))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(RULE)
        _write(axes.set_title("", loc="left"), title, 9)
        _write(axes.set_xlabel(""), "neighbour", 8)
    _write(panels[0].set_ylabel(""), "image", 8)
    bar = figure.colorbar(drawn, ax=panels, shrink=0.8, pad=0.02, extend="max", ticks=ticks(0.0, highest, most=4))
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=SOFT, length=0, labelsize=8)
    figure.savefig(path, metadata={"Software": None})


def _exemplar(picture: Picture, point_2: NDArray[np.float64]) -> AnnotationBbox:
    """A picture above its point, tied to it by a line."""
    image = OffsetImage(np.asarray(fitted(picture, 64, enlarge=True)), zoom=0.42)
    line = {"arrowstyle": "-", "color": SOFT}
    place = (float(point_2[0]), float(point_2[1]))
    box = AnnotationBbox(image, place, (0, 25), boxcoords="offset points", pad=0.1, arrowprops=line)
    box.patch.set(edgecolor=RULE)
    return box


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


def _panel(axes: Axes, key: str, runs: dict[str, Curve], series: dict[str, int]) -> None:
    for run, curve in runs.items():
        axes.add_line(_line([at for at, _ in curve], [value for _, value in curve], series[run]))
    axes.autoscale_view()
    low, high = value_range(key, runs)
    levels = ticks(low, high)
    axes.set_ylim(low - 0.02 * (high - low), high + 0.05 * (high - low))
    axes.set_yticks(levels, [number_text(level) for level in levels])
    epochs = [at for curve in runs.values() for at, _ in curve]
    axes.set_xticks(ticks(min(epochs), max(epochs), most=6, whole=True))
    _write(axes.set_xlabel(""), "epoch", 8)
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", color=RULE)
    axes.tick_params(colors=SOFT, length=0, labelsize=8)
    _write(axes.set_title("", loc="left"), history_title(key), 10)


def _line(x: list[float], y: list[float], series: int) -> Line2D:
    colour, _, dashes = SERIES[series]
    lengths = tuple(float(length) / 2 for length in dashes.split())
    style = (0, lengths) if lengths else "-"
    return Line2D(x, y, color=colour, linewidth=1.8, linestyle=style, marker="o" if len(x) == 1 else "")


def _legend(figure: Figure, names: list[str], samples: list[Line2D]) -> None:
    columns = min(5, len(names))
    legend = figure.legend(samples, ["."] * len(names), loc="outside upper left", frameon=False, ncols=columns)
    for text, name in zip(legend.get_texts(), names, strict=True):
        _write(text, shortened(name, LEGEND_PIXELS, 9), 9)


def _write(text: Text, words: str, size: float) -> None:
    """Set a text as it is: no mathematics between dollars, no letter the font lacks, no font of the user's own."""
    font = FontProperties(fname=str(font_file()), size=size)
    text.set(parse_math=False, text=drawable(words), color=INK, fontproperties=font)
