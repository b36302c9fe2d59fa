"""What a JPEG file says about itself, found by walking its markers from start to end without decoding it.

The walk proves that the file is whole: it reaches the end marker. What entropy-coded data decode to, only a decoder can say.
The native core walks ten times as fast and takes only what is whole; the walk here says what is wrong with the rest.
ITU-T T.81 annex B gives the syntax; EXIF 2.3 the orientation.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from . import kernel
from .errors import DecodeError
from .image_header import check_size
from .limits import DEFAULT_LIMITS, Limits

__all__ = ["JpegFacts", "exif_orientation", "scan"]

_SOI, _EOI, _SOS, _DRI, _DNL, _APP1, _APP14 = 0xD8, 0xD9, 0xDA, 0xDD, 0xDC, 0xE1, 0xEE
# Start-of-frame markers: all of 0xC0–0xCF except DHT (C4), JPG (C8) and DAC (CC).
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE: Final = frozenset((0x01, *range(0xD0, 0xD8)))
# The first marker after entropy-coded data: not a stuffed zero, a restart or a fill byte.
_AFTER_SCAN: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)
_SUBSAMPLING: Final[Mapping[tuple[tuple[int, int], ...], str]] = {
    ((1, 1), (1, 1), (1, 1)): "4:4:4",
    ((2, 1), (1, 1), (1, 1)): "4:2:2",
    ((2, 2), (1, 1), (1, 1)): "4:2:0",
    ((1, 2), (1, 1), (1, 1)): "4:4:0",
    ((4, 1), (1, 1), (1, 1)): "4:1:1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JpegFacts:
    """One JPEG file's header facts."""

    width: int
    height: int
    precision: int
    """Bits per sample: 8 or 12, lossless also 2–16."""
    process: int
    """Number n of its start-of-frame marker SOFn: 0 and 1 sequential, 2 progressive, 3 lossless, 9 and up arithmetic."""
    sampling: tuple[tuple[int, int], ...]
    """(horizontal, vertical) factors of each component."""
    scans: int
    orientation: int
    """EXIF orientation 1–8; 1 (upright) where none is stated. Stored pixels are as they are; nothing is rotated."""
    restart_interval: int
    """MCUs between restart markers, 0 for none."""
    adobe_transform: int | None
    """Colour transform of the Adobe segment: 0 none, 1 YCbCr, 2 YCCK; None without such a segment."""
    junk_bytes: int
    """Bytes between segments that belong to none."""
    trailing_bytes: int
    """Bytes after the end marker."""

    @property
    def components(self) -> int:
        """1 grey, 3 colour, 4 CMYK or YCCK."""
        return len(self.sampling)

    @property
    def progressive(self) -> bool:
        """Whether the picture is coded in passes over all of it."""
        return self.process in (2, 6, 10, 14)

    @property
    def arithmetic(self) -> bool:
        """Whether it is arithmetic-coded, which many decoders lack."""
        return self.process >= 9

    @property
    def subsampling(self) -> str:
        """ "4:2:0" and the like, "grey" for one component, factors such as "2x2,1x1,1x1,2x2" for what has no name."""
        if len(self.sampling) == 1:
            return "grey"
        return _SUBSAMPLING.get(self.sampling) or ",".join(f"{h}x{v}" for h, v in self.sampling)


@dataclass(slots=True)
class _Met:
    """What the walk has met so far."""

    frame: tuple[int, int, int, int, tuple[tuple[int, int], ...]] | None = None  # process, precision, height, width, sampling
    scans: int = 0
    orientation: int = 1
    restart: int = 0
    adobe: int | None = None
    junk: int = 0
    seen: list[int] = field(default_factory=list)


def scan(data: bytes | memoryview, *, limits: Limits = DEFAULT_LIMITS) -> JpegFacts:
    """Walk a JPEG file to its end marker and return its facts.

    Raises:
        DecodeError: it is cut short, empty, or no JPEG; the message says what was found.
    """
    facts = _native_walk(data) or _walk(bytes(data))
    check_size(facts.width, facts.height, limits)
    return facts


def _native_walk(data: bytes | memoryview) -> JpegFacts | None:
    """The facts of a whole file, None where the native core is not built or finds anything wrong."""
    found = kernel.jpeg_scan(data) if kernel.available() else None
    if found is None:
        return None
    width, height, precision, process, sampling, scans, orientation, restart, adobe, junk, trailing = found
    return JpegFacts(
        width=width,
        height=height,
        precision=precision,
        process=process,
        sampling=sampling,
        scans=scans,
        orientation=orientation,
        restart_interval=restart,
        adobe_transform=None if adobe < 0 else adobe,
        junk_bytes=junk,
        trailing_bytes=trailing,
    )


