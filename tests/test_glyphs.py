"""The built-in images: repeatable, disjoint scripts, and no two classes that a person could not tell apart."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from intrabatch.data.glyphs import FONTS, TEST_SCRIPTS, glyphs
from intrabatch.data.image_set import ArraySource, ImageSet
from intrabatch.errors import DataError

SIZE = 32


@pytest.fixture(scope="module")
def small() -> ImageSet:
    return glyphs(classes=40, per_class=3, size=SIZE)


def pixels_of(images: ImageSet) -> NDArray[np.uint8]:
    assert isinstance(images.source, ArraySource)
    return images.source.pixels_NHW3


def characters_of(images: ImageSet, split: str) -> list[str]:
    return [chr(int(name.split()[0].removeprefix("U+"), 16)) for name in images.only(split).classes]


def test_counts_shapes_and_names(small: ImageSet) -> None:
    sizes = {split: len(small.only(split).classes) for split in ("train", "val", "test")}
    assert sizes == {"train": 40, "val": 5, "test": 20}
    assert (small.class_sizes() == 3).all()
    assert pixels_of(small).shape == (65 * 3, SIZE, SIZE, 3)
    assert pixels_of(small).dtype == np.uint8
    assert len(set(small.names)) == len(small.names)
    assert len(set(small.classes)) == len(small.classes)


def test_a_name_says_split_character_font_and_number(small: ImageSet) -> None:
    assert small.splits is not None
    for index, name in enumerate(small.names):
        split, class_name, rendering = name.split("/")
        font, number = rendering.rsplit("-", 1)
        assert split == small.splits[index]
        assert class_name == small.classes[small.labels[index]]
        assert font in FONTS
        assert int(number) == index % 3
        assert unicodedata.lookup(class_name.split(" ", 1)[1]) == chr(int(class_name[2:].split()[0], 16))


def test_the_same_seed_gives_the_same_bytes(small: ImageSet) -> None:
    again = glyphs(classes=40, per_class=3, size=SIZE)
    assert again.names == small.names
    assert pixels_of(again).tobytes() == pixels_of(small).tobytes()


def test_another_seed_gives_other_images_of_the_same_classes(small: ImageSet) -> None:
    other = glyphs(classes=40, per_class=3, size=SIZE, seed=1)
    assert other.classes == small.classes
    differs = (pixels_of(other) != pixels_of(small)).any(axis=(1, 2, 3))
    assert differs.all()


def test_an_image_does_not_depend_on_how_many_are_asked_for(small: ImageSet) -> None:
    fewer = glyphs(classes=10, per_class=2, size=SIZE)
    common = set(fewer.names) & set(small.names)
    assert len(common) == (10 + 5) * 2, "all that train and test in the smaller set do so in the larger one"
    for name in common:
        np.testing.assert_array_equal(fewer.source.read(name), small.source.read(name))


def test_no_two_images_are_equal_and_none_is_blank(small: ImageSet) -> None:
    pixels = pixels_of(small)
    assert len({image.tobytes() for image in pixels}) == len(pixels)
    clean = pixels.reshape(len(pixels), SIZE // 4, 4, SIZE // 4, 4, 3).mean(axis=(2, 4))  # noise averages out
    spread = clean.max(axis=(1, 2)).astype(float) - clean.min(axis=(1, 2))
    assert (spread.max(axis=1) > 60).all()


def test_scripts_of_the_test_classes_are_never_seen_in_training(small: ImageSet) -> None:
    for split, unseen in (("train", False), ("val", False), ("test", True)):
        for character in characters_of(small, split):
            assert any(script in unicodedata.name(character) for script in TEST_SCRIPTS) == unseen
    names = " ".join(unicodedata.name(character) for character in characters_of(small, "test"))
    assert all(script in names for script in TEST_SCRIPTS)


def filled(character: str, font: str) -> NDArray[np.float64]:
    """A character drawn large, cut out and stretched to a square: an independent look at its shape."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{font}.ttf")
    canvas = Image.new("L", (400, 400))
    ImageDraw.Draw(canvas).text((150, 150), character, fill=255, font=ImageFont.truetype(str(path), 100))
    box = canvas.getbbox()
    assert box is not None, f"{character!r} is blank in {font}"
    return np.asarray(canvas.crop(box).resize((40, 40)), float) / 255


