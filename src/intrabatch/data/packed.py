"""Images decoded once into one file, so that of many trainings on them, in many processes, none decodes again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import WriteError
from ..saving import write_whole
from .image_set import ImageSet, Source
from .pixels import batches_of, num_threads, read_small

AT_A_TIME = 256


@dataclass(frozen=True)
class PackedSource:
    """Pixels in a file, for whoever asks for images as small as they are there; for others the source of before."""

    path: Path
    side: int
    places: dict[str, tuple[int, int, int]]
    """Of each image: where it starts, its height and width."""
    source: Source

    def read(self, name: str, smallest_side: int = 0) -> NDArray[np.uint8]:
        if smallest_side != self.side or name not in self.places:
            return self.source.read(name, smallest_side)
        start, high, wide = self.places[name]
        return np.memmap(self.path, np.uint8, "r", offset=start, shape=(high, wide, 3))


def pack(images: ImageSet, side: int, path: Path) -> ImageSet:
    """The same images, read from the file `path`, their shorter side at most `side`; it is written if it is not there,
    and `path`.json, which says where each image lies in it, after it."""
    index = path.with_suffix(".json")
    if not index.exists():
        places = _written(images, side, path)
        write_whole(index, lambda fresh: fresh.write_text(json.dumps(places)))
    return replace(images, source=PackedSource(path, side, json.loads(index.read_text()), images.source))


def _written(images: ImageSet, side: int, path: Path) -> dict[str, tuple[int, int, int]]:
    def decoded(index: int) -> NDArray[np.uint8]:
        return np.ascontiguousarray(read_small(images, index, side).permute(1, 2, 0).numpy())

    places: dict[str, tuple[int, int, int]] = {}
    start = 0
    try:
        with path.open("wb") as file, ThreadPoolExecutor(num_threads()) as pool:
            for rows in batches_of(len(images), AT_A_TIME):
                indices = range(len(images))[rows]
                for index, pixels_HW3 in zip(indices, pool.map(decoded, indices), strict=True):
                    high, wide, _ = pixels_HW3.shape
                    places[images.names[index]] = start, high, wide
                    start += file.write(pixels_HW3)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise WriteError(f"cannot write {path}: {error.strerror or error}; nothing else was changed") from None
    return places
