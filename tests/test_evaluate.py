"""What stands beside the figures, and figures of vectors made elsewhere, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import tiny_config, tiny_images
from slow_reference import vectors_of
from test_cli import mistake, said

from intrabatch._version import VERSION
from intrabatch.config import EvalConfig
from intrabatch.evaluate import describe_list, measure_vectors
from intrabatch.train import train
from intrabatch.workflow import figure_lines

LABELS = np.arange(60) % 12
VECTORS = vectors_of("clustered", LABELS)
ROLES = np.where(np.arange(60) < 12, "query", "gallery")
NAMES = [f"{label:02d}" for label in LABELS]


def write(path: Path, vectors: np.ndarray, labels: list[str], roles: np.ndarray | None = None) -> list[Path]:
    """The vectors as a file of the path's kind; a .npy has its labels in a second file."""
    table = {"label": labels} | ({"role": roles.tolist()} if roles is not None else {})
    if path.suffix == ".npz":
        np.savez(path, vector=vectors, **{name: np.array(column) for name, column in table.items()})
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(table | {"vector": vectors.tolist()}), path)
    else:
        np.save(path, vectors)
        lines = [",".join(table), *(",".join(row) for row in zip(*table.values(), strict=True))]
        path.with_suffix(".csv").write_text("\n".join(lines) + "\n")
        return [path, path.with_suffix(".csv")]
    return [path]


def evaluated(capsys, *words) -> dict:
    code, out, err = said(capsys, "evaluate", *words, "--json", "--device", "cpu")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("roles", [None, ROLES], ids=["all among all", "queries and gallery"])
@pytest.mark.parametrize("kind", [".npz", ".parquet", ".npy"])
def test_vectors_made_elsewhere(tmp_path, capsys, kind, roles):
    found = evaluated(capsys, "--embeddings", *write(tmp_path / f"v{kind}", VECTORS, NAMES, roles))
    expected = measure_vectors(VECTORS, LABELS, roles, EvalConfig(), classes=[f"{n:02d}" for n in range(12)])
    assert found["metrics"] == pytest.approx(expected["metrics"])
    assert found["intervals"].keys() == {"recall@1", "map@r"}
    assert found["hardest"] == pytest.approx(expected["hardest"])
    protocol = found["protocol"]
    assert protocol["num_queries"] == (60 if roles is None else 12)
    assert (protocol["num_images"], protocol["num_classes"], protocol["split"]) == (60, 12, "all")
    assert protocol["embedding_size"] == 8 and protocol["versions"].keys() >= {"intrabatch", "torch", "numpy"}
    assert len(protocol["test_list_sha256"]) == 64


def test_a_run_says_what_its_figures_mean(tmp_path):
    images = tiny_images()
    found = train(tiny_config("train.seed=3"), images, tmp_path / "run").read_json("metrics.json")
    test = images.only("test")
    said_before = found["protocol"] | {"versions": sorted(found["protocol"]["versions"])}
    assert said_before == {
        "split": "test",
        "protocol": "final",
        "epoch": 2,
        "epochs": 2,
        "epoch_chosen": "the last",
        "seed": 3,
        "split_seed": 0,
        "image_size": 16,
        "embedding_size": 16,
        "backbone": "resnet10t",
        "recipe": "glyphs",
        "refinement": "none",
        "classes_seen_in_training": 0,
        "nmi_recipe": "k-means, k = 3, greedy k-means++ seeds, best of 1; unit vectors; seeds 0, 1, 2; "
        "NMI by the arithmetic mean",
        "interval": "95 % bootstrap over classes",
        "num_queries": 12,
        "num_queries_without_match": 0,
        "versions": ["intrabatch", "numpy", "python", "torch"],
    } | describe_list(test.names, [test.classes[label] for label in test.labels], None)
    shown = "\n".join(figure_lines(found))
    assert f"versions: intrabatch {VERSION}, python 3." in shown and "epoch chosen: the last" in shown


def test_labels_of_a_csv_are_texts(tmp_path, capsys):
    """'01' and '1' are two classes, and a class may be called NA."""
    labels = [{0: "1", 1: "01", 2: "NA", 3: "1.0", 4: "true"}.get(label, str(label)) for label in LABELS]
    found = evaluated(capsys, "--embeddings", *write(tmp_path / "v.npy", VECTORS, labels))
    assert found["protocol"]["num_classes"] == 12 and {"01", "1", "NA"} & found["hardest"].keys()


