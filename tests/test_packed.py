"""Images decoded once into a file: the same pixels for whoever asks for that size, the source of before for others."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import tiny_images

from intrabatch.config import ImageConfig
from intrabatch.data.packed import pack
from intrabatch.data.pixels import StoredImages, read_small
from intrabatch.errors import WriteError


@pytest.mark.parametrize("side", [8, 16, 64])
def test_packed_images_are_the_same(tmp_path, side):
    images = tiny_images()
    packed = pack(images, side, tmp_path / "pixels")
    config = ImageConfig(crop=side, resize=side)
    left, right = StoredImages.decoded(images, config), StoredImages.decoded(packed, config)
    assert (left.bytes == right.bytes).all() and (left.sizes_N2 == right.sizes_N2).all()
    assert (packed.read(3) == images.read(3)).all() and (packed.read(3, side + 1) == images.read(3)).all()


def test_images_of_many_sizes(tmp_path):
    class Ragged:
        def read(self, name, smallest_side=0):
            high = 10 + int(name[-3:])
            return np.full((high, 40, 3), high, np.uint8)

    images = replace(tiny_images(), source=Ragged())
    packed = pack(images, 12, tmp_path / "pixels")
    for index in range(len(images)):
        assert (read_small(packed, index, 12) == read_small(images, index, 12)).all()


def test_a_file_that_is_there_is_not_written_again(tmp_path):
    images = tiny_images()
    pack(images, 8, tmp_path / "pixels")
    unreadable = replace(images, source=None)
    again = pack(unreadable, 8, tmp_path / "pixels")
    assert (again.read(2, 8) == pack(images, 8, tmp_path / "other").read(2, 8)).all()


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(WriteError, match=r"cannot write .*nowhere/pixels: No such file or directory"):
        pack(tiny_images(), 8, tmp_path / "nowhere" / "pixels")
