"""Whether an image decodes to its last pixel: what `--check-images decode` asks of every image at pack time.

Warnings about stray bytes between segments pass, as decoders skip them; everything that leaves pixels grey does not.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import DecodeError
from .image_header import ImageHeader, image_header
from .limits import DEFAULT_LIMITS, Limits

__all__ = ["check_decodes", "decode_pixels"]

# libjpeg's words for bytes that belong to no segment; the picture is whole (libjpeg-turbo/libjpeg-turbo#157).
_HARMLESS: Final = "extraneous bytes before marker"
# Adam7: first column, first row, column step, row step of each pass.
_ADAM7: Final = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def check_decodes(data: bytes, codec: str, limits: Limits = DEFAULT_LIMITS) -> None:
    """Decode an image and forget it.

    Raises:
        DecodeError: it does not decode completely; says what the decoder said.
    """
    if codec == "jpeg":
        decode_pixels(data, codec, limits)
    elif codec == "png":
        _check_png(data, image_header(data, codec, limits))


def decode_pixels(data: bytes, codec: str, limits: Limits = DEFAULT_LIMITS) -> NDArray[Any]:  # Any: uint8 or uint16
    """Return the pixels (H, W) or (H, W, C) as they are stored: an orientation tag is not applied.

    JPEG: grey (H, W) or RGB; CMYK is converted. PNG: grey, BGR or BGRA with the file's depth, as OpenCV orders them.
    """
    header = image_header(data, codec, limits)
    if codec == "png":
        _check_png(data, header)
        return _opencv(data, unchanged=True)
    if header.bits != 8:
        raise DecodeError(f"expected a JPEG of 8 bits, found {header.bits}, which common decoders refuse; convert it to PNG")
    if header.channels == 4:
        return np.ascontiguousarray(_opencv(data, unchanged=False)[..., ::-1])
    import simplejpeg  # packing only, and only when asked for

    colour = "GRAY" if header.channels == 1 else "RGB"
    try:
        picture = simplejpeg.decode_jpeg(data, colorspace=colour)
    except ValueError as error:
        if _HARMLESS not in str(error):
            raise DecodeError(f"expected a JPEG that decodes, found: {error}; replace the file, or reject it") from error
        try:
            picture = simplejpeg.decode_jpeg(data, colorspace=colour, strict=False)
        except ValueError as worse:
            raise DecodeError(f"expected a JPEG that decodes, found: {worse}; replace the file, or reject it") from worse
    return np.asarray(picture[..., 0] if header.channels == 1 else picture)


def _opencv(data: bytes, *, unchanged: bool) -> NDArray[Any]:  # Any: uint8 or uint16
    import cv2  # packing only, and only when asked for

    # IMREAD_UNCHANGED implies that an orientation tag is not applied; with IMREAD_COLOR it must be said.
    flags = cv2.IMREAD_UNCHANGED if unchanged else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if picture is None:
        raise DecodeError("expected an image that decodes, and the decoder gave no picture; replace the file, or reject it")
    return np.asarray(picture)


def _check_png(data: bytes, header: ImageHeader) -> None:
    """Compare each chunk's CRC, and inflate the pixels into exactly the bytes that the header promises."""
    at, pixels, found = 8, zlib.decompressobj(), 0
    expected = _png_bytes(header)
    try:
        while True:
            length, kind = struct.unpack_from(">I4s", data, at)
            body = data[at + 8 : at + 8 + length]
            (crc,) = struct.unpack_from(">I", data, at + 8 + length)
            if zlib.crc32(body, zlib.crc32(kind)) != crc:
                raise DecodeError(
                    f"expected a PNG chunk {kind!r} that fits its CRC, found another at byte {at}; replace the file"
                )
            if kind == b"IEND":
                break
            at += 12 + length
            if kind == b"IDAT":
                found += len(pixels.decompress(body, max(1, expected + 1 - found)))
    except (struct.error, zlib.error) as error:
        raise DecodeError(f"expected a whole PNG, found {error} at byte {at} of {len(data)}; replace the file") from error
    if found != expected or not pixels.eof:
        raise DecodeError(f"expected a PNG of {expected} bytes of pixels, found {found}; replace the file")


def _png_bytes(header: ImageHeader) -> int:
    """Return the size of the inflated pixels: a filter byte and packed samples for each row of each pass."""
    depth = header.bits * header.channels
    passes = _ADAM7 if header.interlaced else ((0, 0, 1, 1),)
    total = 0
    for left, top, step_x, step_y in passes:
        columns, rows = -(-(header.width - left) // step_x), -(-(header.height - top) // step_y)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * depth + 7) // 8)
    return total