def test_the_recipe_of_nmi_is_an_option_and_is_stamped(tmp_path, capsys):
    file = write(tmp_path / "v.npz", VECTORS, NAMES)
    greedy = evaluated(capsys, "--embeddings", *file)
    random = evaluated(capsys, "--embeddings", *file, "--nmi-recipe", "random", "--set", "evaluation.nmi_seeds=5")
    assert "greedy k-means++ seeds" in greedy["protocol"]["nmi_recipe"]
    assert "random images as seeds" in random["protocol"]["nmi_recipe"]
    assert "seeds 0, 1, 2, 3, 4; NMI by the arithmetic mean" in random["protocol"]["nmi_recipe"]
    best = evaluated(capsys, "--embeddings", *file, "--nmi-recipe", "random", "--set", "evaluation.nmi_restarts=4")
    assert "best of 1" in random["protocol"]["nmi_recipe"] and "best of 4" in best["protocol"]["nmi_recipe"]
    assert greedy["metrics"]["nmi"] != random["metrics"]["nmi"]
    assert greedy["metrics"].keys() >= {"nmi", "nmi-spread", "ami", "ari"}
    text = said(capsys, "evaluate", "--embeddings", *file, "--nmi-recipe", "random", "--device", "cpu")[1]
    assert "nmi-spread" in text and "random images as seeds" in text
    assert "did you mean 'greedy'?" in mistake(capsys, "evaluate", "--embeddings", *file, "--nmi-recipe", "gredy")


def spoiled(value: float) -> np.ndarray:
    vectors = VECTORS.copy()
    vectors[7] = value
    return vectors


@pytest.mark.parametrize(
    ("vectors", "labels", "roles", "message"),
    [
        (spoiled(np.nan), NAMES, None, "1 of 60 hold NaN or infinite numbers, the first in row 7"),
        (spoiled(np.inf), NAMES, None, "1 of 60 hold NaN or infinite numbers, the first in row 7"),
        (spoiled(0), NAMES, None, "1 of 60 are zero, the first in row 7"),
        (VECTORS, NAMES[:59], None, "60 vectors but 59 labels"),
        (VECTORS, [str(i) for i in range(60)], None, "none of 60 queries has another image of its class"),
        (VECTORS, NAMES, np.full(60, "querry"), "unknown role 'querry'; did you mean 'query'?"),
        (VECTORS, NAMES, np.full(60, "query"), "60 queries and 0 gallery images; at least one of each"),
        (VECTORS, NAMES, ROLES[:59], "roles"),
    ],
)
def test_each_mistake_is_one_line(tmp_path, capsys, vectors, labels, roles, message):
    file = write(tmp_path / "v.npz", vectors, labels, roles)
    assert message in mistake(capsys, "evaluate", "--embeddings", *file, "--device", "cpu")


def test_a_k_beyond_the_gallery_is_left_out_and_said():
    found = measure_vectors(VECTORS, LABELS, None, EvalConfig(recall_at=(1, 59, 60, 1000)))
    assert {name for name in found["metrics"] if "recall" in name} == {"recall@1", "recall@59"}
    assert found["protocol"]["recall_left_out"] == "at 60, 1000: more than there are gallery images"
    assert "recall_left_out" not in measure_vectors(VECTORS, LABELS, None, EvalConfig())["protocol"]


def test_a_query_that_is_in_the_gallery_does_not_find_itself_there():
    both = np.full(60, "both")
    ks = EvalConfig(recall_at=(1, 59, 60))
    with_roles, without = (measure_vectors(VECTORS, LABELS, roles, ks)["metrics"] for roles in (both, None))
    assert with_roles == without and "recall@60" not in with_roles
    mixed = np.where(np.arange(60) < 12, "query", "both")
    assert "recall@48" in measure_vectors(VECTORS, LABELS, mixed, EvalConfig(recall_at=(1, 48)))["metrics"]


def test_one_image_classes_are_counted_and_left_out():
    labels = np.append(LABELS[:-2], [100, 101])
    protocol = measure_vectors(VECTORS, labels, None, EvalConfig())["protocol"]
    assert (protocol["num_queries"], protocol["num_queries_without_match"]) == (58, 2)


def test_one_class_with_two_images_has_figures_but_no_interval():
    found = measure_vectors(VECTORS[:4], np.array([0, 0, 0, 1]), None, EvalConfig(), classes=["a", "b"])
    assert found["intervals"] == {} and found["hardest"].keys() == {"a"} and 0 <= found["metrics"]["map@r"] <= 1


def test_the_hash_tells_lists_apart():
    names, labels = ["a", "b", "c"], ["x", "x", "y"]
    hashes = [
        describe_list(*one)["test_list_sha256"]
        for one in [
            (names, labels, None),
            (names[::-1], labels, None),
            (names, labels[::-1], None),
            (names, labels, ["query", "both", "both"]),
            (names, labels, ["both", "both", "both"]),
        ]
    ]
    assert len(set(hashes)) == 5
    assert describe_list(names, labels, None) == {
        "num_images": 3, "num_classes": 2, "test_list_sha256": hashes[0],
    }  # fmt: skip
