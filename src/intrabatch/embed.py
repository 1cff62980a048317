"""Images to vectors by the backbone alone, and files of vectors.

An embedding never depends on which other images are embedded with it. Knows nothing of training or message passing.
Shapes: N images, B images at a time, D numbers a vector.
"""

from __future__ import annotations

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
from .errors import DataError
from .saving import write_whole


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

    The CSV that goes with a .npy has a column label, one row a vector, and optionally path and role.
    """
    if not path.is_file():
        raise DataError(f"no embeddings file {path}")
    try:
        columns = _read_columns(path, labels)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise DataError(f"embeddings file {path} cannot be read: {str(error).splitlines()[0]}") from None
    for needed in ("vector", "label"):
        if needed not in columns:
            raise DataError(f"embeddings file {path} has no '{needed}'; it has: {', '.join(columns)}")
    vectors = np.asarray(columns["vector"], dtype=np.float32)
    if vectors.ndim != 2:
        raise DataError(f"embeddings file {path}: vectors have shape {vectors.shape}, expected (images, numbers)")
    names = columns.get("path", np.arange(len(vectors)))
    roles = columns.get("role")
    found = Embeddings(vectors, _texts(names), _texts(columns["label"]), None if roles is None else _texts(roles))
    if len(found.labels) != len(vectors):
        raise DataError(f"embeddings file {path}: {len(vectors)} vectors but {len(found.labels)} labels")
    return found


def _read_columns(path: Path, labels: Path | None) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        columns = {name: table[name].to_numpy() for name in table.column_names if name != "vector"}
        if "vector" in table.column_names:
            columns["vector"] = np.stack(table["vector"].to_numpy())
        return columns
    if path.suffix == ".npy":
        from pyarrow import csv

        if labels is None:
            raise ValueError("a .npy holds vectors only; give the labels as a second file: VECTORS.npy LABELS.csv")
        as_text = {name: pa.string() for name in ("path", "label", "role")}  # '01' and '1' are two labels
        table = csv.read_csv(labels, convert_options=csv.ConvertOptions(column_types=as_text))
        return {"vector": np.load(path, allow_pickle=False)} | {n: table[n].to_numpy() for n in table.column_names}
    raise ValueError(f"unknown kind of file '{path.suffix}'; choose from: .parquet, .npz, .npy with a .csv")


def _texts(values: np.ndarray) -> tuple[str, ...]:
    return tuple(str(value) for value in values)
