"""A look at all images before anything is trained on them: what is broken, what is there twice, how large classes are.

Reads every file once; changes none. Also the questions that training asks of an image set before it starts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from ..errors import BrokenImages, DataError
from .files import FileSource
from .image_set import ImageSet, Source

NameGroups = tuple[tuple[str, ...], ...]
SHOWN = 5
"""How many names a line of the report gives before it counts the rest."""


@dataclass(frozen=True)
class CheckReport:
    """What was found in an image set."""

    num_images: int
    num_classes: int
    num_images_by_split: dict[str, int]
    """Empty when the set came without a split."""
    class_size_min: int
    class_size_median: float
    class_size_max: int
    single_image_classes: tuple[str, ...]
    shared_classes: tuple[str, ...]
    """Classes with images both in train and in another split: their evaluation is not on unseen classes."""
    broken: tuple[tuple[str, str], ...]
    """The name and the reason of each file that cannot be decoded."""
    duplicates_across: NameGroups
    """Names with the same bytes in more than one class: at least one label is wrong."""
    duplicates_within: NameGroups
    """Names with the same bytes in one class."""
    ignored: tuple[str, ...]
    """Files beside the images that are hidden or no images."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The report for people, only what there is to say."""
        splits = ", ".join(f"{split} {number:,}" for split, number in self.num_images_by_split.items())
        sizes = f"{self.class_size_min} to {self.class_size_max}, median {self.class_size_median:g}"
        findings = (
            ("classes with one image, for the gallery and not for training", self.single_image_classes),
            ("classes both in train and in another split, so not unseen when evaluated", self.shared_classes),
            ("files that cannot be read", [f"{name}: {reason}" for name, reason in self.broken]),
            ("identical files in different classes", [" = ".join(same) for same in self.duplicates_across]),
            ("identical files in one class", [" = ".join(same) for same in self.duplicates_within]),
            ("other files, ignored", self.ignored),
        )
        return [
            f"{self.num_images:,} images in {self.num_classes:,} classes" + (f" ({splits})" if splits else ""),
            f"images per class: {sizes}",
            *(f"{what}: {len(found):,} ({_sample(found)})" for what, found in findings if found),
        ]


def check(images: ImageSet) -> CheckReport:
    """Read and decode every image, and report."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        read = list(pool.map(partial(_reason_and_digest, images.source), images.names))
    broken = tuple((name, reason) for name, (reason, _) in zip(images.names, read, strict=True) if reason)
    across, within = _duplicates(images, [digest for _, digest in read])
    sizes = images.class_sizes()
    splits = [] if images.splits is None else images.splits.tolist()
    return CheckReport(
        num_images=len(images),
        num_classes=len(images.classes),
        num_images_by_split={split: splits.count(split) for split in dict.fromkeys(splits)},
        class_size_min=int(sizes.min()),
        class_size_median=float(np.median(sizes)),
        class_size_max=int(sizes.max()),
        single_image_classes=tuple(images.classes[c] for c in np.flatnonzero(sizes == 1)),
        shared_classes=_shared_classes(images),
        broken=broken,
        duplicates_across=across,
        duplicates_within=within,
        ignored=images.source.ignored if isinstance(images.source, FileSource) else (),
    )


def drop_broken(images: ImageSet, report: CheckReport) -> ImageSet:
    """The images without those that the report found broken."""
    broken = {name for name, _ in report.broken}
    kept = [i for i, name in enumerate(images.names) if name not in broken]
    if not kept:
        name, reason = report.broken[0]
        raise DataError(f"none of the {len(images)} images can be read; {name}: {reason}")
    return images.subset(kept)


def require_unbroken(report: CheckReport) -> None:
    """Stop where the report found broken files."""
    if report.broken:
        raise BrokenImages(
            f"{len(report.broken)} of {report.num_images} images cannot be read ({broken_sample(report)}); "
            f"mend or remove them, or leave them out with --skip-broken",
            list(report.broken),
        )


def broken_sample(report: CheckReport) -> str:
    """The first few broken files with their reasons, and how many more there are."""
    return _sample(f"{name}: {reason}" for name, reason in report.broken)


def require_trainable(images: ImageSet) -> None:
    """Stop where there is nothing to learn from: fewer than two classes with two images each."""
    usable = int((images.class_sizes() >= 2).sum())
    if usable < 2:
        raise DataError(
            f"{_place(images)}training compares images within and between classes and needs 2 classes with two images "
            f"each; found {usable} such, of {len(images.classes)} ({_sample(images.classes)}); "
            f"add images of more classes"
        )


def _place(images: ImageSet) -> str:
    """Where images lie that are files, to begin a message."""
    return f"images in {images.source.root}: " if isinstance(images.source, FileSource) else ""


def _reason_and_digest(source: Source, name: str) -> tuple[str | None, bytes | None]:
    """Why an image cannot be read, or else a digest that only identical images share."""
    try:
        pixels = source.read(name, smallest_side=1)  # damage shows at any scale, and a small one is quicker
    except BrokenImages as error:
        return error.broken[0][1], None
    if not isinstance(source, FileSource):
        return None, hashlib.blake2b(repr(pixels.shape).encode() + pixels.tobytes()).digest()
    with source.path(name).open("rb") as file:
        return None, hashlib.file_digest(file, "blake2b").digest()


def _duplicates(images: ImageSet, digests: list[bytes | None]) -> tuple[NameGroups, NameGroups]:
    """Groups of identical images: those of more than one class, and those within one."""
    groups: dict[bytes, list[int]] = {}
    for i, digest in enumerate(digests):
        if digest is not None:
            groups.setdefault(digest, []).append(i)
    across: list[tuple[str, ...]] = []
    within: list[tuple[str, ...]] = []
    for group in groups.values():
        if len(group) > 1:
            same_class = len(set(images.labels[group])) == 1
            (within if same_class else across).append(tuple(images.names[i] for i in group))
    return tuple(across), tuple(within)


def _shared_classes(images: ImageSet) -> tuple[str, ...]:
    if images.splits is None:
        return ()
    train = images.splits == "train"
    shared = set(images.labels[train]) & set(images.labels[~train])
    return tuple(images.classes[c] for c in sorted(shared))


def _sample(found: Iterable[str]) -> str:
    """'a; b; and 3 more'."""
    items = list(found)
    more = [f"and {len(items) - SHOWN:,} more"] if len(items) > SHOWN else []
    return "; ".join(items[:SHOWN] + more)
