"""Decoding against Pillow's own `exif_transpose` and colours known beforehand; every broken file by its message."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from intrabatch.data.files import MAX_PIXELS, FileSource, decode
from intrabatch.errors import BrokenImages

LOSSLESS = {"png": {}, "webp": {"lossless": True}, "bmp": {}, "tiff": {}}
LOSSY = {"jpg": {"quality": 95}, "gif": {}}


def picture(height: int = 24, width: int = 40) -> Image.Image:
    """A smooth picture without any symmetry, so that each flip and turn shows."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = (5 * rows + columns, 200 - 3 * columns, 30 + 2 * rows + 2 * columns)
    return Image.fromarray(np.stack(channels, 2).astype(np.uint8))


def saved(folder: Path, name: str, image: Image.Image, **options: object) -> Path:
    image.save(folder / name, **options)
    return folder / name


MEND = "mend or remove the file (intrabatch check finds all such files)"


def reason(path: Path) -> str:
    """Why `decode` refuses a file; the message is one line that starts with the path."""
    with pytest.raises(BrokenImages) as caught:
        decode(path)
    (name, text), message = caught.value.broken[0], str(caught.value)
    assert name == str(path) and message == f"{path}: {text}; {MEND}" and "\n" not in message
    return text


@pytest.mark.parametrize("extension", [*LOSSLESS, *LOSSY])
def test_every_format_becomes_rgb(tmp_path: Path, extension: str) -> None:
    path = saved(tmp_path, f"picture.{extension}", picture(), **(LOSSLESS | LOSSY)[extension])
    pixels = decode(path)
    assert pixels.dtype == np.uint8 and pixels.shape == (24, 40, 3) and pixels.flags.writeable
    distance = np.abs(pixels.astype(int) - np.asarray(picture()).astype(int))
    assert distance.max() == 0 if extension in LOSSLESS else distance.mean() < 12


def test_the_content_decides_not_the_extension(tmp_path: Path) -> None:
    path = saved(tmp_path, "really-a-png.jpg", picture(), format="PNG")
    np.testing.assert_array_equal(decode(path), np.asarray(picture()))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("extension", ["jpg", "png", "webp", "tiff"])
def test_exif_orientation(tmp_path: Path, extension: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, f"turned.{extension}", picture(), exif=exif)
    with Image.open(path) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(decode(path), upright)
    assert decode(path).shape == ((24, 40, 3) if orientation <= 4 else (40, 24, 3))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")  # said by Pillow as it reads the header
