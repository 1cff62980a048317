"""The four benchmarks of the field, read from their official layouts and checked against the published protocol.

    cub       CUB_200_2011/{images.txt, image_class_labels.txt, classes.txt, images/}
    cars196   cars_annos.mat with car_ims/; or the later release, cars_train_annos.mat and
              cars_test_annos_withlabels.mat (both may lie in devkit/) with cars_train/ and cars_test/;
              or a folder per class
    sop       Stanford_Online_Products/{Ebay_train.txt, Ebay_test.txt, *_final/}
    inshop    list_eval_partition.txt (or in Eval/) with img/ (or Img/img/)

Every reader gives each image its class and its half (train or test); what follows is the same for all: each file
exists, the halves share no class, and the counts are the published ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ..errors import DataError
from .files import FileSource
from .folders import list_files
from .image_set import ImageSet
from .labelled import labelled_images


@dataclass(frozen=True)
class Counts:
    """The size of a benchmark's halves."""

    train_classes: int
    train_images: int
    test_classes: int
    test_images: int
    queries: int = 0
    """Test images that are looked up among the rest; 0 where each test image is looked up among all others."""


@dataclass(frozen=True)
class Row:
    """An image as a benchmark lists it."""

    name: str
    label: str
    split: str
    role: str = "both"


Rows = Callable[[Path, Counts], tuple[Path, list[Row]]]
"""From the user's folder and the official counts: the folder that names are relative to, and a row for each image."""


@dataclass(frozen=True)
class Benchmark:
    """A data set with the protocol under which its figures are published."""

    title: str
    home: str
    """Where to get it."""
    counts: Counts
    recall_at: tuple[int, ...]
    rows: Rows

    def read(self, root: str | Path) -> ImageSet:
        """The images with their halves as splits, verified against the protocol."""
        root = Path(root)
        try:
            folder, rows = self.rows(root, self.counts)
            names = _existing(folder, [row.name for row in rows])
            images = labelled_images(
                names,
                [row.label for row in rows],
                FileSource(folder),
                [row.split for row in rows],
                [row.role for row in rows],
            )
            _require_protocol(images, self.counts)
        except DataError as error:
            raise DataError(f"{self.title} in {root}: {error}; the data set is at {self.home}") from error
        return images

    def describe(self, images: ImageSet) -> str:
        """The protocol of these images in plain lines."""
        counts = counts_of(images)
        asked = "each image looks among all others"
        if counts.queries:
            asked = f"{counts.queries:,} queries look among {counts.test_images - counts.queries:,} gallery images"
        return "\n".join(
            (
                f"{self.title}: every file is there, and the counts are the published ones",
                f"  train   {counts.train_classes:,} classes, {counts.train_images:,} images",
                f"  test    {counts.test_classes:,} other classes, {counts.test_images:,} images; {asked}",
                f"  recall  at {', '.join(str(k) for k in self.recall_at)}",
            )
        )


def counts_of(images: ImageSet) -> Counts:
    """The size of both halves as they were found."""
    train, test = images.only("train"), images.only("test")
    queries = 0 if test.roles is None else int((test.roles == "query").sum())
    return Counts(len(train.classes), len(train), len(test.classes), len(test), queries)


def _require_protocol(images: ImageSet, expected: Counts) -> None:
    """Disjoint halves of the published size, or an error with the first difference."""
    found = counts_of(images)
    if found.train_classes + found.test_classes > len(images.classes):
        shared = set(images.only("train").classes) & set(images.only("test").classes)
        raise DataError(f"classes in both halves: {len(shared)}, '{min(shared)}' first; they must share none")
    for what, number in asdict(expected).items():
        if (there := asdict(found)[what]) != number:
            raise DataError(f"{there:,} {what.replace('_', ' ')} found, {number:,} published; the copy is incomplete")


def _existing(folder: Path, names: list[str]) -> list[str]:
    """Each name as the file that is there: the listed one, or the same picture in another format (.webp for .jpg)."""
    if all(os.path.isfile(folder / name) for name in names):
        return names
    by_stem = {_stem(name): name for name in list_files(folder).images}
    missing = [name for name in names if _stem(name) not in by_stem]
    if missing:
        raise DataError(f"{len(missing):,} of {len(names):,} images are missing, first {folder / missing[0]}")
    return [by_stem[_stem(name)] for name in names]


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _first(root: Path, *places: str) -> Path:
    """The first of these places that exists below `root`; they differ by how an archive was unpacked."""
    for place in places:
        if (root / place).exists():
            return root / place
    raise DataError(f"{places[0]} is missing" + (f" (and so is {', '.join(places[1:])})" if places[1:] else ""))


