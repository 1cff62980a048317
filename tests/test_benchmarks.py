"""Miniature copies of every official layout, read under miniature counts; every fault by its message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from intrabatch.cli import main
from intrabatch.data.benchmarks import BENCHMARKS, Benchmark, Counts, counts_of
from intrabatch.data.image_set import ImageSet
from intrabatch.errors import DataError
from intrabatch.trained import Trained

MINI = Counts(train_classes=2, train_images=5, test_classes=2, test_images=6)
SIZES = (2, 3, 2, 4)  # images of each class; the first two classes train


def images_at(root: Path, names: Iterable[str]) -> None:
    """Images of different colours, in the format that their names say."""
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (20 * i, 0, 0)).save(root / name)


def listed(root: Path, name: str, rows: Iterable[tuple[object, ...]], header: tuple[str, ...] = ()) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    lines = [*header, *(" ".join(str(word) for word in row) for row in rows)]
    (root / name).write_text("\n".join(lines) + "\n")


def numbered() -> list[tuple[int, int, int]]:
    """Image number, class number and number within the class, all from 1."""
    pairs = [(label, i) for label, size in enumerate(SIZES, start=1) for i in range(1, size + 1)]
    return [(number, label, i) for number, (label, i) in enumerate(pairs, start=1)]


def cub(root: Path, extension: str = "jpg") -> None:
    home = root / "CUB_200_2011"
    paths = [f"{label:03d}.Bird/Bird_{i:04d}.jpg" for _, label, i in numbered()]
    images_at(home / "images", [str(Path(path).with_suffix(f".{extension}")) for path in paths])
    listed(home, "images.txt", [(number, path) for (number, *_), path in zip(numbered(), paths, strict=True)])
    listed(home, "image_class_labels.txt", [(number, label) for number, label, _ in numbered()])
    listed(home, "classes.txt", [(label, f"{label:03d}.Bird of prey") for label in range(1, 5)])


def annotations(path: Path, name_field: str, rows: list[tuple[str, int]]) -> None:
    """A struct array as in the published .mat files: one row, boxes first, the number of the class in a uint8."""
    fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", name_field]
    table = np.zeros((1, len(rows)), dtype=[(field, object) for field in fields])
    for i, (name, label) in enumerate(rows):
        table[0, i] = (1, 1, 3, 3, np.uint8(label), name)
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, {"annotations": table})


def cars_single(root: Path) -> None:
    names = [f"car_ims/{number:06d}.jpg" for number, *_ in numbered()]
    images_at(root, names)
    labels = [label for _, label, _ in numbered()]
    annotations(root / "cars_annos.mat", "relative_im_path", list(zip(names, labels, strict=True)))


def cars_devkit(root: Path) -> None:
    """The later release mixes classes in both folders: every class has images in cars_train and in cars_test."""
    train = [(f"{number:05d}.jpg", label) for number, label, i in numbered() if i == 1]
    test = [(f"{number:05d}.jpg", label) for number, label, i in numbered() if i > 1]
    images_at(root / "cars_train", [name for name, _ in train])
    images_at(root / "cars_test", [name for name, _ in test])
    annotations(root / "devkit" / "cars_train_annos.mat", "fname", train)
    annotations(root / "cars_test_annos_withlabels.mat", "fname", test)


def cars_by_name(root: Path) -> None:
    """Made as they are distributed by class: split by image, which the protocol must undo; capitals as in the names."""
    makers = ("AM General Hummer", "Eagle Talon", "Ferrari FF", "FIAT 500")
    names = [f"{'test' if i == 1 else 'train'}/{makers[label - 1]}/{number}.jpg" for number, label, i in numbered()]
    images_at(root, names)


def cars_by_number(root: Path) -> None:
    classes = (2, 9, 10, 98)
    images_at(root, [f"{classes[label - 1]}/{number}.jpg" for number, label, _ in numbered()])


def sop(root: Path) -> None:
    home = root / "Stanford_Online_Products"
    rows = [(n, label, 1, f"{'bicycle' if label % 2 else 'mug'}_final/11{label}_{i}.JPG") for n, label, i in numbered()]
    header = ("image_id class_id super_class_id path",)
    images_at(home, [str(row[-1]) for row in rows])
    listed(home, "Ebay_train.txt", rows[:5], header)
    listed(home, "Ebay_test.txt", rows[5:], header)


def inshop(root: Path, pictures: str = "img") -> None:
    rows = []
    for _, label, i in numbered():
        status = "train" if label <= 2 else "query" if i == 1 else "gallery"
        rows.append((f"img/WOMEN/Dresses/id_{label:08d}/{i:02d}_front.jpg", f"id_{label:08d}", status))
    images_at(root / "Img", [str(row[0]).replace("img", pictures, 1) for row in rows])
    header = (str(len(rows)), "image_name item_id evaluation_status")
    listed(root, "Eval/list_eval_partition.txt", rows, header)


LAYOUTS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "cub": ("cub", cub),
    "cars196, first release": ("cars196", cars_single),
    "cars196, second release": ("cars196", cars_devkit),
    "cars196, folders by name": ("cars196", cars_by_name),
    "cars196, folders by number": ("cars196", cars_by_number),
    "sop": ("sop", sop),
    "inshop": ("inshop", inshop),
    "inshop-highres": ("inshop-highres", lambda root: inshop(root, "img_highres")),
}


def mini(name: str, **counts: int) -> Benchmark:
    """The benchmark with counts of the miniature, or others."""
    queries = 2 if name.startswith("inshop") else 0
    return replace(BENCHMARKS[name], counts=replace(MINI, queries=queries, **counts))


def message(name: str, root: Path, **counts: int) -> str:
    benchmark = mini(name, **counts)
    with pytest.raises(DataError) as caught:
        benchmark.read(root)
    start, end, text = f"{benchmark.title} in {root}: ", f"; the data set is at {benchmark.home}", str(caught.value)
    assert "\n" not in text and text.startswith(start) and text.endswith(end)
    return text.removeprefix(start).removesuffix(end)


def label_of(images: ImageSet) -> dict[str, str]:
    return {name: images.classes[label] for name, label in zip(images.names, images.labels, strict=True)}


def test_every_layout_has_a_test() -> None:
    assert {name for name, _ in LAYOUTS.values()} == set(BENCHMARKS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_contract(tmp_path: Path, layout: str) -> None:
    """Halves without a class in common, of the expected size, every image readable, and a protocol to print."""
    name, build = LAYOUTS[layout]
    build(tmp_path)
    benchmark = mini(name)
    images = benchmark.read(tmp_path)
    train, test = images.only("train"), images.only("test")
    assert len(train) + len(test) == len(images) == sum(SIZES)
    assert not set(train.classes) & set(test.classes)
    assert sorted(train.class_sizes()) == [2, 3] and sorted(test.class_sizes()) == [2, 4]
    assert counts_of(images) == benchmark.counts
    assert all(images.read(i).shape == (4, 4, 3) for i in range(len(images)))
    lines = benchmark.describe(images).splitlines()
    assert lines[0].startswith(benchmark.title) and "2 classes, 5 images" in lines[1] and ", 6 images" in lines[2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_empty_folder_says_what_is_missing(tmp_path: Path, layout: str) -> None:
    text = message(LAYOUTS[layout][0], tmp_path)
    assert "is missing" in text or text.startswith("neither cars_annos.mat")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_missing_image_and_wrong_counts(tmp_path: Path, layout: str) -> None:
    name, build = LAYOUTS[layout]
    build(tmp_path)
    text = message(name, tmp_path, test_images=7)
    assert text == "6 test images found, 7 published; the copy is incomplete"
    benchmark = mini(name)
    images = benchmark.read(tmp_path)
    lost = images.source.path(images.only("test").names[0])  # type: ignore[attr-defined]
    lost.unlink()
    if "folders" in layout:
        assert message(name, tmp_path) == "5 test images found, 6 published; the copy is incomplete"
    else:
        assert message(name, tmp_path) == f"1 of 11 images are missing, first {lost}"


def test_the_published_counts_add_up() -> None:
    counts = {name: benchmark.counts for name, benchmark in BENCHMARKS.items()}
    assert counts["cub"].train_images + counts["cub"].test_images == 11_788
    assert counts["cars196"].train_images + counts["cars196"].test_images == 16_185
    assert counts["sop"].train_images + counts["sop"].test_images == 120_053
    assert counts["inshop"].train_images + counts["inshop"].test_images == 52_712
    assert counts["inshop"].test_images - counts["inshop"].queries == 12_612


def test_cub_by_its_folder_or_the_one_above_and_in_any_format(tmp_path: Path) -> None:
    cub(tmp_path, extension="webp")
    above, direct = mini("cub").read(tmp_path), mini("cub").read(tmp_path / "CUB_200_2011")
    assert above.names == direct.names and above.names[0] == "images/001.Bird/Bird_0001.webp"
    assert above.classes[0] == "001.Bird of prey"


def test_cub_lists_that_do_not_fit_together(tmp_path: Path) -> None:
    cub(tmp_path)
    labels = tmp_path / "CUB_200_2011" / "image_class_labels.txt"
    whole = labels.read_text()
    labels.write_text(whole.replace("3 2\n", ""))
    assert message("cub", tmp_path) == "image_class_labels.txt or classes.txt has no line for the number '3'"
    labels.write_text(whole.replace("3 2\n", "3\n"))
    assert message("cub", tmp_path) == "image_class_labels.txt line 3 has 1 columns, expected 2: '3'"
    labels.write_text(whole.replace("3 2\n", "3 two\n"))
    assert "has no line for the number 'two'" in message("cub", tmp_path)
    labels.write_bytes(b"\xff\xfe")
    assert message("cub", tmp_path).startswith("image_class_labels.txt cannot be read ('utf-8' codec")
    labels.unlink()
    assert message("cub", tmp_path) == "image_class_labels.txt is missing"
    (tmp_path / "CUB_200_2011" / "images.txt").unlink()
    assert message("cub", tmp_path) == "CUB_200_2011/images.txt is missing (and so is images.txt)"


def test_cars_by_class_folder_give_the_same_halves_as_the_numbers(tmp_path: Path) -> None:
    """Ferrari sorts before FIAT or after it by the rule of sorting; both are in the second half."""
    cars_by_name(tmp_path)
    images = mini("cars196").read(tmp_path)
    assert set(images.only("train").classes) == {"AM General Hummer", "Eagle Talon"}
    assert set(images.only("test").classes) == {"Ferrari FF", "FIAT 500"}


def test_cars_folders_by_number_are_ordered_by_number(tmp_path: Path) -> None:
    cars_by_number(tmp_path)
    assert set(mini("cars196").read(tmp_path).only("train").classes) == {"2", "9"}


def test_cars_annotations_that_are_missing_or_damaged(tmp_path: Path) -> None:
    cars_devkit(tmp_path / "2")
    labels = tmp_path / "2" / "cars_test_annos_withlabels.mat"
    labels.unlink()
    assert message("cars196", tmp_path / "2") == f"{labels.name} is missing (and so is devkit/{labels.name})"
    cars_single(tmp_path / "1")
    annos = tmp_path / "1" / "cars_annos.mat"
    annos.write_bytes(annos.read_bytes()[:300])
    assert message("cars196", tmp_path / "1").startswith("cars_annos.mat has no annotations with relative_im_path and")
    annos.unlink()
    assert message("cars196", tmp_path / "1") == "cars_annos.mat is missing (and so is devkit/cars_annos.mat)"
    images_at(tmp_path / "loose", ["1.jpg"])
    assert message("cars196", tmp_path / "loose") == (
        "neither cars_annos.mat with car_ims/, nor cars_train/ and cars_test/, nor a folder per class"
    )


def test_halves_that_share_a_class(tmp_path: Path) -> None:
    sop(tmp_path)
    test = tmp_path / "Stanford_Online_Products" / "Ebay_test.txt"
    test.write_text(test.read_text().replace("6 3 1", "6 2 1"))
    assert message("sop", tmp_path) == "classes in both halves: 1, '00002' first; they must share none"


def test_inshop_keeps_queries_and_gallery_apart(tmp_path: Path) -> None:
    inshop(tmp_path)
    images = mini("inshop").read(tmp_path)
    assert images.roles is not None and images.splits is not None
    roles = dict(zip(images.names, images.roles.tolist(), strict=True))
    assert roles["img/WOMEN/Dresses/id_00000001/01_front.jpg"] == "both"
    assert roles["img/WOMEN/Dresses/id_00000003/01_front.jpg"] == "query"
    assert roles["img/WOMEN/Dresses/id_00000003/02_front.jpg"] == "gallery"
    assert label_of(images)["img/WOMEN/Dresses/id_00000003/02_front.jpg"] == "id_00000003"
    assert "2 queries look among 4 gallery images" in mini("inshop").describe(images)


def test_inshop_in_high_resolution_only_when_asked(tmp_path: Path) -> None:
    inshop(tmp_path, "img_highres")
    assert message("inshop", tmp_path) == (
        "img is missing (and so is Img/img); img_highres/ is there, but the published figures are of img/: "
        "unpack img.zip, or ask for 'inshop-highres'"
    )
    assert mini("inshop-highres").read(tmp_path).names[0].startswith("img_highres/WOMEN/")


def test_inshop_with_another_status(tmp_path: Path) -> None:
    inshop(tmp_path)
    listing = tmp_path / "Eval" / "list_eval_partition.txt"
    listing.write_text(listing.read_text().replace("gallery", "val"))
    assert message("inshop", tmp_path).startswith("list_eval_partition.txt has the status 'val' for img/WOMEN/")


# From the layout to figures


TINY = [
    "--set", "model.backbone=resnet10t", "--set", "model.weights=none", "--set", "image.crop=8", "--set",
    "image.resize=8", "--set", "messages.heads=2", "--set", "model.dim=4", "--set", "batch.classes=2", "--set",
    "batch.images=2", "--set",
    "batch.redraw=false", "--set", "train.epochs=1", "--set", "data.val_fraction=0", "--set",
    "evaluation.recall_at=[1,2]", "--device", "cpu", "--quiet",
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_from_the_layout_to_figures(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`data` prints the protocol, and the recipe of that name trains and measures on the official halves."""
    name, build = LAYOUTS[layout]
    build(tmp_path / "data")
    monkeypatch.setitem(BENCHMARKS, name, mini(name))
    assert main(["data", name, "--root", str(tmp_path / "data")]) == 0
    assert "the counts are the published ones" in capsys.readouterr().out
    source = ["--set", f"data.source={name}"]
    recipe = name.removesuffix("-highres")
    run = str(tmp_path / "run")
    assert main(["train", str(tmp_path / "data"), "--recipe", recipe, "--out", run, *source, *TINY]) == 0
    protocol = json.loads((tmp_path / "run" / "metrics.json").read_text())["protocol"]
    assert (protocol["num_classes"], protocol["num_images"], protocol["classes_seen_in_training"]) == (2, 6, 0)
    assert protocol["num_queries"] == (2 if recipe == "inshop" else 6)


