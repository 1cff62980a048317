"""Images to vectors by the backbone alone, and files of vectors.

An embedding never depends on which other images are embedded with it. Knows nothing of training or message passing.
Shapes: N images, B images at a time, D numbers a vector.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from .backbone import Embedder
from .data.labelled import label_in, role_in
from .data.tables import meant, table_cells
from .errors import DataError
from .saving import write_whole

TEXTS = ("path", "label", "role")


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Unit vectors with the names, labels and roles of their images."""

    vectors_ND: NDArray[np.float32]
    names: tuple[str, ...]
    labels: tuple[str, ...]
    roles: tuple[str, ...] | None = None


@torch.no_grad()
def embed_crops(
    embedder: Embedder, crops: Iterable[Tensor], precision: torch.dtype, *, unit: bool = True
) -> NDArray[np.float32]:
    """Vectors (N, D) of centre crops, given some at a time; the embedder's mode is put back as it was.

    `unit` vectors are for retrieval; otherwise they are as they leave the network, as message passing takes them.
    """
    was_training = embedder.training
    embedder.eval()
    try:
        vectors = []
        for crops_B3SS in crops:
            with torch.autocast(crops_B3SS.device.type, precision, enabled=precision != torch.float32):
                vectors.append(embedder.embed(crops_B3SS) if unit else embedder(crops_B3SS).float())
    finally:
        embedder.train(was_training)
    if not vectors:
        raise DataError("no images to embed; expected at least one")
    return torch.cat(vectors).cpu().numpy()


def require_known_kind(path: Path) -> None:
    """Before the work, not after it: can a file of this name be written?"""
    if path.suffix not in (".parquet", ".npz"):
        raise DataError(f"--out {path}: unknown kind of file '{path.suffix}'; choose from: .parquet, .npz")
    if not path.absolute().parent.is_dir():
        raise DataError(f"--out {path}: there is no folder {path.absolute().parent}; make it first")


def save_embeddings(path: Path, embeddings: Embeddings) -> None:
    """Write a .parquet table (path, label, vector) or a .npz archive of the same columns."""
    require_known_kind(path)
    if path.suffix == ".npz":
        texts = {"path": embeddings.names, "label": embeddings.labels, "role": embeddings.roles}
        arrays = {name: np.array(values) for name, values in texts.items() if values is not None}
        write_whole(path, partial(_write_npz, arrays | {"vector": embeddings.vectors_ND}))
        return
    flat = pa.array(embeddings.vectors_ND.ravel())
    columns = {
        "path": pa.array(embeddings.names),
        "label": pa.array(embeddings.labels),
        "vector": pa.FixedSizeListArray.from_arrays(flat, embeddings.vectors_ND.shape[1]),
    }
    if embeddings.roles is not None:
        columns["role"] = pa.array(embeddings.roles)
    table = pa.table(columns)
    write_whole(path, lambda fresh: pq.write_table(table, fresh))


def _write_npz(arrays: dict[str, np.ndarray], path: Path) -> None:
    with path.open("wb") as file:  # given a path, NumPy would add .npz to it
        np.savez(file, allow_pickle=False, **arrays)


def load_embeddings(path: Path, labels: Path | None = None) -> Embeddings:
    """Read vectors with labels, whoever made them: .parquet or .npz (path, label, vector, role), or .npy with a CSV.

    The CSV that goes with a .npy has a column label, one row a vector, and optionally path and role. Labels and roles
    mean what they mean in a table of images.
    """
    if not path.is_file():
        raise DataError(f"no embeddings file {path}")
    if labels is not None and path.suffix != ".npy":
        raise DataError(f"embeddings file {path} has the labels in it; leave out {labels}, only a .npy takes a second")
    try:
        found, texts = _read_columns(path, labels)
    except DataError:
        raise
    except Exception as error:  # NumPy, zip and Arrow raise a dozen kinds for a file that is damaged or not theirs
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"embeddings file {path} cannot be read: {reason}") from None
    vectors_ND = _vectors(path, found)
    texts.setdefault("path", [str(row) for row in range(len(vectors_ND))])
    for name, column in texts.items():
        if len(column) != len(vectors_ND):
            raise DataError(f"embeddings file {path}: {len(vectors_ND)} vectors but {len(column)} {name}s")
    words = meant(labels or path, "label", texts["label"], label_in)
    roles = tuple(map(role_in, texts["role"])) if "role" in texts else None
    return Embeddings(vectors_ND, tuple(texts["path"]), tuple(words), roles)


Columns = tuple[np.ndarray, dict[str, list[str]]]
"""The vectors as they stand in a file, and the texts beside them: label, and if they are there path and role."""


def _read_columns(path: Path, labels: Path | None) -> Columns:
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".parquet":
        names, texts = table_cells(path, ("label",), ("path", "role"))
        _require_column(path, "vector", names)
        return np.stack(pq.read_table(path, columns=["vector"])["vector"].to_numpy()), texts
    if path.suffix == ".npy":
        if labels is None:
            raise ValueError("a .npy holds vectors only; give the labels as a second file: VECTORS.npy LABELS.csv")
        names, texts = table_cells(labels, ("label",), ("path", "role"))
        if "vector" in names:
            raise DataError(f"{labels}: a column 'vector', but the vectors are those of {path}; remove the column")
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False), texts
    raise ValueError(f"unknown kind of file '{path.suffix}'; choose from: .parquet, .npz, .npy with a .csv")


def _read_npz(path: Path) -> Columns:
    if not zipfile.is_zipfile(path):
        raise DataError(f"embeddings file {path} is no .npz archive or is cut short; write it again with numpy.savez")
    with np.load(path, allow_pickle=False) as archive:
        for needed in ("vector", "label"):
            _require_column(path, needed, archive.files)
        try:
            texts = {name: _texts(path, name, archive[name]) for name in TEXTS if name in archive.files}
        except ValueError as error:  # objects, such as None among texts
            raise ValueError(f"{error}; save {', '.join(TEXTS)} as arrays of text with none missing") from None
        return archive["vector"], texts


def _require_column(path: Path, needed: str, names: list[str]) -> None:
    if needed not in names:
        raise DataError(f"embeddings file {path} has no '{needed}'; it has: {', '.join(names)}")


def _texts(path: Path, name: str, values: np.ndarray) -> list[str]:
    """As in a table: NaN is an empty text."""
    if values.ndim != 1:
        raise DataError(f"embeddings file {path}: '{name}' has shape {values.shape}, expected one text an image")
    return ["" if value != value else str(value) for value in values]


def _vectors(path: Path, found: np.ndarray) -> NDArray[np.float32]:
    """As float32, which must hold them: what is real and finite there is finite here."""
    if found.dtype.kind not in "fiub":
        raise DataError(f"embeddings file {path}: vectors are of type {found.dtype}, expected real numbers")
    if found.ndim != 2 or not found.size:
        raise DataError(f"embeddings file {path}: vectors have shape {found.shape}, expected (images, numbers)")
    with np.errstate(over="ignore"):
        vectors_ND = found.astype(np.float32)
    rows = np.flatnonzero((np.isinf(vectors_ND) & np.isfinite(found)).any(axis=1))
    if len(rows):
        raise DataError(
            f"embeddings file {path}: {len(rows)} of {len(found)} vectors hold numbers too large for float32, the "
            f"first in row {rows[0]}; expected at most 3.4e38: scale them, say to length 1"
        )
    return vectors_ND
