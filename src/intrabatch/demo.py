"""The whole path on the built-in images: train without and with message passing, measure, show, and say what was found.

    runs/demo/untrained/       the network before its first step
    runs/demo/cross-entropy/   the run without message passing
    runs/demo/with-messages/   the run with it
    runs/demo/metrics.json     the three rows and their protocol
    runs/demo/report.html      one page that shows it all; its pictures are beside it
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import Config
from .data.image_set import ImageSet
from .data.load import load_images, with_splits
from .ensembles import trained_run
from .errors import RunError
from .neighbours import nearest
from .progress import Progress
from .report import Grid, Report, Row, SpaceMap, project_2d, save_pictures, write_report
from .run import Run
from .trained import Hit, Trained

ROWS = {"untrained": "untrained", "cross-entropy": "cross-entropy only", "with-messages": "with message passing"}
MADE_HERE = {*ROWS, "pictures", "report.html", "metrics.json"}
"""All that a demo leaves in its folder."""
SHOWN = ("recall@1", "recall@8", "map@r", "nmi")
CURVES = ("epoch", "loss/auxiliary", "loss/messages", "val/recall@1", "val/map@r")
MAP_IMAGES = 800


@dataclass(frozen=True)
class Summary:
    """What the demo found."""

    rows: dict[str, dict[str, float]]
    protocol: dict[str, Any]
    query: str
    query_label: str
    hits: list[Hit]
    out: Path

    def as_dict(self) -> dict[str, Any]:
        last = list(self.rows)[-1]
        query = {"path": self.query, "label": self.query_label, "hits": [asdict(hit) for hit in self.hits]}
        return {
            "metrics": self.rows[last],
            "rows": self.rows,
            "protocol": self.protocol,
            "query": query,
            "run": str(self.out),
        }

    def lines(self) -> list[str]:
        """All of it for a terminal."""
        right = sum(hit.label == self.query_label for hit in self.hits)
        return [
            "",
            f"{'unseen classes, in percent':<28}" + "".join(f"{name:>11}" for name in SHOWN),
            *(_row_line(ROWS[name], figures) for name, figures in self.rows.items()),
            "",
            *self.findings(),
            "",
            f"asked for images like {self.query}: {right} of the {len(self.hits)} nearest are that character",
            *(f"  {rank}. {hit.score:.3f}  {hit.path}" for rank, hit in enumerate(self.hits, 1)),
            "",
            "next:",
            *(f"  {step}" for step in self.next_steps()),
            "",
            f"all of it, with pictures: {self.out / 'report.html'}",
        ]

    def findings(self) -> list[str]:
        """In plain words, unflattering where it is."""
        plain, messages = (self.rows[name] for name in ("cross-entropy", "with-messages"))
        gain = 100 * (messages["recall@1"] - plain["recall@1"])
        gain_map = 100 * (messages["map@r"] - plain["map@r"])
        mixed = "did not help" if max(gain, gain_map) <= 0 else "cut both ways"
        verdict = "helped" if min(gain, gain_map) > 0 else mixed
        return [
            f"For {100 * messages['recall@1']:.0f} of 100 images of characters never seen in training, the most "
            f"similar image shows the same character (untrained network: "
            f"{100 * self.rows['untrained']['recall@1']:.0f}).",
            f"Message passing {verdict} in this run: {gain:+.1f} points of recall@1, {gain_map:+.1f} of MAP@R against "
            f"the same network without it.",
            "One run of each proves little: seeds differ by points. Several seeds would tell.",
        ]

    def next_steps(self) -> list[str]:
        run = self.out / "with-messages"
        return [
            "intrabatch demo --out runs/demo1 --set train.seed=1   another seed",
            f"intrabatch evaluate {run}   the figures again",
            "intrabatch check PHOTOS   what is in your own folder of images, a folder per class",
            "intrabatch train PHOTOS --out runs/photos   the same on your images",
        ]


def _row_line(name: str, figures: dict[str, float]) -> str:
    return f"{name:<28}" + "".join(f"{100 * figures[key]:>11.1f}" if key in figures else f"{'':>11}" for key in SHOWN)


def demo(config: Config, out: Path, progress: Progress) -> Summary:
    """Train both runs, measure them and the untrained network on unseen scripts, and write the report."""
    images = with_splits(load_images(config.data), config.data)
    _make_room(out)
    settings_of = {
        "untrained": replace(config, train=replace(config.train, epochs=0)),
        "cross-entropy": replace(config, loss=replace(config.loss, messages=0.0)),
        "with-messages": config,
    }
    runs = {
        name: trained_run(settings, images, out / name, progress if settings.train.epochs else None)
        for name, settings in settings_of.items()
    }
    figures = {name: run.read_json("metrics.json") for name, run in runs.items()}
    rows = {name: found["metrics"] for name, found in figures.items()}
    test = images.only("test")
    vectors_ND = Trained.open(runs["with-messages"].path, config.train.device).vectors(test)
    query, hits = _example(test, vectors_ND)
    summary = Summary(
        rows, figures["with-messages"]["protocol"], test.names[query], test.classes[test.labels[query]], hits, out
    )
    report = demo_report(summary, runs, test, vectors_ND)
    write_report(out / "report.html", report)
    save_pictures(out / "pictures", report)
    (out / "metrics.json").write_text(json.dumps(summary.as_dict(), indent=2, ensure_ascii=False), encoding="utf-8")
    return summary


def _make_room(out: Path) -> None:
    """An earlier demo, also one cut short, is replaced; where anything else lies, everything is left alone."""
    if out.exists() and not out.is_dir():
        raise RunError(f"--out {out} is a file; name a folder")
    found = {path.name for path in out.iterdir()} if out.exists() else set()
    foreign = sorted(found - MADE_HERE)
    if foreign:
        raise RunError(f"{out} holds '{foreign[0]}', which no demo made; choose another --out")
    for name in found:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()


def _example(test: ImageSet, vectors_ND: NDArray[np.float32]) -> tuple[int, list[Hit]]:
    """The first image of the middle class, and its five nearest."""
    query = int(np.flatnonzero(test.labels == len(test.classes) // 2)[0])
    found = nearest(vectors_ND[query : query + 1], 6, gallery_GD=vectors_ND)
    pairs = zip(found.indices_Nk[0], found.scores_Nk[0], strict=True)
    return query, [
        Hit(test.names[i], test.classes[test.labels[i]], float(score)) for i, score in pairs if i != query
    ][:5]


def demo_report(summary: Summary, runs: dict[str, Run], test: ImageSet, vectors_ND: NDArray[np.float32]) -> Report:
    protocol = summary.protocol
    return Report(
        title="Characters never seen before",
        summary=summary.findings(),
        rows=[Row(ROWS[name], {key: row[key] for key in SHOWN if key in row}) for name, row in summary.rows.items()],
        protocol={
            "Images": f"{protocol['num_images']} renderings of {protocol['num_classes']} characters of scripts that "
            f"were not trained on",
            "Epoch": f"{protocol['epoch']} of {protocol['epochs']}, {protocol['epoch_chosen']}; the test characters "
            f"chose nothing",
            "Network": f"{protocol['backbone']}, {protocol['embedding_size']} numbers an image, from random weights; "
            f"seed {protocol['seed']}, one run a row",
            "NMI": f"{protocol['nmi_recipe']}, as many clusters as characters",
        },
        grid=retrieval_grid(test, vectors_ND),
        histories={ROWS[name]: curves(run) for name, run in runs.items() if name != "untrained"},
        space=space_map(test, vectors_ND),
        hardest=hardest_classes(test, vectors_ND),
        next_steps=[f"`{step.split('   ')[0]}`: {step.split('   ')[1]}" for step in summary.next_steps()],
    )


def curves(run: Run) -> list[dict[str, float]]:
    """What of a run's history is worth a look."""
    return [{key: epoch[key] for key in CURVES if key in epoch} for epoch in run.history()]