def _walk(data: bytes) -> JpegFacts:
    if data[:2] != b"\xff\xd8":
        raise DecodeError(f"expected a JPEG start 0xFFD8, found {_looks_like(data)}; replace the file, or reject it")
    walk, at = _Met(), 2
    while True:
        at, marker = _next_marker(data, at, walk)
        if marker == _EOI:
            break
        if marker == _SOI or marker in _BARE:
            walk.junk += 2
            continue
        if at + 2 > len(data):
            raise _cut_short(data, walk)
        (length,) = struct.unpack_from(">H", data, at)
        body = data[at + 2 : at + length]
        if length < 2 or at + length > len(data):
            raise _cut_short(data, walk)
        _segment(marker, body, walk)
        at += length
        if marker == _SOS:
            if walk.frame is None:
                raise DecodeError("expected a JPEG frame header before its first scan, found none; replace the file")
            found = _AFTER_SCAN.search(data, at)
            if found is None:
                raise _cut_short(data, walk)
            at = found.start()
    if walk.frame is None or not walk.scans:
        raise DecodeError(f"expected a JPEG with a picture, found {walk.scans} scans and no frame; replace the file")
    process, precision, height, width, sampling = walk.frame
    return JpegFacts(
        width=width,
        height=height,
        precision=precision,
        process=process,
        sampling=sampling,
        scans=walk.scans,
        orientation=walk.orientation,
        restart_interval=walk.restart,
        adobe_transform=walk.adobe,
        junk_bytes=walk.junk,
        trailing_bytes=len(data) - at,
    )


def _next_marker(data: bytes, at: int, walk: _Met) -> tuple[int, int]:
    """Return the byte after the next marker, and its code; bytes that are none are junk, which decoders skip too."""
    start = at
    while True:
        at = data.find(b"\xff", at)
        if at < 0:
            raise _cut_short(data, walk)
        after = at + 1
        while after < len(data) and data[after] == 0xFF:
            after += 1
        if after >= len(data):
            raise _cut_short(data, walk)
        if data[after]:
            walk.junk += at - start
            return after + 1, data[after]
        at = after + 1


def _segment(marker: int, body: bytes, walk: _Met) -> None:
    if marker in _FRAMES:
        if len(body) < 6 or len(body) < 6 + 3 * body[5]:
            raise DecodeError(f"expected a whole JPEG frame header, found {len(body)} bytes; replace the file")
        precision, height, width, count = struct.unpack_from(">BHHB", body)
        sampling = tuple((body[7 + 3 * n] >> 4, body[7 + 3 * n] & 15) for n in range(count))
        if count not in (1, 3, 4) or not all(1 <= side <= 4 for pair in sampling for side in pair):
            raise DecodeError(f"expected 1, 3 or 4 JPEG components, found {count} with factors {sampling}; replace the file")
        if walk.frame is None:
            walk.frame = marker - 0xC0, precision, height, width, sampling
    elif marker == _SOS:
        walk.scans += 1
    elif marker == _DRI and len(body) >= 2:
        (walk.restart,) = struct.unpack_from(">H", body)
    elif marker == _DNL and len(body) >= 2 and walk.frame is not None and walk.frame[2] == 0:
        (height,) = struct.unpack_from(">H", body)
        walk.frame = (*walk.frame[:2], height, *walk.frame[3:])
    elif marker == _APP1 and body[:6] == b"Exif\0\0":
        walk.orientation = exif_orientation(body[6:]) or walk.orientation
    elif marker == _APP14 and body[:5] == b"Adobe" and len(body) >= 12:
        walk.adobe = body[11]


def exif_orientation(tiff: bytes) -> int | None:
    """Return the orientation tag of EXIF data; None where there is none that makes sense."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 10:
        return None
    (at,) = struct.unpack_from(order + "I", tiff, 4)
    if at + 2 > len(tiff):
        return None
    (count,) = struct.unpack_from(order + "H", tiff, at)
    for entry in range(at + 2, min(at + 2 + 12 * count, len(tiff) - 11), 12):
        tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == 0x0112:
            return value if kind == 3 and 1 <= value <= 8 else None
    return None


def _cut_short(data: bytes, walk: _Met) -> DecodeError:
    where = f"after scan {walk.scans}" if walk.scans else "before its first scan"
    return DecodeError(
        f"expected a JPEG that ends with 0xFFD9, found it cut short {where} at {len(data)} bytes "
        f"(last bytes {data[-4:].hex()}); replace the file, or reject it"
    )


def _looks_like(data: bytes) -> str:
    """Describe bytes that should have been a JPEG."""
    head = data[:512].lstrip().lower()
    if not data:
        return "an empty file"
    if not any(data[:4096]):
        return f"{len(data)} bytes, the first {min(len(data), 4096)} of them zero"
    if head.startswith((b"<!doctype", b"<html", b"<?xml", b"<")):
        return f"markup ({data[:40]!r}), perhaps a server's error page"
    for start, name in (
        (b"\x89PNG", "a PNG"),
        (b"GIF8", "a GIF"),
        (b"RIFF", "a RIFF/WebP"),
        (b"BM", "a BMP"),
        (b"II*", "a TIFF"),
    ):
        if data.startswith(start):
            return f"{name} file"
    if data.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer: the file itself was never fetched"
    return f"0x{data[:4].hex().upper()}"