def _table(path: Path, num_columns: int, header_lines: int = 0) -> list[list[str]]:
    """The words of each line of a list; the last column may hold spaces."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} cannot be read ({error})") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        words = line.split(maxsplit=num_columns - 1)
        if number <= header_lines or not words:
            continue
        if len(words) != num_columns:
            raise DataError(f"{path.name} line {number} has {len(words)} columns, expected {num_columns}: '{line}'")
        rows.append([word.strip() for word in words])
    return rows


def _half(class_number: int, counts: Counts) -> str:
    """CUB and Cars train on the first half of the classes, in the official order, and test on the last."""
    return "train" if class_number <= counts.train_classes else "test"


def _cub(root: Path, counts: Counts) -> tuple[Path, list[Row]]:
    listing = _first(root, "CUB_200_2011/images.txt", "images.txt")
    folder = listing.parent
    class_of = dict(_table(_first(folder, "image_class_labels.txt"), 2))
    names = dict(_table(_first(folder, "classes.txt"), 2))
    try:
        rows = [(path, class_of[image]) for image, path in _table(listing, 2)]
        return folder, [Row(f"images/{path}", names[label], _half(int(label), counts)) for path, label in rows]
    except KeyError as error:
        raise DataError(f"image_class_labels.txt or classes.txt has no line for the number {error}") from error


def _cars(root: Path, counts: Counts) -> tuple[Path, list[Row]]:
    """Whichever of the two releases the image folders belong to, or a folder per class."""
    if (root / "car_ims").is_dir():
        numbered = _annotations(_first(root, "cars_annos.mat", "devkit/cars_annos.mat"), "relative_im_path")
    elif (root / "cars_train").is_dir():
        train = _annotations(_first(root, "cars_train_annos.mat", "devkit/cars_train_annos.mat"), "fname")
        labels = "cars_test_annos_withlabels.mat"  # cars_test_annos.mat, of the devkit, has none
        test = _annotations(_first(root, labels, f"devkit/{labels}"), "fname")
        numbered = [(f"cars_train/{name}", number) for name, number in train]
        numbered += [(f"cars_test/{name}", number) for name, number in test]
    else:
        return root, _cars_by_folder(root, counts)
    return root, [Row(name, f"{number:03d}", _half(number, counts)) for name, number in numbered]


def _annotations(path: Path, name_field: str) -> list[tuple[str, int]]:
    """The name and class number of each image of a .mat file."""
    from scipy.io import loadmat  # slow to import, and only this data set needs it

    try:
        rows = np.atleast_1d(loadmat(path, squeeze_me=True)["annotations"])
        return [(str(row[name_field]), int(row["class"])) for row in rows]
    except Exception as error:  # a damaged .mat file raises anything
        detail = " ".join(str(error).split())
        raise DataError(f"{path.name} has no annotations with {name_field} and class ({detail})") from error


def _cars_by_folder(root: Path, counts: Counts) -> list[Row]:
    """Classes from the folders that images lie in, ordered by number if they have one, otherwise by name.

    Official class numbers sort by the maker's name, and no maker has classes in both halves: names give the halves too.
    """
    names = list_files(root).images if root.is_dir() else ()
    labels = [os.path.basename(os.path.dirname(name)) for name in names]
    if not names or "" in labels:
        raise DataError("neither cars_annos.mat with car_ims/, nor cars_train/ and cars_test/, nor a folder per class")
    order = sorted(set(labels), key=lambda label: (_leading_number(label), label.casefold()))
    number = {label: i for i, label in enumerate(order, start=1)}
    return [Row(name, label, _half(number[label], counts)) for name, label in zip(names, labels, strict=True)]


def _leading_number(label: str) -> int:
    digits = re.match(r"\d+", label)
    return int(digits[0]) if digits else 0


def _sop(root: Path, counts: Counts) -> tuple[Path, list[Row]]:
    halves = {
        split: _first(root, f"Stanford_Online_Products/Ebay_{split}.txt", f"Ebay_{split}.txt")
        for split in ("train", "test")
    }
    rows = [
        Row(name, number.zfill(5), split)
        for split, listing in halves.items()
        for _, number, _, name in _table(listing, 4, header_lines=1)
    ]
    return halves["train"].parent, rows


def _inshop(root: Path, counts: Counts, pictures: str) -> tuple[Path, list[Row]]:
    listing = _first(root, "list_eval_partition.txt", "Eval/list_eval_partition.txt")
    try:
        folder = _first(root, pictures, f"Img/{pictures}").parent
    except DataError as error:
        if (root / "img_highres").is_dir() or (root / "Img/img_highres").is_dir():
            raise DataError(
                f"{error}; img_highres/ is there, but the published figures are of img/: unpack img.zip, "
                f"or ask for 'inshop-highres'"
            ) from error
        raise
    rows = []
    for name, item, status in _table(listing, 3, header_lines=2):
        if status not in ("train", "query", "gallery"):
            raise DataError(f"{listing.name} has the status '{status}' for {name}; expected train, query or gallery")
        split, role = ("train", "both") if status == "train" else ("test", status)
        rows.append(Row(f"{pictures}/{name.partition('/')[2]}", item, split, role))
    return folder, rows


_INSHOP = Benchmark(
    title="In-Shop Clothes",
    home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    counts=Counts(3_997, 25_882, 3_985, 26_830, queries=14_218),
    recall_at=(1, 10, 20, 30, 40),
    rows=partial(_inshop, pictures="img"),
)

BENCHMARKS = {
    "cub": Benchmark(
        title="CUB-200-2011",
        home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        counts=Counts(100, 5_864, 100, 5_924),
        recall_at=(1, 2, 4, 8),
        rows=_cub,
    ),
    "cars196": Benchmark(
        title="Cars196",
        home="https://github.com/pytorch/vision/issues/7545 (copies; its own page is gone)",
        counts=Counts(98, 8_054, 98, 8_131),
        recall_at=(1, 2, 4, 8),
        rows=_cars,
    ),
    "sop": Benchmark(
        title="Stanford Online Products",
        home="https://cvgl.stanford.edu/projects/lifted_struct/",
        counts=Counts(11_318, 59_551, 11_316, 60_502),
        recall_at=(1, 10, 100, 1000),
        rows=_sop,
    ),
    "inshop": _INSHOP,
    "inshop-highres": Benchmark(
        title="In-Shop Clothes, high resolution (not the published protocol)",
        home=_INSHOP.home,
        counts=_INSHOP.counts,
        recall_at=_INSHOP.recall_at,
        rows=partial(_inshop, pictures="img_highres"),
    ),
}