def test_inshop_figures_are_of_queries_among_the_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inshop(tmp_path / "data")
    monkeypatch.setitem(BENCHMARKS, "inshop", mini("inshop"))
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "data"), "--recipe", "inshop", "--out", str(run), *TINY]) == 0
    trained = Trained.open(run, "cpu")
    test = trained.own_images().only("test")
    assert test.roles is not None
    vectors, queries = trained.vectors(test), np.flatnonzero(test.roles == "query")
    gallery = [int(i) for i in np.flatnonzero(test.roles == "gallery")]
    hits = []
    for query in queries:
        nearest = max(gallery, key=lambda i: float(vectors[query] @ vectors[i]))
        hits.append(test.labels[nearest] == test.labels[query])
    found = trained.run.read_json("metrics.json")
    assert found["metrics"]["recall@1"] == pytest.approx(float(np.mean(hits)))
    capsys.readouterr()
    size = ["--set", "evaluation.refine_size=3"]
    assert main(["evaluate", str(run), "--refine", "k-reciprocal", "--json", *size]) == 0
    refined = json.loads(capsys.readouterr().out)["protocol"]
    assert refined["num_queries"] == 2 and refined["refinement"] == "k-reciprocal"
    size = ["--set", "evaluation.refine_size=5"]
    assert main(["evaluate", str(run), "--refine", "nearest", *size]) == 2
    assert "size is 5; expected 2 to 4, an image and all that could be its mates" in capsys.readouterr().err
