"""Folders of images: what lies in them, and which class, split and role each image has by its place.

    FOLDER/<class>/...                       a folder per class; images lie anywhere below it
    FOLDER/{train,val,test}/<class>/...      the same, split (`valid` and `validation` mean `val`)
    .../{query,gallery}/<class>/...          the same, where queries are to be looked up in a gallery

Knows where images lie, not how they are decoded: see `files`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from .files import EXTENSIONS, FileSource
from .image_set import ImageSet
from .labelled import SPLIT_OF_WORD, labelled_images

ROLE_FOLDERS = {"query", "gallery"}


@dataclass(frozen=True)
class Listing:
    """The files below a folder, as paths relative to it with forward slashes, sorted."""

    images: tuple[str, ...]
    ignored: tuple[str, ...]
    """Hidden files, and files that are no images by their extension."""


@dataclass(frozen=True)
class _Placed:
    """An image and what the folders around it say; `below` is the part of its path that is not yet explained."""

    name: str
    below: tuple[str, ...]
    split: str | None = None
    role: str = "both"


def read_folder(root: str | Path) -> ImageSet:
    """The image set of a folder per class, with splits and roles where folders are named for them."""
    root = Path(root)
    listing = _images_below(root)
    images = [_Placed(name, tuple(name.split("/"))) for name in listing.images]
    images = [image for group in _by_split(images, root) for image in _with_roles(group)]
    for image in images:
        if len(image.below) < 2:
            raise DataError(
                f"{root}: '{image.name}' lies in no class folder; expected a folder per class, CLASS/{image.below[-1]}"
            )
    return labelled_images(
        names=[image.name for image in images],
        labels=[image.below[0] for image in images],
        source=FileSource(root, listing.ignored),
        splits=None if images[0].split is None else [image.split or "" for image in images],
        roles=[image.role for image in images],
    )


def read_unlabelled(path: str | Path) -> ImageSet:
    """One image file, or all images anywhere below a folder, as a single class called 'unlabelled'."""
    path = Path(path)
    if path.is_file():
        return labelled_images([path.name], ["unlabelled"], FileSource(path.parent))
    listing = _images_below(path)
    return labelled_images(listing.images, ["unlabelled"] * len(listing.images), FileSource(path, listing.ignored))


def list_files(root: str | Path) -> Listing:
    """All files below a folder. Linked folders are followed after the real ones, and none is visited twice."""
    root = os.path.join(root, "")
    images: list[str] = []
    ignored: list[str] = []
    visited: set[str] = set()
    folders, links = deque([root]), deque[str]()
    while folders or links:
        folder = folders.popleft() if folders else links.popleft()
        if (real := os.path.realpath(folder)) in visited:
            continue
        visited.add(real)
        for entry in _visible(folder):
            if _is_folder(entry):
                (links if entry.is_symlink() else folders).append(entry.path)
            elif _is_file(entry):
                (images if _is_image(entry.name) else ignored).append(_name(entry.path[len(root) :], root))
    return Listing(tuple(sorted(images)), tuple(sorted(ignored)))


def _is_image(name: str) -> bool:
    """Whether a file is one of ours by its name alone."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS


def has_loose_images(folder: str | Path) -> bool:
    """Whether images lie directly in a folder, outside of any class folder."""
    return any(_is_image(entry.name) and _is_file(entry) for entry in _visible(str(folder)))


def _images_below(root: Path) -> Listing:
    """The listing of a folder that must hold at least one image."""
    if not root.is_dir():
        found = "a file" if root.exists() else "nothing there"
        raise DataError(f"{root}: {found}, expected a folder with a folder of images per class")
    listing = list_files(root)
    if not listing.images:
        found = f"other files: {len(listing.ignored)}, '{listing.ignored[0]}' first" if listing.ignored else "no files"
        kinds = ", ".join(sorted(extension[1:] for extension in EXTENSIONS))
        raise DataError(f"{root}: no images in this folder ({found}); expected files ending in {kinds}")
    return listing


def _visible(folder: str) -> list[os.DirEntry[str]]:
    """What lies in a folder, in order of name, without hidden folders."""
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not (entry.name.startswith(".") and _is_folder(entry))]
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be read ({str(error.strerror).lower()})") from error
    return sorted(visible, key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _is_file(entry: os.DirEntry[str]) -> bool:
    """A file, not a pipe or socket, which would be waited for; a link to nothing counts, so that it is found broken."""
    if entry.is_symlink():
        return os.path.isfile(entry.path) or not os.path.exists(entry.path)
    return entry.is_file()


def _name(relative: str, root: str) -> str:
    try:
        relative.encode()
    except UnicodeEncodeError:
        raise DataError(f"{root}: the file name {relative!r} is not valid UTF-8; rename the file") from None
    return relative.replace(os.sep, "/")


def _by_split(images: list[_Placed], root: Path) -> Iterable[list[_Placed]]:
    """A group of images per split folder, or a single group where the top folders are classes.

    A folder called 'train' with images directly in it is a class, of trains say; with folders in it, a split.
    """
    tops: dict[str, list[_Placed]] = {}
    for image in images:
        tops.setdefault(image.below[0], []).append(image)
    named = [top for top in tops if top.lower() in SPLIT_OF_WORD]
    others = [top for top in tops if top.lower() not in SPLIT_OF_WORD]
    splits = [top for top in named if all(len(image.below) > 2 for image in tops[top])]
    if others and not splits:
        return [images]
    if others:
        raise DataError(f"{root}: '{others[0]}' lies beside the split folder '{splits[0]}'; move it into a split")
    return [
        [_Placed(image.name, image.below[1:], SPLIT_OF_WORD[top.lower()]) for image in group]
        for top, group in tops.items()
    ]


def _with_roles(images: list[_Placed]) -> list[_Placed]:
    """The images with their roles, where folders called query and gallery hold all of them."""
    if {image.below[0].lower() for image in images} != ROLE_FOLDERS:
        return images
    return [_Placed(image.name, image.below[1:], image.split, image.below[0].lower()) for image in images]
