"""Pictures made small and put into a text: fitted, encoded, and gathered on one sheet."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from ..errors import DataError
from .content import Picture


def fitted(picture: Picture, size: int, enlarge: bool = False) -> Image.Image:
    """The picture with its longer side at most `size` pixels, or just that when it may be enlarged."""
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
        raise DataError(f"report: expected pictures as uint8 (H, W, 3), got {picture.dtype} {picture.shape}")
    image = Image.fromarray(picture)
    longer = max(image.size)
    if longer <= size and not enlarge:
        return image
    width, height = (max(1, round(side * size / longer)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def data_uri(image: Image.Image, quality: int = 82) -> str:
    """The image as WebP inside an address, so that the page needs no other file."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def sprite_sheet(pictures: Sequence[Picture], size: int, columns: int) -> Image.Image:
    """All pictures on one sheet, row by row, each in the middle of its square of `size` pixels."""
    num_rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * size, num_rows * size), "white")
    for i, picture in enumerate(pictures):
        paste_centred(sheet, fitted(picture, size), (i % columns * size, i // columns * size), size)
    return sheet


def paste_centred(sheet: Image.Image, image: Image.Image, corner: tuple[int, int], size: int) -> None:
    """Put the image in the middle of the square of `size` pixels that begins at `corner`."""
    left, top = ((size - side) // 2 + start for side, start in zip(image.size, corner, strict=True))
    sheet.paste(image, (left, top))
