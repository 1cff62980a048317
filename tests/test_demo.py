"""The demo at its smallest: both runs, three rows, the page and its pictures, and plain words."""

import json

import pytest

from intrabatch import settings
from intrabatch.demo import demo
from intrabatch.errors import DataError, RunError
from intrabatch.progress import Quiet
from intrabatch.recipes import glyphs

TINY = ["data.glyph_classes=16", "data.glyph_images=6", "data.glyph_size=24", "image.crop=24", "image.resize=24",
        "train.epochs=1", "model.dim=16", "train.device=cpu", "batch.classes=4", "batch.images=4"]  # fmt: skip


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    return demo(settings.override(glyphs(), TINY), tmp_path_factory.mktemp("demo"), Quiet())


def test_three_rows_and_their_protocol(summary):
    assert list(summary.rows) == ["untrained", "cross-entropy", "with-messages"]
    written = json.loads((summary.out / "metrics.json").read_text())
    assert written["rows"] == summary.rows and written["protocol"]["classes_seen_in_training"] == 0
    assert written["metrics"] == summary.rows["with-messages"]


def test_every_training_writes_for_tensorboard(summary):
    assert all(list((summary.out / name / "tensorboard").iterdir()) for name in ("cross-entropy", "with-messages"))


def test_pictures_and_page(summary):
    assert {path.name for path in (summary.out / "pictures").iterdir()} == {"retrieval.png", "curves.png", "map.png"}
    page = (summary.out / "report.html").read_text()
    for words in ("untrained", "cross-entropy only", "with message passing", "What to try next"):
        assert words.lower() in page.lower()


def test_plain_words_say_whether_messages_helped(summary):
    gain = 100 * (summary.rows["with-messages"]["recall@1"] - summary.rows["cross-entropy"]["recall@1"])
    assert f"{gain:+.1f} points of recall@1" in " ".join(summary.findings())
    assert len(summary.hits) == 5 and all(hit.path != summary.query for hit in summary.hits)
    assert str(summary.out / "report.html") in summary.lines()[-1]


def test_an_earlier_demo_is_replaced_and_nothing_else(summary, tmp_path):
    (tmp_path / "with-messages").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"holds 'notes\.txt', which no demo made; choose another --out"):
        demo(settings.override(glyphs(), TINY), tmp_path, Quiet())
    assert (tmp_path / "notes.txt").read_text() == "mine" and (tmp_path / "with-messages").is_dir()
    with pytest.raises(DataError, match="ask for at most"):
        demo(settings.override(glyphs(), [*TINY, "data.glyph_classes=9999"]), summary.out, Quiet())
    assert (summary.out / "report.html").is_file()  # a demo that cannot begin takes nothing away
    again = demo(settings.override(glyphs(), TINY), summary.out, Quiet())
    assert again.rows == summary.rows  # the same seed, the same figures


def test_a_demo_cut_short_is_begun_anew(tmp_path):
    class Kill(Quiet):
        def epoch(self, record):
            raise SystemExit

    with pytest.raises(SystemExit):
        demo(settings.override(glyphs(), TINY), tmp_path / "demo", Kill())
    assert not (tmp_path / "demo" / "report.html").exists()
    assert demo(settings.override(glyphs(), TINY), tmp_path / "demo", Quiet()).rows
