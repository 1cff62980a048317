"""The paper's tables: what they say, that commands are exact, and that rows are kept, gone on with and written down."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import tiny_images

from intrabatch.cli import main, make_parser
from intrabatch.commands import configured
from intrabatch.errors import ConfigError, DataError, RunError, WriteError
from intrabatch.progress import Quiet
from intrabatch.recipes import get_recipe
from intrabatch.reproduce import list_tables, make_study, plan, plan_lines, reproduce, running, table_lines
from intrabatch.reproduce.study import LONGEST_NAME, Trial
from intrabatch.reproduce.tables import TABLES, Row, Table
from intrabatch.reproduce.written import WATCHED, row_of
from intrabatch.run import Run
from intrabatch.settings import override
from intrabatch.trained import Trained
from intrabatch.workflow import prepared_images

TINY = [
    "image.crop=16", "image.resize=16", "model.dim=16", "batch.classes=3", "batch.images=2", "train.epochs=1",
    "train.device=cpu", "messages.heads=2", "evaluation.recall_at=[1]",
]  # fmt: skip


@pytest.fixture(autouse=True)
def tiny_glyphs(monkeypatch):
    """Small squares instead of letters."""
    monkeypatch.setattr(running, "_images", lambda *_: tiny_images())


def tiny_study(out, name="glyphs", seeds=1, **others):
    return make_study(name, out / "data", out, seeds, TINY, **others)


@pytest.fixture
def two_rows(monkeypatch):
    rows = (Row("both", "glyphs", (), {"recall@1": 70.3}), Row("cross-entropy", "glyphs", ("loss.messages=0",)))
    monkeypatch.setitem(TABLES, "two", Table("two rows", rows, figures=("recall@1", "nmi")))


def no_training(*_):
    raise AssertionError("trained again")


# What the tables say


def test_rows_are_those_of_the_paper():
    counts = {name: len(table.rows) for name, table in TABLES.items()}
    assert counts == {
        "training-losses": 8, "main": 4, "ensembles": 21, "embedding-sizes": 20, "larger-images": 8, "test-time": 24,
        "no-test-feedback": 8, "cub": 5, "cub-choice": 19, "glyphs": 9,
    }  # fmt: skip
    assert list(list_tables()) == list(counts)
    found = {(name, row.name, row.recipe): row.paper for name, table in TABLES.items() for row in table.rows}
    assert found["training-losses", "cross-entropy only", "cub_paper"] == {"recall@1": 67.5, "nmi": 69.8}
    assert found["main", "both", "inshop"] == {
        "recall@1": 92.8,
        "recall@10": 98.5,
        "recall@20": 99.1,
        "recall@40": 99.2,
    }
    assert found["embedding-sizes", "64 numbers", "sop"] == {"recall@1": 73.8, "nmi": 91.2}
    assert found["ensembles", "ensemble of 5", "inshop"] == {"recall@1": 93.4}
    assert found["test-time", "student of relations", "cars196"] == {"recall@1": 84.7, "nmi": 70.5}
    assert found["ensembles", "Group Loss, ensemble of 5", "cars196"] == {"recall@1": 88.0, "nmi": 74.2}
    assert found["no-test-feedback", "chosen without them", "cub_paper"] == {"recall@1": 67.1}
    assert found["no-test-feedback", "chosen by the test classes", "inshop"] == {"recall@1": 92.8}
    assert found["larger-images", "227 pixels", "sop"] == {"recall@1": 81.4, "nmi": 92.6}
    assert found["larger-images", "256 pixels", "cars196_256"] == {"recall@1": 90.2, "nmi": 75.4}


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_a_configuration_a_file_and_folders_of_its_own(name, tmp_path):
    study = make_study(name, tmp_path, tmp_path)
    planned = plan(study)
    assert len({study.row_file(one.row) for one in planned}) == len(planned)
    settings_of = {}
    for one in planned:
        assert len(one.repetitions) == study.seeds
        for trial in [trial for trials in one.repetitions for trial in trials]:
            config = study.config(trial)
            assert config.train.seed == trial.seed
            assert settings_of.setdefault(study.path(trial), config) == config
            assert not (trial.student and config.loss.messages)


def test_only_rows_without_test_feedback_hold_classes_out(tmp_path):
    for name in set(TABLES) - {"glyphs", "cub-choice"}:
        study = make_study(name, tmp_path, tmp_path)
        for one in plan(study):
            config = study.config(one.repetitions[0][0])
            protocols = {"chosen without them": (0.1, "validation"), "chosen by the test classes": (0, "as-published")}
            expected = protocols.get(one.row.name, (0, "final")) if name == "no-test-feedback" else (0, "final")
            assert (config.data.val_fraction, config.train.protocol) == expected


def test_choosing_reads_no_test_image_and_the_chosen_recipe_is_one_of_those_tried(tmp_path):
    study = make_study("cub-choice", tmp_path, tmp_path)
    configs = [study.config(study.repetitions(row)[0][0]) for row in study.table.rows]
    assert all(config.data.hide_test and config.data.val_fraction == 0.5 for config in configs)
    assert not any(config.train.watch_test for config in configs)
    final = make_study("cub", tmp_path, tmp_path)
    ours = final.config(final.repetitions(final.table.rows[-1])[0][0])
    tried = [replace(config, data=ours.data, train=ours.train) for config in configs]
    assert ours in tried and ours.loss.messages
    assert replace(ours, loss=replace(ours.loss, messages=0.0)) in tried


def test_long_settings_make_no_long_folder_names():
    changes = tuple(f"optim.milestones=[{i}]" for i in range(20))
    names = [Trial("cub", (*changes, last), 0).folder.parts[1] for last in ("model.dim=64", "model.dim=128")]
    assert all(len(name) == LONGEST_NAME for name in names) and names[0] != names[1]


def test_repetitions_share_no_run_and_begin_alike(tmp_path):
    study = make_study("glyphs", tmp_path, tmp_path, seeds=3)
    for one in plan(study):
        seeds = [[trial.seed for trial in trials] for trials in one.repetitions]
        assert [members[0] for members in seeds] == [0, 2, 4]
        assert len({seed for members in seeds for seed in members}) == 3 * one.row.ensemble


# Commands


@pytest.fixture(scope="module")
def parser():
    return make_parser()


@pytest.mark.parametrize("name", TABLES)
def test_commands_are_what_the_study_does(name, tmp_path, parser):
    """Typed on the command line, they train the same configurations in the same folders."""
    study = make_study(name, tmp_path / "my data", tmp_path / "out", 1, ["train.epochs=2"])
    for one in plan(study):
        made = {}
        for command in one.commands:
            typed = parser.parse_args(shlex.split(command)[1:])
            if "distil" in command:
                assert str(typed.teacher) in made and typed.how == one.row.student
                made[str(typed.out)] = None
            elif "train " in command:
                config = configured(typed, get_recipe(typed.recipe))
                made[str(typed.out)] = override(config, [f"data.path={typed.data}"])
            else:
                assert (typed.refine or "none", len(typed.what)) == (one.row.refine, one.row.ensemble)
                assert set(typed.what) <= set(made)
        for trial in [trial for trials in one.repetitions for trial in trials]:
            assert str(study.path(trial)) in made
            assert trial.student or made[str(study.path(trial))] == study.config(trial)


def test_a_plan_for_a_person_says_each_command_once(tmp_path):
    lines = plan_lines(plan(make_study("glyphs", tmp_path, Path("out"), seeds=1)))
    assert lines[:2] == [
        "# glyphs, both",
        "intrabatch train glyphs --recipe glyphs --set train.seed=0 --out out/runs/glyphs/both/seed0",
    ]
    assert "intrabatch evaluate out/runs/glyphs/both/seed0 --refine k-reciprocal" in lines
    assert "intrabatch evaluate out/runs/glyphs/both/seed0 out/runs/glyphs/both/seed1" in lines
    student = "out/runs/glyphs/both+student-of-features/seed0"
    assert f"intrabatch distil out/runs/glyphs/both/seed0 --how features --out {student}" in lines
    commands = [line for line in lines if line.startswith("intrabatch")]
    assert len(commands) == len(set(commands)) == 10  # 5 trainings, 3 students, 2 evaluations


PAPER = """
training-losses, cub_paper cars196
cross-entropy only & 67.5 & 69.8 & 84.2 & 68.7
message passing only & 68.1 & 72.0 & 87.2 & 72.1
both & 70.3 & 74.0 & 88.1 & 74.8
both, messages at test time & 70.8 & 74.5 & 88.6 & 76.2
ensembles, cub_paper cars196 sop inshop
Group Loss & 65.5 & 69.0 & 85.6 & 72.7 & 75.7 & 91.1
ensemble of 1 & 70.3 & 74.0 & 88.1 & 74.8 & 81.4 & 92.6 & 92.8
Group Loss, ensemble of 2 & 65.8 & 68.5 & 86.2 & 72.6 & 75.9 & 91.1
ensemble of 2 & 72.2 & 74.3 & 90.9 & 74.9 & 81.8 & 92.7 & 92.9
Group Loss, ensemble of 5 & 66.9 & 70.0 & 88.0 & 74.2 & 76.3 & 91.1
ensemble of 5 & 73.1 & 74.4 & 91.5 & 75.4 & 82.1 & 92.8 & 93.4
embedding-sizes, cub_paper cars196 sop inshop
64 numbers & 61.8 & 68.8 & 76.3 & 68.1 & 73.8 & 91.2 & 87.5
128 numbers & 65.1 & 69.3 & 81.6 & 69.4 & 79.1 & 92.3 & 91.3
256 numbers & 68.4 & 73.4 & 86.3 & 72.1 & 80.8 & 92.6 & 92.5
512 numbers & 70.3 & 74.0 & 88.1 & 74.8 & 81.4 & 92.6 & 92.8
1024 numbers & 71.8 & 72.8 & 89.5 & 75.0 & 81.4 & 92.5 & 91.7
larger-images, cub_paper cars196 sop inshop
227 pixels & 70.3 & 74.0 & 88.1 & 74.8 & 81.4 & 92.6 & 92.8
256 pixels & 71.7 & 74.3 & 90.2 & 75.4 & 81.7 & 92.3 & 92.9
test-time, cub_paper cars196
backbone only & 70.3 & 74.0 & 88.1 & 74.8
k-means & 66.1 & 69.6 & 85.1 & 70.5
ward & 67.9 & 68.8 & 86.6 & 69.5
spectral & 63.1 & 69.6 & 85.1 & 69.2
birch & 65.5 & 69.5 & 86.1 & 70.0
dbscan & 65.7 & 72.0 & 85.0 & 70.3
optics & 66.5 & 71.1 & 85.4 & 69.6
nearest & 62.1 & 69.2 & 84.8 & 70.2
k-reciprocal & 70.8 & 74.5 & 88.6 & 76.2
student of predictions & 65.7 & 70.3 & 85.6 & 71.6
student of features & 65.3 & 70.1 & 85.6 & 70.9
student of relations & 64.9 & 68.7 & 84.7 & 70.5
"""


def test_every_figure_of_the_papers_tables():
    """Typed from the paper row by row: recall@1 and NMI of each data set; In-Shop has no NMI."""
    found = {
        (name, row.name, row.recipe.removesuffix("_256")): row.paper
        for name, table in TABLES.items()
        for row in table.rows
        if f"\n{name}," in PAPER
    }
    expected = {}
    for line in PAPER.strip().splitlines():
        row, *figures = line.split(" & ")
        if not figures:
            table, recipes = row.split(", ")
            continue
        for place, recipe in enumerate(recipes.split()):
            pair = [float(figure) for figure in figures[2 * place : 2 * place + 2]]
            if pair:
                expected[table, row, recipe] = dict(zip(("recall@1", "nmi"), pair, strict=False))
    assert found == expected


# Running


def test_the_whole_glyph_table_in_small(tmp_path):
    table = reproduce(tiny_study(tmp_path))
    assert [row["row"] for row in table["rows"]] == [row.name for row in TABLES["glyphs"].rows]
    for row in table["rows"]:
        assert "not_run" not in row and set(row["ours"]) == {"recall@1", "map@r", "nmi"}, row["row"]
    ours = {row["row"]: row["metrics"][0] for row in table["rows"]}
    runs = tmp_path / "runs" / "glyphs"
    both = Trained.open(runs / "both" / "seed0", "cpu")
    assert ours["both"] == both.run.read_json("metrics.json")["metrics"]
    test = tiny_images().only("test")
    config = override(both.config, ["evaluation.refine=k-reciprocal"])
    refined = replace(both, run=replace(both.run, config=config)).evaluate(test, "test")
    assert ours["both, messages at test time"] == refined["metrics"]
    protocols = {row["row"]: row["protocol"] for row in table["rows"]}
    assert protocols["both, messages at test time"]["refinement"] == "k-reciprocal"
    assert protocols["ensemble of 2"]["seed"] == [0, 1]
    assert protocols["student of features"]["how"] == "features"
    assert Run.open(runs / "loss.messages=0+loss.auxiliary_head=group" / "seed0").config.loss.auxiliary_head == "group"
    assert json.loads((tmp_path / "glyphs.json").read_text()) == table
    assert (tmp_path / "glyphs.md").read_text().splitlines() == table_lines(table)


class Stopped(Exception):
    pass


class StoppedAtTheSecondRow(Quiet):
    def say(self, text):
        if "cross-entropy" in text:
            raise Stopped


def test_stopped_and_resumed_row_by_row(tmp_path, two_rows, monkeypatch):
    study = tiny_study(tmp_path, "two")
    with pytest.raises(Stopped):
        reproduce(study, StoppedAtTheSecondRow())
    first = json.loads((tmp_path / "two.json").read_text())
    assert [row["row"] for row in first["rows"]] == ["both"]
    whole = reproduce(study)
    assert whole["rows"][0] == first["rows"][0] and len(whole["rows"]) == 2
    monkeypatch.setattr("intrabatch.ensembles.train", no_training)
    study.row_file(TABLES["two"].rows[1]).unlink()
    assert reproduce(study) == whole  # measured again, from the run that is there
    monkeypatch.setattr(running, "_measured", no_training)
    assert reproduce(study) == whole  # all rows from their files


def test_a_row_file_cut_short_is_written_again(tmp_path, two_rows, monkeypatch):
    study = tiny_study(tmp_path, "two")
    whole = reproduce(study)
    file = study.row_file(TABLES["two"].rows[0])
    for torn in (file.read_text()[:200], "", "{}"):
        file.write_text(torn)
        assert reproduce(study) == whole and json.loads(file.read_text())["row"] == "both"


def test_other_settings_in_the_same_place_leave_the_table_as_it_was(tmp_path, two_rows):
    reproduce(tiny_study(tmp_path, "two"))
    before = (tmp_path / "two.md").read_text()
    message = "seed0 was trained with train.epochs = 1, now 2 is asked for; choose another --out"
    with pytest.raises(RunError, match=message):
        reproduce(make_study("two", tmp_path / "data", tmp_path, 1, [*TINY, "train.epochs=2"]))
    assert (tmp_path / "two.md").read_text() == before


def test_a_table_of_which_nothing_ran_is_a_mistake(tmp_path, capsys):
    assert main(["reproduce", "main", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--quiet"]) == 2
    assert "intrabatch: no row of main was run; the first: put the data set CUB-200-2011 at" in capsys.readouterr().err


class CtrlC(Quiet):
    def step(self, number, read):
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_says_to_type_the_same_again(tmp_path, two_rows, monkeypatch, capsys):
    with pytest.raises(KeyboardInterrupt, match=r"what is done is kept\. Go on with: the same command"):
        reproduce(tiny_study(tmp_path, "two"), CtrlC())
    assert (tmp_path / "runs" / "glyphs" / "both" / "seed0" / "checkpoint.pt").exists()
    options = [word for change in TINY for word in ("--set", change)]
    command = ["reproduce", "two", "--out", str(tmp_path), "--seeds", "1", *options]
    monkeypatch.setattr("intrabatch.progress.make_display", lambda quiet: CtrlC())
    assert main(command) == 130
    assert capsys.readouterr().err.endswith("Go on with: the same command\n")
    monkeypatch.setattr("intrabatch.progress.make_display", lambda quiet: Quiet())
    assert main(command) == 0 and "| glyphs | cross-entropy |" in capsys.readouterr().out


def test_a_row_that_fails_says_why_and_the_others_go_on(tmp_path, monkeypatch):
    rows = (Row("broken", "glyphs", ("batch.classes=40",)), Row("both", "glyphs"))
    monkeypatch.setitem(TABLES, "two", Table("two rows", rows))
    table = reproduce(make_study("two", tmp_path, tmp_path, 1, [one for one in TINY if "batch.classes" not in one]))
    assert table["rows"][0]["not_run"].startswith("batch.classes is 40, but there are only 7 training classes")
    assert "ours" not in table["rows"][0] and not (tmp_path / "two" / "glyphs-broken.json").exists()
    assert "not run: batch.classes is 40" in (tmp_path / "two.md").read_text()


def test_missing_data_is_a_row_that_was_not_run(tmp_path, monkeypatch):
    table = reproduce(make_study("main", tmp_path / "data", tmp_path))
    said = table["rows"][0]["not_run"]
    assert (
        said
        == f"put the data set CUB-200-2011 at {tmp_path}/data/cub; it is at https://www.vision.caltech.edu/datasets/cub_200_2011/"
    )
    assert "| cub_paper | both | 70.3 / – | 80.3 / – |" in (tmp_path / "main.md").read_text()
    (tmp_path / "data" / "CUB_200_2011").mkdir(parents=True)
    study = make_study("main", tmp_path / "data", tmp_path)
    assert plan(study)[0].problem == "" and plan(study)[1].problem.startswith("put the data set Cars196 at")
    assert shlex.split(plan(study)[0].commands[0])[2] == f"{tmp_path}/data/CUB_200_2011"
    monkeypatch.setattr(running, "_images", incomplete)
    assert reproduce(study)["rows"][0]["not_run"] == "the copy is incomplete"


def incomplete(*_):
    raise DataError("the copy is incomplete")


def test_images_are_checked_and_decoded_once_for_all_processes(tmp_path, monkeypatch):
    monkeypatch.undo()
    config = get_recipe("glyphs")
    small = override(config, ["data.glyph_classes=4", "data.glyph_images=2", "data.glyph_size=24", "data.path=glyphs"])
    prepared = []

    def counted(*arguments, **more):
        prepared.append(arguments)
        return prepared_images(*arguments, **more)

    monkeypatch.setattr(running, "prepared_images", counted)
    first = running._images(small, tmp_path)
    running._images_of.cache_clear()  # as in another process
    second = running._images(small, tmp_path)
    assert len(prepared) == 1 and second.names == first.names and len(set(second.splits)) == 3
    side = small.image.resize
    assert (second.read(0, side) == prepared_images(small, False, print).read(0, side)).all()
    running._images_of.cache_clear()


def test_splits_of_the_same_images_share_their_pixels(tmp_path, monkeypatch):
    monkeypatch.undo()
    small = ["data.glyph_classes=8", "data.glyph_images=2", "data.glyph_size=24", "data.path=glyphs"]
    for share in (0, 0.5):
        config = override(get_recipe("glyphs"), [*small, f"data.val_fraction={share}"])
        images = running._images(config, tmp_path)
        assert "val" in images.splits
        assert (images.read(1, config.image.resize) == images.source.source.read(images.names[1], 0)).all()
    assert len(list(tmp_path.glob("*.pixels"))) == 1
    running._images_of.cache_clear()


def test_without_room_images_are_decoded_each_time(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(running, "estimate_bytes", lambda *_: 2**60)
    small = ["data.glyph_classes=4", "data.glyph_images=2", "data.glyph_size=24", "data.path=glyphs"]
    images = running._images(override(get_recipe("glyphs"), small), tmp_path)
    assert len(images) and not list(tmp_path.glob("*.pixels"))
    running._images_of.cache_clear()


def test_a_place_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        WriteError, match=r"cannot make the folder .*/file/decoded-glyphs: Not a directory; choose another --out"
    ):
        reproduce(make_study("glyphs", tmp_path, tmp_path / "file"))


def test_decoded_images_go_when_the_study_ends(tmp_path, two_rows, monkeypatch):
    monkeypatch.undo()
    tiny = Table("one row", (Row("both", "glyphs"),))
    monkeypatch.setitem(TABLES, "one", tiny)
    changes = [*TINY, "data.glyph_classes=6", "data.glyph_images=4"]
    table = reproduce(make_study("one", tmp_path, tmp_path, 1, changes))
    assert "recall@1" in table["rows"][0]["ours"] and table["rows"][0]["seconds"][0] > 0
    assert not list(tmp_path.glob("decoded-*"))


def test_trainings_side_by_side(tmp_path, monkeypatch):
    rows = (Row("both", "glyphs"), Row("broken", "glyphs", ("model.weights=nowhere.pt",)))
    monkeypatch.setitem(TABLES, "one", Table("one row", rows))

    def not_here(*_):
        raise DataError("in the first process")

    monkeypatch.setattr("intrabatch.ensembles.train", not_here)
    said = []

    class Listen(Quiet):
        def say(self, text):
            said.append(text)

    changes = [*TINY, "data.glyph_classes=8", "data.glyph_images=4"]
    study = make_study("one", tmp_path, tmp_path, 2, changes)
    table = reproduce(study, Listen(), jobs=2)
    assert sorted(text.split(":")[0] for text in said[:2]) == [f"{tmp_path}/runs/glyphs/both/seed{i}" for i in (0, 1)]
    assert said[1].endswith("done; 2 to go") and table["rows"][1]["not_run"] == "in the first process"
    assert (
        table["rows"][0]["metrics"][0]
        == Run.open(tmp_path / "runs/glyphs/both/seed0").read_json("metrics.json")["metrics"]
    )


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_trainings_side_by_side_end_with_the_first_process(tmp_path, how):
    changes = [*TINY, "data.glyph_classes=20", "data.glyph_images=4"]
    options = [word for change in changes for word in ("--set", change)]
    command = ["-m", "intrabatch", "reproduce", "glyphs", "--seeds", "9", "--jobs", "2", "--out", str(tmp_path)]
    runs = tmp_path / "runs"
    with subprocess.Popen([sys.executable, *command, *options], stderr=subprocess.PIPE, text=True) as first:
        wait_until(lambda: list(runs.rglob("metrics.json")))
        first.send_signal(getattr(signal, how))
        told = first.communicate(timeout=120)[1]

    def at_rest():
        before = sorted(runs.rglob("*"))
        time.sleep(4)
        return sorted(runs.rglob("*")) == before

    wait_until(at_rest)
    assert len(list(runs.rglob("metrics.json"))) < 20  # of 63
    if how != "SIGKILL":
        assert first.returncode == 130 and told.endswith("Go on with: the same command\n")
        assert not list(tmp_path.glob("decoded-*"))


def wait_until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


# Written down


def test_means_intervals_and_gains_paired_by_seed():
    protocol = {"epoch_chosen": "the last", "epochs": 3, "num_classes": 9}
    both = {"row": "both", "recipe": "cub", "paper": {"recall@1": 70.3}, "protocol": protocol}
    both["metrics"] = [{"recall@1": 0.5}, {"recall@1": 0.6}]
    other = both | {"row": "other", "paper": None, "metrics": [{"recall@1": 0.45}, {"recall@1": 0.57}]}
    rows = [row_of(one, ["recall@1"], both) for one in (both, other)]
    t = 12.706204736432095  # Student's t, 1 degree of freedom, 97.5 %
    assert rows[0]["ours"]["recall@1"] == pytest.approx({"mean": 55, "half": t * 5})
    assert "gain" not in rows[0]
    assert rows[1]["gain"]["recall@1"] == pytest.approx({"mean": -4, "half": t * 1})
    rows.append({"row": "gone", "recipe": "sop", "paper": {"recall@1": 1.0}, "not_run": "no | data"})
    written = {"table": "x", "about": "about", "figures": ["recall@1"], "paper_on": "", "baseline": "both", "seeds": 2}
    written |= {"changes": ["train.epochs=3"], "rows": rows}
    lines = table_lines(written)
    assert lines[4:9] == [
        "| data | row | recall@1 | recall@1 against both | protocol |",
        "| --- | --- | --- | --- | --- |",
        "| cub | both | 70.3 / 55.0 ± 63.5 | – | the last of 3 epochs, 9 unseen classes |",
        "| cub | other | – / 51.0 ± 76.2 | -4.0 ± 12.7 | the last of 3 epochs, 9 unseen classes |",
        "| sop | gone | 1.0 / – | – | not run: no \\| data |",
    ]
    assert lines[-1] == "Made by `intrabatch reproduce x --seeds 2 --set train.epochs=3`."


def test_the_best_test_epoch_stands_apart():
    protocol = {"epoch_chosen": "the last", "epochs": 3, "num_classes": 9, "split": "val"}
    row = {"row": "both", "recipe": "cub", "paper": None, "protocol": protocol, "seconds": [60.0, 120.0]}
    row |= {"metrics": [{"recall@1": 0.5}, {"recall@1": 0.6}], "best_test": [0.6, 0.7]}
    written = {"table": "x", "about": "", "figures": ["recall@1"], "paper_on": "", "baseline": "", "seeds": 2}
    lines = table_lines(written | {"changes": [], "jobs": 3, "rows": [row_of(row, ["recall@1"], None)]})
    assert lines[4].endswith(f"| {WATCHED} |")
    assert lines[6] == ("| cub | both | 55.0 ± 63.5 | the last of 3 epochs, 9 validation classes | 65.0 ± 63.5 |")
    assert lines[-2] == "Made by `intrabatch reproduce x --seeds 2 --jobs 3`."
    assert lines[-1] == "Minutes of training, evaluation left out: cub, both 1.5."


def test_a_report_goes_where_it_is_asked_for(tmp_path, two_rows, monkeypatch):
    monkeypatch.setattr(
        running, "_measured", lambda *_: {"metrics": {"recall@1": 0.5, "nmi": 0.25}, "protocol": PROTOCOL}
    )
    monkeypatch.setattr(running, "_environment", lambda path: ENVIRONMENT)
    monkeypatch.setattr(running, "_seconds", lambda path: 90.0)
    study = tiny_study(tmp_path, "two", report=tmp_path / "docs" / "two.md")
    reproduce(study)
    assert "| glyphs | both | 70.3 / 50.0 | – / 25.0 |" in (tmp_path / "docs" / "two.md").read_text()
    assert (
        (tmp_path / "docs" / "two.md")
        .read_text()
        .endswith(
            "intrabatch 0.1 (commit 0123456, with uncommitted changes), torch 2.4, Linux, device cpu, "
            "1 thread a training.\n"
            "Minutes of training, evaluation left out: glyphs, both 1.5; glyphs, cross-entropy 1.5.\n"
        )
    )
    assert json.loads((tmp_path / "docs" / "two.json").read_text())["table"] == "two"


PROTOCOL = {"epoch_chosen": "the last", "epochs": 1, "num_classes": 3}
ENVIRONMENT = {
    "intrabatch": "0.1",
    "packages": {"torch": "2.4"},
    "platform": "Linux-6",
    "device": "cpu",
    "cpu_threads": 1,
    "git": "0123456789-dirty",
}


def test_mistakes_are_one_line_each(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown table 'glyph'; did you mean 'glyphs'\?"):
        make_study("glyph", tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="--seeds is 0; expected 1 or more"):
        make_study("glyphs", tmp_path, tmp_path, 0)
    with pytest.raises(ConfigError, match="--jobs is 0; expected 1 or more"):
        reproduce(make_study("glyphs", tmp_path, tmp_path), jobs=0)
    with pytest.raises(ConfigError, match=r"unknown key 'train\.epoch'; did you mean 'train\.epochs'\?"):
        make_study("glyphs", tmp_path, tmp_path, changes=["train.epoch=1"])
