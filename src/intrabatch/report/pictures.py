"""The report's pictures as PNG files, for a README, a slide or a log. The retrieval grid is drawn here with Pillow."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from .content import Grid, Picture, Report
from .curves import curves
from .images import fitted, paste_centred
from .lettering import font, shortened
from .palette import INK, PAPER, RIGHT, RULE, SOFT, WRONG
from .plots import curves_png, map_png

CELL, FRAME, GAP, MARGIN, CAPTION = 96, 5, 12, 20, 20
FONT_SIZE = 12


def save_pictures(folder: Path, report: Report) -> list[Path]:
    """Write retrieval.png, curves.png and map.png for what the report has; returns those written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if report.grid and report.grid.queries:
        written.append(folder / "retrieval.png")
        retrieval_grid_png(written[-1], report.grid)
    if curves(report.histories):
        written.append(folder / "curves.png")
        curves_png(written[-1], report.histories)
    if report.space and len(report.space.points_N2):
        written.append(folder / "map.png")
        map_png(written[-1], report.space)
    return written


def retrieval_grid_png(path: Path, grid: Grid) -> None:
    """Queries at the left, neighbours by rank: solid green and a tick if of the same class, else dashed red."""
    columns = 1 + max((len(row) for row in grid.neighbours), default=0)
    rule = MARGIN + CELL + 2 * GAP
    width = rule + 2 * GAP + (columns - 1) * (CELL + GAP) - GAP + MARGIN
    height = CAPTION + MARGIN + len(grid.queries) * (CELL + CAPTION + GAP) - GAP + MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    lefts = [MARGIN] + [rule + 2 * GAP + i * (CELL + GAP) for i in range(columns - 1)]
    for place, left in enumerate(lefts):
        _text(draw, (left + CELL // 2, MARGIN // 2), f"{place}" if place else "query", SOFT)
    draw.line((rule, MARGIN + CAPTION, rule, height - MARGIN), RULE, 2)
    for row, query in enumerate(grid.queries):
        top = MARGIN + CAPTION + row * (CELL + CAPTION + GAP)
        _cell(sheet, (lefts[0], top), query, grid.query_classes[row], None)
        hits = zip(lefts[1:], grid.neighbours[row], grid.neighbour_classes[row], grid.correct[row], strict=False)
        for left, image, name, right in hits:
            _cell(sheet, (left, top), image, name, right)
    sheet.save(path, "PNG", optimize=True)


def _cell(sheet: Image.Image, corner: tuple[int, int], picture: Picture, name: str, right: bool | None) -> None:
    """A picture with its class below; a neighbour also in its frame."""
    draw = ImageDraw.Draw(sheet)
    left, top = corner
    inset = FRAME + 2
    paste_centred(sheet, fitted(picture, CELL - 2 * inset, enlarge=True), (left + inset, top + inset), CELL - 2 * inset)
    if right is not None:
        _frame(draw, corner, RIGHT if right else WRONG, dashed=not right)
        _badge(draw, (left + CELL - 8, top + CELL - 8), right)
    _text(draw, (left + CELL // 2, top + CELL + 3), shortened(name, CELL + GAP - 4, FONT_SIZE), INK)


def _frame(draw: ImageDraw.ImageDraw, corner: tuple[int, int], colour: str, dashed: bool) -> None:
    left, top = corner
    right, bottom = left + CELL - 1, top + CELL - 1
    draw.rectangle((left, top, right, bottom), outline=colour, width=FRAME)
    if dashed:
        for start in range(10, CELL - 6, 16):
            for end in (top, bottom - FRAME + 1):
                draw.rectangle((left + start, end, left + start + 5, end + FRAME - 1), fill=PAPER)
            for end in (left, right - FRAME + 1):
                draw.rectangle((end, top + start, end + FRAME - 1, top + start + 5), fill=PAPER)


def _badge(draw: ImageDraw.ImageDraw, centre: tuple[int, int], right: bool) -> None:
    """A tick or a cross on a disc, so that the verdict does not hang on colour alone."""
    x, y = centre
    draw.ellipse((x - 11, y - 11, x + 11, y + 11), fill=RIGHT if right else WRONG, outline=PAPER, width=2)
    if right:
        draw.line((x - 5, y, x - 1, y + 4, x + 5, y - 4), PAPER, 2, joint="curve")
    else:
        draw.line((x - 4, y - 4, x + 4, y + 4), PAPER, 2)
        draw.line((x - 4, y + 4, x + 4, y - 4), PAPER, 2)


def _text(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, colour: str) -> None:
    draw.text(place, text, fill=colour, font=font(FONT_SIZE), anchor="ma")