def short_name(glyph_class: str) -> str:
    """For under a picture: "U+04C4 CYRILLIC SMALL LETTER KA WITH HOOK" is "ӄ U+04C4"."""
    code = glyph_class.split()[0]
    return f"{chr(int(code.removeprefix('U+'), 16))} {code}"


def retrieval_grid(test: ImageSet, vectors_ND: NDArray[np.float32], rows: int = 6, columns: int = 8) -> Grid:
    """Queries evenly spaced over the test classes, not chosen for their looks."""
    classes = np.linspace(0, len(test.classes) - 1, rows).astype(int)
    queries = [int(np.flatnonzero(test.labels == label)[0]) for label in classes]
    found = nearest(vectors_ND, columns).indices_Nk[queries]
    names = [short_name(test.classes[label]) for label in test.labels]
    return Grid(
        queries=[test.read(query) for query in queries],
        query_classes=[names[query] for query in queries],
        neighbours=[[test.read(int(i)) for i in row] for row in found],
        neighbour_classes=[[names[i] for i in row] for row in found],
        correct=(test.labels[found] == test.labels[queries][:, None]).tolist(),
        note="Queries are the first images of classes evenly spaced in order; none was chosen for its looks.",
    )


def space_map(test: ImageSet, vectors_ND: NDArray[np.float32]) -> SpaceMap:
    """All images of evenly spaced classes, as many as fit the page."""
    per_class = max(1, len(test) // len(test.classes))
    classes = np.unique(np.linspace(0, len(test.classes) - 1, max(2, MAP_IMAGES // per_class)).astype(int))
    shown = np.flatnonzero(np.isin(test.labels, classes))
    drawn, points_N2 = project_2d(vectors_ND[shown], seed=0)
    part = test.subset(shown[drawn])
    return SpaceMap(
        points_N2=points_N2,
        labels_N=part.labels,
        classes=part.classes,
        thumbnails=[part.read(i) for i in range(len(part))],
        note="Characters of scripts that were not trained on, projected by t-SNE.",
    )


def hardest_classes(test: ImageSet, vectors_ND: NDArray[np.float32], count: int = 8) -> list[tuple[str, float]]:
    from .metrics import retrieval_figures

    found = retrieval_figures(vectors_ND, test.labels, ks=(1,)).hardest(count, "recall@1")
    return [(test.classes[label], figure) for label, figure in found]