@pytest.mark.parametrize("font", ["DejaVuSans", "DejaVuSerif-Italic", "DejaVuSansMono-Bold"])
def test_no_two_classes_have_nearly_the_same_shape(small: ImageSet, font: str) -> None:
    characters = [character for split in ("train", "val", "test") for character in characters_of(small, split)]
    shapes = np.stack([filled(character, font) for character in characters])
    for index, shape in enumerate(shapes[1:], start=1):
        unlike = np.abs(shapes[:index] - shape).mean(axis=(1, 2))
        nearest = int(unlike.argmin())
        assert unlike[nearest] > 0.03, f"{characters[index]!r} and {characters[nearest]!r} in {font}"


@pytest.fixture(scope="module")
def every_character() -> dict[str, str]:
    """The split of each character when nearly all that the fonts have are asked for (two renderings, tiny)."""
    images = glyphs(classes=1000, per_class=2, size=16)
    return {character: split for split in ("train", "val", "test") for character in characters_of(images, split)}


LOOK_ALIKES = {
    "A, Alpha, Cyrillic A": "A\u0391\u0410",
    "B, Beta, Cyrillic Ve": "B\u0392\u0412",
    "o of any script, size or case, and zero": "oO0\u03bf\u039f\u043e\u041e\u0585\u00b0\u25cb",
    "s, S, Cyrillic Dze": "sS\u0455\u0405",
    "i, Cyrillic i": "i\u0456",
    "bars": "|lI\u04c0\u2502",
    "dashes": "-\u2013\u2014_",
    "Omega, ohm": "\u03a9\u2126",
    "mu, micro": "\u03bc\u00b5",
    "Cyrillic zhe, capital and small": "\u0416\u0436",
    "italic Cyrillic te, m": "m\u0442",
}


@pytest.mark.parametrize("group", LOOK_ALIKES.values(), ids=LOOK_ALIKES.keys())
def test_one_class_at_most_for_characters_that_look_alike(every_character: dict[str, str], group: str) -> None:
    assert len([character for character in group if character in every_character]) <= 1


@pytest.mark.parametrize("character", [" ", "\u00a0", "\u0301", "□"])
def test_blanks_marks_and_the_missing_glyph_box_are_no_class(every_character: dict[str, str], character: str) -> None:
    assert character not in every_character


def test_plainly_different_letters_are_different_classes(every_character: dict[str, str]) -> None:
    for small_and_capital in ("жЖ", "яЯ", "щЩ", "фФ", "дД", "юЮ", "ლ", "ჭ", "ჱ", "թԹ", "ձՁ"):
        assert "test" in {every_character.get(character) for character in small_and_capital}, small_and_capital
    assert set("4@&#Ξλ") <= {character for character, split in every_character.items() if split != "test"}
    assert list(every_character.values()).count("test") >= 200


def test_too_many_classes_name_how_many_there_are() -> None:
    with pytest.raises(DataError) as caught:
        glyphs(classes=5000)
    message = str(caught.value)
    assert "5000 training classes asked for" in message
    most = int(message.split("at most ")[1].split(",")[0])
    assert most >= 1000
    assert f"only {most + 2} distinct characters to train and validate" in message


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"classes": 1}, "classes is 1; it must be at least 2"),
        ({"per_class": 1}, "per_class is 1; it must be at least 2"),
        ({"size": 8}, "size is 8; it must be at least 16"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
    ],
)
def test_settings_out_of_range_are_named(wrong: dict[str, int], text: str) -> None:
    with pytest.raises(DataError, match=text):
        glyphs(**wrong)
