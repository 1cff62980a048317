"""Files of vectors: what is written is read again, from every format, and bad files are one line."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


def test_a_blank_role_means_both_and_labels_lose_spaces_around_them(tmp_path):
    np.save(tmp_path / "v.npy", SOME.vectors_ND)
    (tmp_path / "l.csv").write_text("label, role\nx, \n y,Query\nx,\n")
    found = load_embeddings(tmp_path / "v.npy", tmp_path / "l.csv")
    assert found.labels == ("x", "y", "x") and found.roles == SOME.roles
    columns = {"vector": SOME.vectors_ND.tolist(), "label": [7, 8, 7], "role": [None, "query", ""]}
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    found = load_embeddings(tmp_path / "v.parquet")
    assert found.labels == ("7", "8", "7") and found.roles == SOME.roles and found.names == ("0", "1", "2")


def test_bad_files_are_one_line(tmp_path):
    def write(name, **arrays):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    vectors = np.zeros((3, 2), np.float32)

    def table(name, **columns):
        columns = {"vector": vectors.tolist()} | columns
        pq.write_table(pa.table({n: c for n, c in columns.items() if c is not None}), tmp_path / f"{name}.parquet")
        return tmp_path / f"{name}.parquet"

    (tmp_path / "torn.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "empty.npz").touch()
    whole = write("whole.npz", vector=vectors, label=LABELS).read_bytes()
    cut, turned = tmp_path / "cut.npz", tmp_path / "turned.npz"
    cut.write_bytes(whole[: len(whole) // 2])
    turned.write_bytes(whole.replace(b"<f4", b"<i4", 1))
    np.save(tmp_path / "v.npy", vectors)
    for path, message in [
        (tmp_path / "no.npz", "no embeddings file"),
        (write("a.npz", vector=vectors), "has no 'label'; it has: vector"),
        (write("b.npz", label=np.zeros(3)), "has no 'vector'; it has: label"),
        (write("c.npz", vector=np.zeros(3), label=np.zeros(3)), r"vectors have shape \(3,\), expected"),
        (write("d.npz", vector=vectors, label=np.zeros(2)), "3 vectors but 2 labels"),
        (write("e.npz", vector=vectors, label=LABELS, path=NAMES[:2]), "3 vectors but 2 paths"),
        (write("f.npz", vector=vectors, label=LABELS, role=ROLES[:2]), "3 vectors but 2 roles"),
        (write("g.npz", vector=vectors, label=np.array("x")), r"'label' has shape \(\), expected one text an image"),
        (write("h.npz", vector=vectors, label=np.ones((3, 2))), r"'label' has shape \(3, 2\), expected one text"),
        (write("i.npz", vector=vectors, label=[1, np.nan, 2]), "i.npz, row 2, label '': an empty label; each image"),
        (write("j.npz", vector=vectors, label=["a", "b", " "]), "j.npz, row 3, label ' ': an empty label; each image"),
        (write("k.npz", vector=np.full((3, 2), "x"), label=LABELS), "vectors are of type <U1, expected real numbers"),
        (write("l.npz", vector=vectors * 1j, label=LABELS), "vectors are of type complex64, expected real numbers"),
        (write("m.npz", vector=np.eye(3) * 1e200, label=LABELS), "3 of 3 vectors hold numbers too large for float32"),
        (
            write("n.npz", vector=vectors, label=np.array(["a", None, "b"])),
            "cannot be read: Object .* text with none missing",
        ),
        (write("o.npz", vector=vectors[:0], label=LABELS[:0]), r"vectors have shape \(0, 2\), expected"),
        (cut, "is no .npz archive or is cut short; write it again with numpy.savez"),
        (tmp_path / "empty.npz", "is no .npz archive or is cut short"),
        (turned, "cannot be read: Bad CRC-32"),
        (table("a", label=["a", None, "b"]), "a.parquet, row 2, label '': an empty label; each image needs"),
        (table("b", label=[1.0, np.nan, 2.0]), "b.parquet, row 2, label '': an empty label; each image needs"),
        (table("c", label=[["a"], ["b"], ["c"]]), "c.parquet: cannot be read as a table"),
        (table("d", label=LABELS, vector=None), "d.parquet has no 'vector'; it has: label"),
        (table("e", label=LABELS, vector=[[1.0], None, [2.0]]), "e.parquet cannot be read: all input arrays must have"),
        (table("f", label=LABELS, vector=[["1"], ["2"], ["3"]]), "vectors are of type object, expected real numbers"),
        (table("g", role=ROLES), "g.parquet: column 'label' is missing; found 'vector', 'role'; expected label, and"),
        (tmp_path / "torn.parquet", "cannot be read"),
        (tmp_path / "v.npy", "give the labels as a second file"),
    ]:
        with pytest.raises(DataError, match=message) as caught:
            load_embeddings(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"unknown kind of file '.txt'; choose from: .parquet, .npz"):
        save_embeddings(tmp_path / "v.txt", SOME)


def test_bad_pairs_of_files_are_one_line(tmp_path):
    vectors, labels = tmp_path / "v.npy", tmp_path / "l.csv"
    np.save(vectors, SOME.vectors_ND)
    np.savez(tmp_path / "v.npz", vector=SOME.vectors_ND, label=LABELS)
    (tmp_path / "text.npy").write_text("no vectors")
    (tmp_path / "empty.npy").touch()
    labels.write_text("label\nx\ny\nx\n")
    for path, text, message in [
        (tmp_path / "v.npz", "", "v.npz has the labels in it; leave out .*l.csv, only a .npy takes a second"),
        (tmp_path / "text.npy", "label\nx\n", "text.npy cannot be read: the magic string is not correct"),
        (tmp_path / "empty.npy", "label\nx\n", "empty.npy cannot be read: EOF: reading magic string"),
        (vectors, "label,vector\nx,1\n", "l.csv: a column 'vector', but the vectors are those of .*v.npy; remove"),
        (vectors, "label,path\nx,1\n,2\nx,3\n", "l.csv, row 2, label '': an empty label; each image needs"),
        (vectors, "label;path\nx;1\n", "l.csv: the columns are separated by ';'; save it with commas"),
        (vectors, "", "l.csv: column 'label' is missing; found an empty file; expected label, and if wanted path and"),
        (vectors, "label\nx\n", "v.npy: 3 vectors but 1 labels"),
    ]:
        labels.write_text(text)
        with pytest.raises(DataError, match=message) as caught:
            load_embeddings(path, labels)
        assert "\n" not in str(caught.value)


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
