"""The size of an encoded image, read from its first bytes: what is needed to place it before it is decoded.

Only the header is walked; whether the rest is sound is for the decoder to say.
"""

from __future__ import annotations

import struct
from typing import Final

from ..formats import DecodeError, UsageError
from ..formats.limits import DEFAULT_LIMITS, Limits

__all__ = ["image_size"]

_PNG: Final = b"\x89PNG\r\n\x1a\n"
# Start-of-frame markers: all of 0xC0–0xCF except DHT (C4), JPG (C8) and DAC (CC).
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE: Final = frozenset((0x01, *range(0xD0, 0xD8)))  # markers without a length


def image_size(data: memoryview | bytes, codec: str, limits: Limits = DEFAULT_LIMITS) -> tuple[int, int]:
    """Return (width, height) in pixels; DecodeError says what was found instead (the caller adds whose it is)."""
    if codec == "jpeg":
        width, height = _jpeg_size(data)
    elif codec == "png":
        if len(data) < 25 or bytes(data[:8]) != _PNG:
            raise DecodeError(f"expected a PNG signature, found {bytes(data[:8])!r}")
        width, height, depth = struct.unpack_from(">IIB", data, 16)
        if depth > 8:
            raise DecodeError(f"expected a PNG of 8 bits a channel, found {depth}: a batch of levels would lose the lower ones")
    else:
        raise UsageError(f"the size of images of codec {codec!r} is not in their bytes")
    if width < 1 or height < 1:
        raise DecodeError(f"expected a picture, found {width} × {height} px")
    if width > limits.image_side or height > limits.image_side or width * height > limits.image_pixels:
        raise DecodeError(
            f"expected at most {limits.image_pixels} px and sides up to {limits.image_side}, found {width} × {height}; "
            "raise Limits.image_pixels or image_side if that is meant"
        )
    return width, height


def _jpeg_size(data: memoryview | bytes) -> tuple[int, int]:
    end = len(data)
    if end < 4 or data[0] != 0xFF or data[1] != 0xD8:
        raise DecodeError(f"expected a JPEG start 0xFFD8, found 0x{bytes(data[:2]).hex().upper() or ' (no bytes)'}")
    at = 2
    while at + 4 <= end:
        if data[at] != 0xFF:
            raise DecodeError(f"expected a JPEG marker at byte {at}, found 0x{data[at]:02X}")
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in _BARE:
            at += 2
            continue
        if marker in _FRAMES:
            if at + 9 > end:
                break
            return (data[at + 7] << 8) | data[at + 8], (data[at + 5] << 8) | data[at + 6]
        if marker in (0xD9, 0xDA):
            raise DecodeError(f"expected a JPEG frame header before byte {at}, found marker 0xFF{marker:02X}")
        at += 2 + ((data[at + 2] << 8) | data[at + 3])
    raise DecodeError(f"expected a JPEG frame header, found the end of the data after {end} bytes")
