"""One image file: from bytes on disk to RGB pixels, or to a plain reason why not.

What the file begins with decides how it is decoded, not its extension. The size is read first and a picture beyond
`MAX_PIXELS` is refused before its pixels are touched. Knows nothing of folders, tables and benchmarks: they find
files, this module reads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from ..errors import BrokenImages

EXTENSIONS = frozenset({".jpg", ".jpeg", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})

MAX_PIXELS = 128_000_000
"""Room for a phone's 108 megapixels (400 MB decoded); a file that claims more is taken for a decompression bomb."""

_TOO_LARGE = f"more than {MAX_PIXELS:,} are refused as a decompression bomb; scale the picture down"

# Each format by the bytes a file begins with. The classes are called directly because `Image.open` checks the size
# against a limit that is global to the process, and prints a warning of its own.
_FORMATS: tuple[tuple[bytes, type[ImageFile]], ...] = (
    (rb"\xff\xd8\xff", JpegImageFile),
    (rb"\x89PNG\r\n\x1a\n", PngImageFile),
    (rb"RIFF....WEBP", WebPImageFile),
    (rb"GIF8[79]a", GifImageFile),
    (rb"BM", BmpImageFile),
    (rb"II[*+]\x00|MM\x00[*+]", TiffImageFile),
)

_ORIENTATION_TAG = 0x0112
_UPRIGHT_BY_ORIENTATION = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class FileSource:
    """Images that are files; a name is a path, relative to `root` or absolute."""

    root: Path
    ignored: tuple[str, ...] = ()
    """Files found under `root` that are hidden or no images, for the report of `check`."""

    def path(self, name: str) -> Path:
        return self.root / name

    def read(self, name: str, smallest_side: int = 0) -> NDArray[np.uint8]:
        return decode(self.path(name), smallest_side)


class _Refused(Exception):
    """A file that is not decoded; its text is the reason, in plain words."""


def decode(path: str | Path, smallest_side: int = 0) -> NDArray[np.uint8]:
    """The image as upright RGB pixels of shape (H, W, 3); `BrokenImages` with a plain reason when there is none.

    With `smallest_side`, a JPEG comes out smaller by 2, 4 or 8 where its shorter side still has that many pixels: this
    takes less time than decoding it whole.
    """
    try:
        with Path(path).open("rb") as file:
            return _pixels(file, smallest_side)
    except MemoryError:
        raise
    except Exception as error:  # a decoder fed with damaged bytes raises anything
        reason = _reason(error)
        message = f"{path}: {reason}; mend or remove the file (intrabatch check finds all such files)"
        raise BrokenImages(message, [(str(path), reason)]) from error


def _pixels(file: IO[bytes], smallest_side: int) -> NDArray[np.uint8]:
    image = _opened(file)
    if image.width * image.height > MAX_PIXELS:
        raise _Refused(f"{image.width} x {image.height} pixels; {_TOO_LARGE}")
    if smallest_side > 0:
        image.draft(None, (smallest_side, smallest_side))
    image.load()  # a TIFF turns itself upright here, and then says so
    turn = _UPRIGHT_BY_ORIENTATION.get(_orientation(image))
    rgb = _rgb(image)
    return np.array(rgb if turn is None else rgb.transpose(turn))


def _opened(file: IO[bytes]) -> ImageFile:
    """The image with its header read and its pixels not yet."""
    start = file.read(16)
    if not start:
        raise _Refused("the file is empty (0 bytes)")
    file.seek(0)
    for signature, image_class in _FORMATS:
        if re.match(signature, start, re.DOTALL):
            return image_class(file)
    raise _Refused(f"not a JPEG, PNG, WebP, GIF, BMP or TIFF image: the file begins with {start!r}")


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1, upright, where there is none or the EXIF data is damaged: the picture may be whole."""
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB: 16-bit grey keeps its upper byte, what is transparent shows white."""
    if image.mode == "F":
        raise _Refused("the pixels are floating-point numbers of unknown range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # 16-bit grey; converting it directly would clip all above 255 to white
        grey = np.clip(np.asarray(image), 0, 65535) // 256
        image = Image.fromarray(grey.astype(np.uint8))
    if image.has_transparency_data:
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image.convert("RGBA"))
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    """Why a file cannot be read, in plain words and on one line."""
    if isinstance(error, _Refused):
        return str(error)
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"too many pixels; {_TOO_LARGE}"
    if isinstance(error, OSError) and error.strerror is not None:
        return f"cannot be opened ({error.strerror.lower()})"
    detail = " ".join(str(error).split()) or type(error).__name__
    return f"damaged or cut short ({detail})"
