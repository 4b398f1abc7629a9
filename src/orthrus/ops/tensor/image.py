"""Decoding images: an encoded stream of bytes comes in, pixels [height, width, channels] of uint8 go out.

The work is Pillow's, which is imported when the operator first runs. The size in the stream's header is
checked against the session's limits before a pixel is decoded.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ...errors import Fail
from ...limits import bounded
from ..define import op
from .movement import chosen

_FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as e:
        raise RuntimeError("ImageDecoder needs Pillow: pip install orthrus-runtime[image]") from e
    return Image


def _eight_bits(image: Any) -> Any:
    """`image` with samples of 8 bits: Pillow itself would cut longer ones off instead of scaling them."""
    if image.mode.startswith("I"):
        from PIL import Image

        wide = np.asarray(image).astype(np.int64)
        narrow = wide >> 8 if wide.max(initial=0) > 255 else wide
        return Image.fromarray(np.clip(narrow, 0, 255).astype(np.uint8))
    return image


@op
def ImageDecoder(encoded_stream, *, pixel_format: str = "RGB"):
    """The pixels of a BMP, JPEG, JPEG 2000, PNG, PNM, TIFF or WebP image, with one or three channels"""
    chosen(pixel_format, ("RGB", "BGR", "Grayscale"), "pixel_format")
    pillow = _pillow()
    if encoded_stream.ndim != 1:
        raise ValueError(f"encoded_stream must have rank 1, found rank {encoded_stream.ndim}")
    try:
        with pillow.open(io.BytesIO(encoded_stream.tobytes()), formats=_FORMATS) as image:
            bounded((image.height, image.width, 8), np.dtype(np.uint8), "decoded image")
            mode = "L" if pixel_format == "Grayscale" else "RGB"
            pixels = np.asarray(_eight_bits(image).convert(mode), np.uint8)
    except Fail:
        raise
    except Exception as e:
        raise ValueError(f"the stream is no image that can be decoded: {type(e).__name__}: {e}") from e
    if pixel_format == "Grayscale":
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if pixel_format == "BGR" else pixels
