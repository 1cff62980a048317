"""Files of vectors: what is written is read again, from every format, and bad files are one line."""

import numpy as np
import pytest
import torch
from conftest import tiny_config, tiny_images

from intrabatch.config import ImageConfig
from intrabatch.data.pixels import open_pixels
from intrabatch.embed import Embeddings, embed_crops, load_embeddings, save_embeddings
from intrabatch.errors import DataError
from intrabatch.model import Network

NAMES, LABELS, ROLES = ("a/1.jpg", "ä b.jpg", "c"), ("x", "y", "x"), ("both", "query", "both")
SOME = Embeddings(np.eye(3, 4, dtype=np.float32), NAMES, LABELS, ROLES)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("roles", [None, SOME.roles])
def test_files_hold_what_was_saved(tmp_path, suffix, roles):
    path = tmp_path / f"vectors{suffix}"
    save_embeddings(path, Embeddings(SOME.vectors_ND, SOME.names, SOME.labels, roles))
    again = load_embeddings(path)
    assert np.array_equal(again.vectors_ND, SOME.vectors_ND)
    assert (again.names, again.labels, again.roles) == (SOME.names, SOME.labels, roles)


def test_npy_with_a_csv(tmp_path):
    np.save(tmp_path / "v.npy", SOME.vectors_ND)
    (tmp_path / "l.csv").write_text("label,role\nx,both\ny,query\nx,both\n")
    found = load_embeddings(tmp_path / "v.npy", tmp_path / "l.csv")
    assert found.labels == ("x", "y", "x") and found.roles == SOME.roles


def test_bad_files_are_one_line(tmp_path):
    def write(name, **arrays):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    vectors = np.zeros((3, 2), np.float32)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 no")
    np.save(tmp_path / "v.npy", vectors)
    for path, message in [
        (tmp_path / "no.npz", "no embeddings file"),
        (write("a.npz", vector=vectors), "has no 'label'; it has: vector"),
        (write("b.npz", label=np.zeros(3)), "has no 'vector'; it has: label"),
        (write("c.npz", vector=np.zeros(3), label=np.zeros(3)), r"vectors have shape \(3,\), expected"),
        (write("d.npz", vector=vectors, label=np.zeros(2)), "3 vectors but 2 labels"),
        (tmp_path / "torn.parquet", "cannot be read"),
        (tmp_path / "v.npy", "give the labels as a second file"),
    ]:
        with pytest.raises(DataError, match=message) as caught:
            load_embeddings(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"unknown kind of file '.txt'; choose from: .parquet, .npz"):
        save_embeddings(tmp_path / "v.txt", SOME)


def test_embedding_keeps_the_mode_also_after_a_failure():
    embedder = Network(tiny_config(), 3).embedder.train()

    def failing():
        yield torch.rand(2, 3, 16, 16)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        embed_crops(embedder, failing(), torch.float32)
    assert embedder.training
    with pytest.raises(DataError, match="no images to embed"):
        embed_crops(embedder, [], torch.float32)


def test_vectors_do_not_depend_on_how_many_are_embedded_at_a_time():
    embedder = Network(tiny_config(), 3).embedder
    pixels = open_pixels(tiny_images(), ImageConfig(crop=16, resize=16), torch.device("cpu"))
    one, many = (embed_crops(embedder, pixels.test_crops(size), torch.float32) for size in (1, 20))
    assert np.allclose(one, many, atol=1e-5) and np.allclose(np.linalg.norm(one, axis=1), 1, atol=1e-5)
    raw = embed_crops(embedder, pixels.test_crops(20), torch.float32, unit=False)
    assert np.allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), many, atol=1e-5)