def test_damaged_exif_does_not_lose_the_picture(tmp_path: Path) -> None:
    path = saved(tmp_path, "exif.jpg", picture(), exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff broken")
    assert decode(path).shape == (24, 40, 3)


def pixel(folder: Path, image: Image.Image, extension: str = "png", **options: object) -> list[int]:
    """The first pixel of a picture of one colour after it was saved and decoded."""
    colour: list[int] = decode(saved(folder, f"one.{extension}", image, **options))[0, 0].tolist()
    return colour


def test_modes_become_rgb(tmp_path: Path) -> None:
    size = (8, 8)
    assert pixel(tmp_path, Image.new("L", size, 90)) == [90, 90, 90]
    assert pixel(tmp_path, Image.new("1", size, 1)) == [255, 255, 255]
    assert pixel(tmp_path, Image.new("RGB", size, (10, 200, 30)).quantize(4)) == [10, 200, 30]
    assert pixel(tmp_path, Image.new("CMYK", size, (0, 255, 255, 0)), "tiff") == [255, 0, 0]
    assert np.abs(np.subtract(pixel(tmp_path, Image.new("CMYK", size, (0, 255, 255, 0)), "jpg"), [255, 0, 0])).max() < 4


def test_sixteen_bit_grey_keeps_its_brightness(tmp_path: Path) -> None:
    grey = Image.fromarray(np.full((8, 8), 128 * 256 + 3, np.uint16))
    assert pixel(tmp_path, grey) == [128, 128, 128]
    assert pixel(tmp_path, grey, "tiff") == [128, 128, 128]
    assert pixel(tmp_path, Image.fromarray(np.full((8, 8), 65535, np.int32)), "tiff") == [255, 255, 255]


def test_what_is_transparent_shows_white(tmp_path: Path) -> None:
    size = (8, 8)
    assert pixel(tmp_path, Image.new("RGBA", size, (200, 0, 0, 0))) == [255, 255, 255]
    assert pixel(tmp_path, Image.new("RGBA", size, (200, 0, 0, 255))) == [200, 0, 0]
    half = pixel(tmp_path, Image.new("RGBA", size, (255, 0, 0, 128)), "webp", lossless=True)
    assert np.abs(np.subtract(half, [255, 127, 127])).max() <= 1
    assert pixel(tmp_path, Image.new("LA", size, (0, 0))) == [255, 255, 255]
    assert pixel(tmp_path, Image.new("P", size, 0), transparency=0) == [255, 255, 255]
    assert pixel(tmp_path, Image.new("RGB", size, (1, 2, 3)), transparency=(1, 2, 3)) == [255, 255, 255]
    assert pixel(tmp_path, Image.new("P", size, 0), "gif", transparency=0) == [255, 255, 255]


@pytest.mark.parametrize("extension", ["gif", "webp"])
def test_the_first_frame_of_an_animation(tmp_path: Path, extension: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    path = saved(tmp_path, f"two.{extension}", frames[0], save_all=True, append_images=frames[1:], lossless=True)
    assert decode(path)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("smallest_side", [20, 50, 100, 101, 399, 400, 5000])
def test_a_smaller_picture_never_falls_below_the_side_asked_for(tmp_path: Path, smallest_side: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(tmp_path, "large.jpg", picture(400, 700), exif=exif)
    height, width, _ = decode(path, smallest_side).shape
    scale = min(8, max(2**n for n in range(10) if n == 0 or 400 / 2**n >= smallest_side))
    assert (height, width) == (-(-700 // scale), 400 // scale)
    assert decode(path).shape == (700, 400, 3)


def test_unicode_and_spaces_in_paths(tmp_path: Path) -> None:
    folder = tmp_path / "Käse und Brot" / "ჩიტი 鳥"
    folder.mkdir(parents=True)
    saved(folder, "été 1.png", picture())
    name = "Käse und Brot/ჩიტი 鳥/été 1.png"
    source = FileSource(tmp_path)
    np.testing.assert_array_equal(source.read(name), np.asarray(picture()))
    np.testing.assert_array_equal(source.read(str(tmp_path / name)), source.read(name))


def test_empty_and_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    assert reason(tmp_path / "empty.jpg") == "the file is empty (0 bytes)"
    (tmp_path / "text.jpg").write_text("Not a picture\nat all")
    assert reason(tmp_path / "text.jpg") == (
        "not a JPEG, PNG, WebP, GIF, BMP or TIFF image: the file begins with b'Not a picture\\nat'"
    )
    assert reason(tmp_path / "nowhere.jpg") == "cannot be opened (no such file or directory)"
    (tmp_path / "folder.jpg").mkdir()
    assert reason(tmp_path / "folder.jpg") == "cannot be opened (is a directory)"


@pytest.mark.parametrize("smallest_side", [0, 1])
@pytest.mark.parametrize("extension", ["jpg", "png", "webp", "gif", "bmp"])
def test_truncated_files(tmp_path: Path, extension: str, smallest_side: int) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    whole = saved(tmp_path, f"whole.{extension}", noise).read_bytes()
    for kept in (18, 200, len(whole) // 2):
        path = tmp_path / f"cut.{extension}"
        path.write_bytes(whole[:kept])
        with pytest.raises(BrokenImages, match=r"cut\.\w+: damaged or cut short \(.+\); mend or remove"):
            decode(path, smallest_side)


def test_a_truncated_tiff(tmp_path: Path) -> None:
    whole = saved(tmp_path, "whole.tiff", picture(), compression="raw").read_bytes()
    (tmp_path / "cut.tiff").write_bytes(whole[: len(whole) // 2])
    assert reason(tmp_path / "cut.tiff").startswith("damaged or cut short (")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = saved(tmp_path, "locked.png", picture())
    monkeypatch.setattr(Path, "open", forbidden)  # root may read everything, whatever the file's mode says
    assert reason(path) == "cannot be opened (permission denied)"


def test_no_memory_is_not_the_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    path = saved(tmp_path, "fine.png", picture())
    monkeypatch.setattr(Path, "open", exhausted)
    with pytest.raises(MemoryError):
        decode(path)


def claiming(extension: str, width: int, height: int) -> bytes:
    """A small file whose header claims another size."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, {"jpg": "JPEG", "tiff": "TIFF"}.get(extension, extension))
    data = bytearray(buffer.getvalue())
    if extension == "jpg":
        frame = data.index(b"\xff\xc0")
        data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    elif extension == "png":
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    elif extension == "gif":
        data[6:10] = struct.pack("<HH", width, height)
    elif extension == "bmp":
        data[18:26] = struct.pack("<ii", width, height)
    else:
        for tag, size in ((256, width), (257, height)):
            entry = data.index(struct.pack("<HHI", tag, 4, 1)) if extension == "tiff" else 0
            data[entry + 8 : entry + 12] = struct.pack("<I", size)
    return bytes(data)


@pytest.mark.parametrize("extension", ["jpg", "png", "gif", "bmp", "tiff"])
@pytest.mark.parametrize("side", [20_000, 12_000])
def test_decompression_bombs_are_refused_by_their_header(tmp_path: Path, extension: str, side: int) -> None:
    path = tmp_path / f"bomb.{extension}"
    path.write_bytes(claiming(extension, side, side))
    assert reason(path) == (
        f"{side} x {side} pixels; more than {MAX_PIXELS:,} are refused as a decompression bomb; scale the picture down"
    )


def test_a_bomb_that_the_decoder_refuses_first(tmp_path: Path) -> None:
    data = bytearray(claiming("gif", 20_000, 20_000))
    frame = data.index(b"\x2c")
    data[frame + 5 : frame + 9] = struct.pack("<HH", 20_000, 20_000)
    control = b"\x21\xf9\x04" + bytes([2 << 2, 0, 0, 0, 0])  # "restore to background" makes Pillow fill the frame
    path = tmp_path / "bomb.gif"
    path.write_bytes(bytes(data[:frame]) + control + bytes(data[frame:]))
    assert reason(path).startswith("too many pixels; more than 128,000,000 are refused")


def test_large_photographs_are_not_bombs(tmp_path: Path) -> None:
    """Above Pillow's own warning of 89 megapixels, below ours: decoded (here: found cut short), without a warning."""
    path = tmp_path / "phone.jpg"
    path.write_bytes(claiming("jpg", 12_000, 9_000)[:-40])
    with pytest.raises(BrokenImages, match="damaged or cut short"):
        decode(path, smallest_side=256)


def test_floating_point_pixels(tmp_path: Path) -> None:
    path = saved(tmp_path, "float.tiff", Image.fromarray(np.ones((8, 8), np.float32)))
    assert reason(path) == "the pixels are floating-point numbers of unknown range; save it with 8 or 16 bits"


def test_garbage_never_raises_anything_else(tmp_path: Path) -> None:
    """Single bytes changed at random anywhere in a file: pixels or a reason, nothing else."""
    rng = np.random.default_rng(0)
    path = tmp_path / "mutated"
    for extension in ("jpg", "png", "webp", "gif", "bmp", "tiff"):
        whole = bytearray(saved(tmp_path, f"whole.{extension}", picture()).read_bytes())
        for _ in range(60):
            data: NDArray[np.uint8] = np.frombuffer(whole, np.uint8).copy()
            data[rng.integers(0, len(data), 3)] = rng.integers(0, 256, 3)
            path.write_bytes(data.tobytes())
            try:
                assert decode(path).ndim == 3
            except BrokenImages as error:
                assert len(str(error).splitlines()) == 1
