"""What the first bytes of an encoded image say: its codec, size, and bits a channel. The one place that reads headers.

Only the header is walked; whether the rest is sound is for `jpeg.scan`, `image_check` or a decoder to say.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal

from .errors import DecodeError, UsageError
from .limits import DEFAULT_LIMITS, Limits

__all__ = ["ImageHeader", "check_size", "codec_of", "image_header", "image_size"]

_JPEG: Final = b"\xff\xd8"
_PNG: Final = b"\x89PNG\r\n\x1a\n"
# Start-of-frame markers: all of 0xC0–0xCF except DHT (C4), JPG (C8) and DAC (CC).
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE: Final = frozenset((0x01, *range(0xD0, 0xD8)))  # markers without a length
# Channels of each PNG colour type: grey, RGB, palette, grey with alpha, RGB with alpha.
_PNG_CHANNELS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Size and depth of one encoded image."""

    width: int
    height: int
    bits: int
    """Bits of one channel of one pixel."""
    channels: int
    """Channels as stored; 1 for a PNG with a palette."""
    colour_type: int = 0
    """PNG only: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGB and alpha."""
    interlaced: bool = False
    """PNG only: Adam7."""


def codec_of(data: bytes | memoryview) -> Literal["jpeg", "png"] | None:
    """Return what the bytes start like, None for neither."""
    start = bytes(data[:8])
    return "jpeg" if start[:2] == _JPEG else "png" if start == _PNG else None


def image_size(data: bytes | memoryview, codec: str, limits: Limits = DEFAULT_LIMITS, *, most_bits: int = 16) -> tuple[int, int]:
    """Return (width, height) in pixels, refusing more than `most_bits` a channel; errors are those of `image_header`."""
    found = image_header(data, codec, limits)
    if found.bits > most_bits:
        raise DecodeError(
            f"expected {'an' if most_bits == 8 else 'a'} image of at most {most_bits} bits a channel, found {found.bits}: "
            f"in {most_bits} bits it would lose the lower ones; leave the sensor out, or read it with PackedSet.timeline"
        )
    return found.width, found.height


def image_header(data: bytes | memoryview, codec: str, limits: Limits = DEFAULT_LIMITS) -> ImageHeader:
    """Return the header of a JPEG or PNG.

    Raises:
        DecodeError: there is none, or its size is above the limits; says what was found (the caller adds whose it is).
    """
    if codec == "jpeg":
        found = _jpeg(data)
    elif codec == "png":
        found = _png(data)
    else:
        raise UsageError(f"the size of images of codec {codec!r} is not in their bytes")
    check_size(found.width, found.height, limits)
    return found


def check_size(width: int, height: int, limits: Limits = DEFAULT_LIMITS) -> None:
    """Refuse an image without pixels, or with more than the limits allow; called before anything is allocated."""
    if width < 1 or height < 1:
        raise DecodeError(f"expected a picture, found {width} × {height} px; replace the file")
    if width > limits.image_side or height > limits.image_side or width * height > limits.image_pixels:
        raise DecodeError(
            f"expected at most {limits.image_pixels} px and sides up to {limits.image_side}, found {width} × {height}; "
            "raise Limits.image_pixels or image_side if that is meant"
        )


def _png(data: bytes | memoryview) -> ImageHeader:
    if len(data) < 33 or bytes(data[:8]) != _PNG or bytes(data[12:16]) != b"IHDR":
        raise DecodeError(
            f"expected a PNG signature and header, found {bytes(data[:8])!r} and {len(data)} bytes; replace the file"
        )
    width, height, bits, colour, _, _, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    if colour not in _PNG_CHANNELS or bits not in (1, 2, 4, 8, 16):
        raise DecodeError(f"expected a PNG of a known kind, found colour type {colour} with {bits} bits; replace the file")
    return ImageHeader(width, height, bits, _PNG_CHANNELS[colour], colour, bool(interlace))


def _jpeg(data: bytes | memoryview) -> ImageHeader:
    end = len(data)
    if end < 4 or data[0] != 0xFF or data[1] != 0xD8:
        raise DecodeError(f"expected a JPEG start 0xFFD8, found 0x{bytes(data[:2]).hex().upper() or ' (no bytes)'}")
    at = 2
    while at + 4 <= end:
        if data[at] != 0xFF or data[at + 1] == 0:  # bytes of no segment, which decoders skip, too
            at += 1
            skip = bytes(data[at:]).find(b"\xff")
            at = end if skip < 0 else at + skip
            continue
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in _BARE:
            at += 2
            continue
        if marker in _FRAMES:
            if at + 10 > end:
                break
            height, width = (data[at + 5] << 8) | data[at + 6], (data[at + 7] << 8) | data[at + 8]
            return ImageHeader(width, height, data[at + 4], data[at + 9])
        if marker in (0xD9, 0xDA):
            raise DecodeError(f"expected a JPEG frame header before byte {at}, found marker 0xFF{marker:02X}")
        at += 2 + ((data[at + 2] << 8) | data[at + 3])
    raise DecodeError(f"expected a JPEG frame header, found the end of the data after {end} bytes")
