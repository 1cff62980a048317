"""The report as one HTML file: no network, no other file, readable without its script, in light and in dark.

Every text comes through `markup`, which escapes it.
"""

from __future__ import annotations

from pathlib import Path

from .content import Grid, Picture, Report, Row, SpaceMap
from .curves import panels
from .images import data_uri, fitted, sprite_sheet
from .maps import space_map
from .markup import Markup, join, prose, tag
from .palette import MOST_CLASSES_IN_LEGEND, class_colour, series_index
from .style import SCRIPT, style
from .words import best_rows, is_fraction, metric_names, metric_text, metric_title

# The browser itself then refuses anything that is not in the file.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
GRID_PIXELS = 148
SPRITE_PIXELS, SPRITE_COLUMNS, SPRITE_QUALITY = 48, 40, 60


def write_report(path: Path, report: Report) -> None:
    """Write the report as one HTML file; the same report gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(report), encoding="utf-8", errors="replace")


def page(report: Report) -> str:
    """The whole HTML text."""
    series = series_index(list(report.histories))
    sections = [
        _figures(report, series) if report.rows else None,
        _neighbours(report.grid) if report.grid and report.grid.queries else None,
        _training(report, series),
        _space(report.space) if report.space and len(report.space.points_N2) else None,
        _hardest(report) if report.hardest else None,
        _next_steps(report.next_steps) if report.next_steps else None,
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", report.title),
        tag("style", Markup(style())),
    )
    main = tag("main", _opening(report), *(section for section in sections if section))
    script = tag("script", Markup(SCRIPT)) if report.space else ""
    return "<!doctype html>\n" + tag("html", head, tag("body", main, script), lang="en") + "\n"


def _opening(report: Report) -> Markup:
    paragraphs = [tag("p", prose(text), class_=None if i else "lede") for i, text in enumerate(report.summary)]
    return tag("header", tag("p", "Image retrieval report", class_="eyebrow"), tag("h1", report.title), *paragraphs)


def _section(title: str, explanation: str, *content: str) -> Markup:
    return tag("section", tag("aside", tag("h2", title), prose(explanation)), tag("div", *content))


def _figures(report: Report, series: dict[str, int]) -> Markup:
    metrics = metric_names(report.rows)
    bars = _bars(report.rows, metrics[0], series) if metrics and is_fraction(metrics[0]) else ""
    explanation = "In percent, more is better; the best of each column is bold."
    terms = [join(tag("dt", name), tag("dd", prose(text))) for name, text in report.protocol.items()]
    protocol = tag("dl", *terms) if terms else ""
    return _section("The figures", explanation, bars, _table(report.rows, metrics, series), protocol)


def _bars(rows: list[Row], metric: str, series: dict[str, int]) -> Markup:
    lines = [
        _bar(row.name, metric, row.metrics[metric], series.get(row.name), row.intervals.get(metric))
        for row in rows
        if metric in row.metrics
    ]
    caption = tag("p", f"{metric_title(metric)}, %; a full bar is 100", class_="caption soft")
    return tag("div", caption, *lines, class_="bars")


def _bar(
    name: str, metric: str, value: float, series: int | None = None, interval: tuple[float, float] | None = None
) -> Markup:
    """Name, bar and figure of one line: cells of a grid three columns wide."""
    parts = [tag("div", class_="fill", style=f"width:{_share(value):.2f}%")]
    if interval:
        low, high = map(_share, interval)
        parts.append(tag("div", class_="range", style=f"left:{low:.2f}%;right:{100 - high:.2f}%"))
    figure = tag("div", metric_text(metric, value), class_="figure")
    return join(tag("div", name, class_="name"), figure, tag("div", *parts, class_=_kind("track", series)))


def _share(value: float) -> float:
    """A fraction in percent, kept inside the bar; what is not a number is nothing."""
    return 100 * min(1.0, max(0.0, value))


def _kind(kind: str, series: int | None) -> str:
    return kind if series is None else f"{kind} s{series}"


def _table(rows: list[Row], metrics: list[str], series: dict[str, int]) -> Markup:
    best = {metric: best_rows(rows, metric) for metric in metrics}
    head = tag("tr", tag("th", "", scope="col"), *(tag("th", metric_title(metric), scope="col") for metric in metrics))
    lines = []
    for i, row in enumerate(rows):
        name = tag("span", row.name, class_=_kind("key", series.get(row.name)))
        note = tag("small", prose(row.note)) if row.note else ""
        cells = [_cell(row, metric, i in best[metric]) for metric in metrics]
        lines.append(tag("tr", tag("th", name, note, scope="row"), *cells))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), class_="scroll")


def _cell(row: Row, metric: str, best: bool) -> Markup:
    figure = metric_text(metric, row.metrics.get(metric))
    interval = row.intervals.get(metric)
    small = tag("small", "–".join(metric_text(metric, end) for end in interval)) if interval else ""
    return tag("td", tag("strong", figure) if best else figure, small)


def _neighbours(grid: Grid) -> Markup:
    explanation = (
        "Left the query, then its nearest images, nearest first. A solid green frame with a tick: the same class; "
        "a dashed red frame with a cross: another."
    )
    found = f"{grid.num_correct()} of the {grid.num_neighbours()} neighbours shown are of their query's class."
    lines = [_query(grid, row) for row in range(len(grid.queries))]
    return _section("Nearest neighbours", explanation, *lines, tag("p", prose(f"{found} {grid.note}"), class_="soft"))


def _query(grid: Grid, row: int) -> Markup:
    found = zip(grid.neighbours[row], grid.neighbour_classes[row], grid.correct[row], strict=True)
    hits = [_image(image, f"{rank}", name, right) for rank, (image, name, right) in enumerate(found, start=1)]
    query = _image(grid.queries[row], "Query", grid.query_classes[row])
    return tag("div", query, tag("div", *hits, class_="hits"), class_="query")


def _image(picture: Picture, place: str, name: str, right: bool | None = None) -> Markup:
    kind, verdict = ("image right", ", same class") if right else ("image wrong", ", another class")
    if right is None:
        kind, verdict = "image", ""
    image = tag("img", src=data_uri(fitted(picture, GRID_PIXELS)), alt=f"{place}: {name}{verdict}", loading="lazy")
    return tag("div", tag("div", image), tag("span", name, title=name), class_=kind)


def _training(report: Report, series: dict[str, int]) -> Markup | None:
    charts = panels(report.histories)
    if not charts:
        return None
    legend = tag("div", *(_legend_entry(name, index) for name, index in series.items()), class_="legend")
    explanation = "By epoch; beside each title the last value."
    return _section("Training", explanation, legend, tag("div", *charts, class_="panels"))


def _legend_entry(name: str, series: int) -> Markup:
    line = tag("svg", tag("polyline", points="1,5 29,5", class_=f"s{series}"), viewBox="0 0 30 10", aria_hidden="true")
    return tag("span", line, name)


def _space(space: SpaceMap) -> Markup:
    used = sorted({int(label) for label in space.labels_N})
    legend: Markup | str = ""
    if len(used) <= MOST_CLASSES_IN_LEGEND:
        entries = [tag("span", space.classes[i], class_="key", style=f"--series:{class_colour(i)}") for i in used]
        legend = tag("div", *entries, class_="legend")
    explanation = (
        "Each dot is an image, each colour a class. Images that the network finds alike lie close together; distances "
        "between far groups mean little. Point at a dot, or tap it, to see its class."
    )
    drawing = tag("div", space_map(space), _tip(space), class_="space")
    count = f"{len(space.points_N2):,} images of {len(used):,} classes. {space.note}"
    return _section("The embedding space", explanation, legend, drawing, tag("p", prose(count), class_="soft"))


def _tip(space: SpaceMap) -> Markup:
    """The small window at the pointer; the script moves it."""
    thumb: Markup | str = ""
    if space.thumbnails:
        sheet = data_uri(sprite_sheet(space.thumbnails, SPRITE_PIXELS, SPRITE_COLUMNS), SPRITE_QUALITY)
        background = f"--columns:{SPRITE_COLUMNS};background-image:url({sheet})"
        thumb = tag("div", class_="thumb", style=background, data_columns=SPRITE_COLUMNS)
    return tag("div", thumb, tag("div", class_="name"), class_="tip")


def _hardest(report: Report) -> Markup:
    lines = [_bar(name, report.hardest_metric, value) for name, value in report.hardest]
    unit = ", %" if is_fraction(report.hardest_metric) else ""
    caption = tag("p", f"{metric_title(report.hardest_metric)} of the class{unit}", class_="caption soft")
    explanation = "The classes that were found worst: the place to look for mistakes, and for labels that are wrong."
    return _section("The hardest classes", explanation, tag("div", caption, *lines, class_="bars thin"))


def _next_steps(steps: list[str]) -> Markup:
    return _section("What to try next", "", tag("ol", *(tag("li", prose(step)) for step in steps), class_="steps"))
