"""The report: what stands on the page, that nothing in it reaches outside, and what its pictures show."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from intrabatch.errors import DataError, EvaluationError
from intrabatch.report import Grid, Report, Row, SpaceMap, project_2d, retrieval_grid_png, save_pictures, write_report
from intrabatch.report.curves import curves, ticks
from intrabatch.report.lettering import drawable
from intrabatch.report.maps import exemplars, placed
from intrabatch.report.page import page
from intrabatch.report.palette import RIGHT, WRONG
from intrabatch.report.words import best_rows, history_title, metric_text, metric_title, number_text

NASTY = """<script>alert("x")</script> & '"><img src=x onerror=alert(1)> $x_1$ _ж 猫 \u202e"""
CORRECT = [[True, True, False], [False, False, False], [True, False, True]]


def noise(seed: int, size: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def a_grid() -> Grid:
    names = [["cat" if right else "dog" for right in row] for row in CORRECT]
    images = [[noise(10 * i + j, 20 + j) for j in range(3)] for i in range(3)]
    return Grid([noise(i) for i in range(3)], ["cat"] * 3, images, names, CORRECT, "Drawn with seed 0.")


def a_map(num: int = 60, num_classes: int = 15) -> SpaceMap:
    rng = np.random.default_rng(0)
    labels = np.arange(num) % num_classes
    points = rng.normal(size=(num_classes, 2))[labels] * 20 + rng.normal(size=(num, 2))
    return SpaceMap(points, labels, tuple(f"class {i}" for i in range(num_classes)), [noise(i) for i in range(num)])


def a_report() -> Report:
    epochs = [{"epoch": i, "loss": 5.0 / i, "val/recall@1": 0.1 * i, "images_per_second": 400.0 + i} for i in (1, 2, 3)]
    messages = [{**epoch, "loss": 4.0 / epoch["epoch"], "loss/messages": 1.5} for epoch in epochs]
    return Report(
        title="Letters never seen in training",
        summary=["Message passing finds 42.8 % of the letters.", "Repeat it with `intrabatch demo --seed 1`."],
        rows=[
            Row("untrained", {"recall@1": 0.0083, "map@r": 0.0041, "num_queries": 2390}, "Random weights."),
            Row("cross-entropy only", {"recall@1": 0.3704, "map@r": 0.1836}),
            Row("with message passing", {"recall@1": 0.4283, "map@r": 0.1836}, "", {"recall@1": (0.4091, 0.4472)}),
        ],
        protocol={"Images": "2,390 renderings of 239 letters", "Seed": "0"},
        grid=a_grid(),
        histories={"cross-entropy only": epochs, "with message passing": messages},
        space=a_map(),
        hardest=[("Zhe", 0.05), ("Shcha", 0.125)],
        next_steps=["Train longer."],
    )


class Page(HTMLParser):
    """Tags with their attributes, and the text inside each kind of tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append((self.tags[-1][0] if self.tags else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def words(self) -> str:
        return "\n".join(text for tag, text in self.texts if tag not in ("style", "script"))

    def with_class(self, name: str) -> int:
        return sum(name in (attributes.get("class") or "").split() for _, attributes in self.tags)


# ---- the page


def test_page_reaches_for_nothing_outside_itself():
    text = page(a_report())
    parsed = Page(text)
    addresses = [attributes[key] for _, attributes in parsed.tags for key in ("src", "href") if key in attributes]
    addresses += re.findall(r"url\(([^)]*)\)", html.unescape(text))
    assert len(addresses) > 12 and all(address.startswith("data:image/webp;base64,") for address in addresses)
    assert "//" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", text).replace("<!--", "")
    assert "@import" not in text and not parsed.all("link") and not parsed.all("iframe")
    policy = next(m["content"] for m in parsed.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_every_figure_is_on_the_page():
    words = Page(page(a_report())).words()
    figures = ["0.8", "37.0", "42.8", "0.4", "18.4", "2,390", "40.9–44.7", "5.0", "12.5", "30.0", "1.67", "403", "1.5"]
    for figure in figures:
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.,]*\d)", words), figure
    for text in ("Letters never", "Random weights.", "2,390 renderings", "Zhe", "Train longer.", "Drawn with seed 0."):
        assert text in words
    assert "4 of the 9 neighbours" in words


def test_best_of_each_column_is_bold_ties_included():
    bold = [text for tag, text in Page(page(a_report())).texts if tag == "strong"]
    assert bold == ["18.4", "42.8", "18.4"]


def test_frames_are_as_many_as_neighbours_of_each_kind():
    parsed = Page(page(a_report()))
    assert parsed.with_class("right") == 4 and parsed.with_class("wrong") == 5
    shown = [image["alt"] for image in parsed.all("img")]
    assert len(shown) == 3 + 9
    assert shown[:4] == ["Query: cat", "1: cat, same class", "2: cat, same class", "3: dog, another class"]


def test_texts_are_escaped_wherever_they_stand():
    grid = replace(a_grid(), query_classes=[NASTY] * 3, neighbour_classes=[[NASTY] * 3] * 3, note=NASTY)
    space = replace(a_map(), classes=(NASTY,) * 15, note=NASTY)
    report = Report(
        NASTY, [NASTY], [Row(NASTY, {NASTY: 1.5, "recall@1": 0.5}, NASTY)], {NASTY: NASTY}, grid,
        {NASTY: [{"epoch": 1, NASTY: 2.0}]}, space, [(NASTY, 0.5)], NASTY, [NASTY],
    )  # fmt: skip
    parsed = Page(page(report))
    assert len(parsed.all("script")) == 1 and len(parsed.all("img")) == 12
    assert not any(key.startswith("on") for _, attributes in parsed.tags for key in attributes)
    assert parsed.words().count(NASTY) > 30


def test_dots_of_the_map_and_their_sprites():
    space = a_map()
    text = page(a_report())
    dots = [c for c in Page(text).all("circle") if "data-i" in c]
    assert sorted(int(dot["data-i"]) for dot in dots) == list(range(60))
    points, height = placed(space.points_N2)
    for dot in dots:
        x, y = points[int(dot["data-i"])]
        assert abs(float(dot["cx"]) - x) < 0.06 and abs(float(dot["cy"]) - y) < 0.06 and 0 < x < 760 and 0 < y < height
    encoded = re.search(r"background-image:url\(data:image/webp;base64,([^)]+)\)", text)[1]
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))), dtype=float)
    assert sheet.shape == (2 * 48, 40 * 48, 3)
    cell = sheet[48 + 8 : 48 + 40, 8 : 8 + 32]  # the 41st image begins the second row
    assert abs(cell - space.thumbnails[40]).mean() < abs(cell - space.thumbnails[41]).mean()


def test_map_without_thumbnails_and_with_few_classes_has_a_legend():
    space = replace(a_map(num_classes=5), thumbnails=None)
    parsed = Page(page(replace(a_report(), space=space, grid=None, histories={})))
    legend = [text for tag, text in parsed.texts if tag == "span" and text.startswith("class ")]
    assert legend == [f"class {i}" for i in range(5)] and not parsed.all("img") and not parsed.all("image")


def test_same_report_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_report(tmp_path / name / "report.html", a_report())
        written = save_pictures(tmp_path / name, a_report())
    assert [path.name for path in written] == ["retrieval.png", "curves.png", "map.png"]
    for name in ["report.html", *(path.name for path in written)]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_1500_points_with_noisy_thumbnails_stay_under_3_megabytes():
    space = a_map(1500, 150)
    space = replace(space, thumbnails=[noise(i, 64) for i in range(1500)])
    assert len(page(replace(a_report(), space=space))) < 3e6


def test_empty_parts_are_left_out(tmp_path):
    bare = Report("Bare", [], [], {}, grid=Grid([], [], [], [], []), histories={"run": []})
    parsed = Page(page(bare))
    assert not parsed.all("section") and not parsed.all("script") and "Bare" in parsed.words()
    assert save_pictures(tmp_path, bare) == []


def test_odd_values_are_drawn_or_left_out(tmp_path):
    """One epoch, a figure that is no number, one point, all points in one place, a name that is not valid text."""
    report = Report(
        "Odd \udcff", [], [Row("a", {"recall@1": math.nan, "nmi": 0.5}), Row("b", {"nmi": 0.4})], {},
        histories={"猫 $x$ _": [{"loss": 1.0, "val/nmi": math.inf}], "_hidden": [{"loss": 1.0}]},
        space=SpaceMap(np.zeros((4, 2)), np.array([0, 0, 0, 1]), ("_猫 $x", "\udcff"), [noise(i) for i in range(4)]),
        hardest=[("a", math.nan)],
    )  # fmt: skip
    write_report(tmp_path / "report.html", report)
    assert [path.name for path in save_pictures(tmp_path, report)] == ["curves.png", "map.png"]
    words = Page((tmp_path / "report.html").read_text(encoding="utf-8")).words()
    assert "Odd ?" in words and "nan" not in words and "inf" not in words


# ---- pictures


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


def rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour[1:]))


def test_retrieval_picture_frames_every_neighbour(tmp_path):
    retrieval_grid_png(tmp_path / "grid.png", a_grid())
    image = pixels(tmp_path / "grid.png")
    assert image.shape == (20 + 20 + 3 * 116 + 2 * 12 + 20, 20 + 96 + 48 + 3 * 96 + 2 * 12 + 20, 3)
    for row, verdicts in enumerate(CORRECT):
        for place, right in enumerate(verdicts):
            top, left = 40 + row * 128, 164 + place * 108
            edge = image[top, left : left + 80]
            assert (edge[0] == rgb(RIGHT if right else WRONG)).all()
            solid = (edge == edge[0]).all(axis=1).mean()
            assert solid == 1 if right else 0.5 < solid < 0.8
            inside = image[top + 7 : top + 80, left + 7 : left + 80]
            assert inside.std() > 20


def test_pictures_of_curves_and_map_are_not_blank(tmp_path):
    _, curves_png, map_png = save_pictures(tmp_path, a_report())
    for path, width, least in ((curves_png, 1800, 0.01), (map_png, 1350, 0.02)):
        image = pixels(path)
        assert image.shape[1] == width and least < (image.min(axis=2) < 200).mean() < 0.5
    orange, blue = (np.abs(pixels(curves_png).astype(int) - rgb(c)).sum(axis=2) < 12 for c in ("#c05a12", "#1f5fa8"))
    assert orange.sum() > 500 and blue.sum() > 500


def test_letters_the_font_lacks_become_squares():
    assert drawable("Ж\n é 猫 \udcff") == "Ж é □ □"


def test_nothing_global_is_touched():
    code = "import sys, intrabatch.report; print({'matplotlib.pyplot', 'torch', 'timm'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


# ---- curves, names and numbers


def test_curves_by_key_with_losses_first_and_gaps_left_out():
    histories = {
        "a": [{"epoch": 5, "images_per_second": 9.0, "val/nmi": 0.5, "loss": 2.0}, {"epoch": 6, "loss": math.nan}],
        "b": [{"loss/messages": 1.0, "loss": 3.0}, {"loss": 4.0, "time": "noon"}],
    }
    found = curves(histories)
    assert list(found) == ["loss", "loss/messages", "val/nmi", "images_per_second"]
    assert found["loss"] == {"a": [(5, 2.0)], "b": [(1, 3.0), (2, 4.0)]} and found["val/nmi"] == {"a": [(5, 50.0)]}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (1.9, 6.1, [2, 3, 4, 5, 6]), (0, 0.0012, [0, 0.0005, 0.001]),
     (-1, 1, [-1, -0.5, 0, 0.5, 1])],
)  # fmt: skip
def test_ticks_are_round_numbers_inside(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_ticks_of_epochs_are_whole():
    assert ticks(1, 3, whole=True) == [1, 2, 3] and ticks(4, 4, whole=True) == [4]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (2390, "2,390"), (12345.6, "12,346"), (403.4, "403"), (1.666, "1.67"), (1.5, "1.5"), (0.01234, "0.0123"),
     (8e-5, "8e-5"), (9.999e-5, "1e-4"), (1.5e9, "1.5e9"), (-0.25, "-0.25")],
)  # fmt: skip
def test_numbers_as_text(value, text):
    assert number_text(value) == text


def test_names_of_metrics_and_curves():
    names = ["recall@1", "map@r", "r_precision", "R-Precision", "nmi", "num_queries"]
    assert [metric_title(n) for n in names] == ["Recall@1", "MAP@R", "R-precision", "R-precision", "NMI", "Num queries"]
    assert history_title("val/recall@1") == "Validation Recall@1, %" and history_title("nmi") == "NMI, %"
    assert metric_text("nmi", None) == metric_text("nmi", math.nan) == "–" and metric_text("seconds", 0.5) == "0.5"


def test_nothing_is_best_without_a_comparison_or_where_less_may_be_better():
    assert best_rows([Row("a", {"nmi": 0.5, "seconds": 3}), Row("b", {"seconds": 2})], "nmi") == set()
    assert best_rows([Row("a", {"seconds": 3}), Row("b", {"seconds": 2})], "seconds") == set()
    assert best_rows([Row("a", {"nmi": 0.5}), Row("b", {"nmi": 0.6}), Row("c", {"nmi": math.nan})], "nmi") == {1}


# ---- map


def test_exemplars_lie_apart_in_the_tightest_classes():
    across = [0, 1, 2, 40, 50, 60, 300, 309, 318, 500]
    points = np.array([[x, 7.0] for x in across])
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3])
    assert exemplars(points, labels, apart=51) == [1, 7]
    assert exemplars(points, labels, apart=5) == [1, 7, 4]


def test_projection_keeps_neighbours_and_repeats_itself():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 20)
    vectors = rng.normal(size=(12, 64))[labels] + 0.3 * rng.normal(size=(240, 64))
    rows, points = project_2d(vectors, seed=3)
    assert rows.tolist() == list(range(240)) and points.shape == (240, 2)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(240)
    assert (labels[distances.argmin(axis=1)] == labels).mean() > 0.97
    assert (project_2d(vectors, seed=3)[1] == points).all()


def test_projection_draws_a_seeded_sample_beyond_its_limit():
    vectors = np.random.default_rng(0).normal(size=(80, 5))
    rows, points = project_2d(vectors, seed=1, limit=30)
    assert len(points) == 30 and len(set(rows.tolist())) == 30 and (np.diff(rows) > 0).all() and rows.max() < 80
    assert (project_2d(vectors, seed=1, limit=30)[0] == rows).all()
    assert (project_2d(vectors, seed=2, limit=30)[0] != rows).any()


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (2, 1), (7, 3), (40, 1)])
def test_projection_of_few_vectors(shape):
    rows, points = project_2d(np.random.default_rng(0).normal(size=shape), seed=0)
    assert len(rows) == shape[0] and points.shape == (shape[0], 2) and np.isfinite(points).all()


def test_projection_of_equal_vectors_is_one_place():
    assert (project_2d(np.ones((30, 4)), seed=0)[1] == 0).all()


# ---- what cannot be drawn


def test_mistakes_are_named():
    grid = a_grid()
    with pytest.raises(DataError, match="retrieval grid: 2 correct for 3 queries; give one per query"):
        replace(grid, correct=CORRECT[:2])
    with pytest.raises(DataError, match="query 0: 3 neighbours, 3 neighbour_classes, 2 correct; give as many of each"):
        replace(grid, correct=[[True, True], *CORRECT[1:]])
    with pytest.raises(DataError, match="map: 59 labels for 60 points"):
        replace(a_map(), labels_N=np.zeros(59, np.int64))
    with pytest.raises(DataError, match="map: 2 thumbnails for 60 points"):
        replace(a_map(), thumbnails=[noise(0)] * 2)
    with pytest.raises(DataError, match="labels from 0 to 14 for 3 classes"):
        replace(a_map(), classes=("a", "b", "c"))
    with pytest.raises(DataError, match="expected N finite points of two numbers"):
        replace(a_map(), points_N2=np.full((60, 2), np.nan))
    with pytest.raises(DataError, match=r"expected pictures as uint8 \(H, W, 3\), got float64 \(4, 4\)"):
        page(replace(a_report(), grid=replace(grid, queries=[np.zeros((4, 4))] * 3)))
    with pytest.raises(EvaluationError, match=r"expected finite vectors of shape \(N, D\), got an array \(3,\)"):
        project_2d(np.zeros(3), seed=0)
    with pytest.raises(EvaluationError, match="expected finite vectors"):
        project_2d(np.full((3, 2), np.nan), seed=0)


# ---- in a browser

PROBE = """<script>
const said = [], hear = kind => event => said.push(kind + ": " + (event.message || event.violatedDirective));
addEventListener("error", hear("error")); addEventListener("securitypolicyviolation", hear("policy"));
console.error = console.warn = text => said.push("console: " + text);
addEventListener("load", () => {
  const dot = document.querySelector(".map circle"), box = dot.getBoundingClientRect();
  const place = {clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true};
  document.querySelector(".map").dispatchEvent(new PointerEvent("pointermove", place));
  const tip = document.querySelector(".tip");
  const images = [...document.images].every(image => image.loading === "lazy" || image.naturalWidth);
  parent.postMessage({width: innerWidth, scroll: document.documentElement.scrollWidth, said, images,
    tip: tip.textContent, shown: getComputedStyle(tip).visibility}, "*");
});
</script>"""
FRAMES = """<!doctype html><body><iframe src="probe.html" style="width:390px;height:800px;border:0"></iframe>
<iframe src="probe.html" style="width:1280px;height:800px;border:0"></iframe>
<script>const heard = []; addEventListener("message", event => {
  heard.push(event.data); if (heard.length == 2) document.title = JSON.stringify(heard); });</script>"""


def browser_title(path: Path, profile: Path) -> str:
    """The title that the page has given itself, once its frames have answered."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium here: how the page looks in a browser is not tested")
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --virtual-time-budget=4000 --window-size=1300,1700 --dump-dom"
    )
    command = [browser, *flags.split(), f"--user-data-dir={profile}", path.as_uri()]
    try:
        dumped = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"{browser} does not run here: {error}")
    return html.unescape(re.search("<title>(.*?)</title>", dumped)[1])


def test_page_fits_a_phone_and_a_desk_without_a_complaint(tmp_path):
    wide = Row("a name_without_any_place_to_break_it_" * 3, {f"recall@{10**k}": 0.5 for k in range(9)}, NASTY)
    report = replace(a_report(), title="Unbreakable" * 20, hardest=[("x" * 200, 0.1)])
    report = replace(report, rows=[*report.rows, wide], next_steps=[f"`{'y' * 300}`"], protocol={"p" * 90: "q" * 99})
    text = page(report)
    (tmp_path / "probe.html").write_text(text.replace("<head>", "<head>" + PROBE), encoding="utf-8")
    (tmp_path / "frames.html").write_text(FRAMES, encoding="utf-8")
    heard = json.loads(browser_title(tmp_path / "frames.html", tmp_path / "profile"))
    assert sorted(answer["width"] for answer in heard) == [390, 1280]
    for answer in heard:
        assert answer["scroll"] <= answer["width"] and answer["said"] == [] and answer["images"]
        assert answer["tip"] == "class 0" and answer["shown"] == "visible"
