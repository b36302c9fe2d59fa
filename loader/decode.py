"""Encoded images → pixels in batch memory: the job list, the protocol of whoever works it off, and a portable decoder.

One affine per image (source px → target px, pixel centres at +0.5) says crop, scale, flip and rotation, so that every
decoder gives the same picture for the same job. Nothing here knows sensors, batches or policy: a picture that fails
leaves a status and a message, and the caller decides.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final, Protocol, runtime_checkable

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from ..formats.image_header import image_size
from ..formats.integrity import payload_hash
from .fork_gate import gate
from .images import Images

__all__ = ["BROKEN", "MISMATCH", "OK", "Decoder", "DeviceDecoder", "ImageJobs", "PortableDecoder", "level_table"]

OK: Final = 0
BROKEN: Final = 2
MISMATCH: Final = 4
"""Statuses are those of `formats.kernel.Status`: from BROKEN on there is no picture; MISMATCH: not the bytes that were hashed."""

# Below this rest scale a plain bilinear step skips source pixels visibly; the image is then sampled twice as densely and
# averaged 2 × 2 (tests/loader/test_decode.py holds the PSNR against an area reference).
_BILINEAR_FROM: Final = 0.75
_JUNK: Final = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
_NO_END: Final = "Premature end of JPEG file"
_END: Final = b"\xff\xd9"
_MENDS: Final = 4
"""Harmless oddities of one file that are looked past; libjpeg names one at a time."""


@dataclass(slots=True)
class ImageJobs:
    """Images to decode into one array, all to one size and dtype."""

    data: Sequence[memoryview]
    """n encoded images, not yet checked."""
    hashes: NDArray[np.uint64]
    """(n,) xxh3-64 of each; whoever decodes compares them on the very bytes it reads."""
    codecs: Sequence[str]
    """"jpeg" or "png", each; or "pixels": `data` is a view (H, W, 3) of RGB that is decoded and checked already."""
    affine: NDArray[np.float64]
    """(n, 2, 3), source px → target px."""
    out: Any  # Any: an array, or a torch.Tensor, which is not imported here
    """(M, 3, H, W) or (M, H, W, 3) view of batch memory; bfloat16 as uint16 bits. With a `DeviceDecoder`: a tensor of its device,
    whose bfloat16 is torch's."""
    index: NDArray[np.int64]
    """(n,): which of the M places each image goes to."""
    look: Images
    """How pixels are written: dtype, mean, std, layout, and the level that fills what lies outside the source."""
    messages: dict[int, str] = field(default_factory=dict)
    """Filled in by the decoder: job → what was wrong with it."""


class Decoder(Protocol):
    """Works off image jobs; called from several threads at once."""

    name: str
    """For reports: "portable", "native" …"""
    whole_step: bool
    """True: wants all images of a step in one call and spreads them over threads of its own."""

    def start(self, threads: int) -> None:
        """Iteration is about to start, and may use `threads` decode threads; harmless when repeated."""
        ...

    def decode(self, jobs: ImageJobs) -> NDArray[np.int8]:
        """Decode every job into its place and return a status each; messages go into `jobs.messages`."""
        ...


@runtime_checkable
class DeviceDecoder(Decoder, Protocol):
    """A decoder whose pictures stay on a device: batches hold them there, and no host memory is taken for them."""

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:  # Any: a torch.Tensor; nothing here imports torch
        """Return zeroed memory on the device; jobs that write to it name it as `out`. `dtype` is one of `Images`."""
        ...


@lru_cache(maxsize=64)
def level_table(look: Images) -> NDArray[Any]:  # Any: of the look's dtype
    """Return (3, 256): the output value of each 8-bit level of each channel; bfloat16 as its bits in uint16."""
    levels = np.arange(256, dtype=np.float64)
    if look.dtype == "uint8":
        return np.asarray(np.tile(levels.astype(np.uint8), (3, 1)))
    values = (levels - np.asarray(look.mean)[:, None]) / np.asarray(look.std)[:, None]
    if look.dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        # Round to nearest, ties to even, as torch does; no level table holds NaN.
        return np.asarray(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))
    return np.asarray(values.astype(look.dtype))


class PortableDecoder:
    """Decodes with simplejpeg and OpenCV; needs no compiled part of ours.

    JPEGs are decoded at 1/2, 1/4 or 1/8 where the target allows, into memory that each thread reuses; what scale is left
    is done by one warp. OpenCV's own thread pool is switched off for the process, because its threads and ours would
    compete for the same cores.
    """

    name = "portable"
    whole_step = False

    def __init__(self) -> None:
        cv2.setNumThreads(1)
        self._local = threading.local()

    def start(self, threads: int) -> None:
        """Do nothing: the threads are those that call."""

    def decode(self, jobs: ImageJobs) -> NDArray[np.int8]:
        """Decode every job into its place and return a status each."""
        status = np.zeros(len(jobs.data), np.int8)
        table = level_table(jobs.look)
        for job in range(len(jobs.data)):
            if jobs.codecs[job] != "pixels" and payload_hash(jobs.data[job]) != int(jobs.hashes[job]):
                status[job] = MISMATCH
                continue
            try:
                with gate.inside():
                    self._one(jobs, job, table)
            except (ValueError, cv2.error) as error:  # DecodeError is a ValueError, as are simplejpeg's
                status[job] = BROKEN
                jobs.messages[job] = str(error).strip()
        return status

    def _one(self, jobs: ImageJobs, job: int, table: NDArray[Any]) -> None:
        data, affine = jobs.data[job], jobs.affine[job]
        channels_first = jobs.look.layout == "chw"
        height, width = jobs.out.shape[2:] if channels_first else jobs.out.shape[1:3]
        pixels = np.asarray(data) if jobs.codecs[job] == "pixels" else None
        size = image_size(data, jobs.codecs[job], most_bits=8) if pixels is None else (pixels.shape[1], pixels.shape[0])
        scale_x, scale_y = _scales(affine)
        if pixels is not None:
            picture, shrunk = pixels, 1
        elif jobs.codecs[job] == "jpeg":
            picture, shrunk = self._jpeg(data, size, max(scale_x, scale_y))
        else:
            picture, shrunk = _opencv(data), 1
        rest = affine.copy()
        rest[:, :2] *= shrunk
        for axis, scale in enumerate((scale_x * shrunk, scale_y * shrunk)):
            while scale * 2 <= 1 and picture.shape[1 - axis] >= 2:
                picture, scale = _halve(picture, axis), scale * 2
                rest[:, axis] *= 2
        target = self._warp(picture, rest, width, height, jobs.look.fill)
        if _is_upright(affine) and target is not pixels:  # pixels as they are have no outside, and are not ours to write to
            _paint_outside(target, affine, size, jobs.look.fill)
        place = jobs.out[jobs.index[job]]
        for channel in range(3):
            plane = cv2.extractChannel(target, channel, self._scratch("plane", (height, width)))
            np.take(
                table[channel],
                plane,
                out=place[channel] if channels_first else place[..., channel],
                mode="clip",  # levels are 0–255 by type; "raise" would buffer the output
            )

    def _jpeg(self, data: memoryview, size: tuple[int, int], scale: float) -> tuple[NDArray[np.uint8], int]:
        """Return the picture at the smallest of 1, 1/2, 1/4, 1/8 that still has `scale`, and how much it was shrunk."""
        width, height = size
        shrink = 1
        while shrink < 8 and scale * shrink * 2 <= 1:
            shrink *= 2
        small = (-(-height // shrink), -(-width // shrink))
        decode = partial(
            simplejpeg.decode_jpeg,
            colorspace="RGB",
            min_height=small[0] if shrink > 1 else 0,
            min_width=small[1] if shrink > 1 else 0,
            buffer=self._scratch("jpeg", (*small, 3)),
        )
        for _ in range(_MENDS):
            try:
                return decode(data), shrink
            except ValueError as error:
                mended = _mended(data, str(error))
                if mended is None:
                    raise
                data = memoryview(mended)
        return decode(data), shrink

    def _warp(
        self, picture: NDArray[np.uint8], affine: NDArray[np.float64], width: int, height: int, fill: int
    ) -> NDArray[np.uint8]:
        if np.array_equal(affine, [[1, 0, 0], [0, 1, 0]]) and picture.shape[:2] == (height, width):
            return picture
        dense_x, dense_y = (2 if scale < _BILINEAR_FROM else 1 for scale in _scales(affine))
        matrix = affine * [[dense_x], [dense_y]]
        # OpenCV counts pixel centres as whole numbers; ours are at +0.5.
        matrix[:, 2] += matrix[:, :2] @ (0.5, 0.5) - 0.5
        shape = (height * dense_y, width * dense_x, 3)
        warped = cv2.warpAffine(
            picture,
            matrix,
            (shape[1], shape[0]),
            dst=self._scratch("warp", shape),
            flags=cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_REPLICATE if _is_upright(affine) else cv2.BORDER_CONSTANT,
            borderValue=(fill, fill, fill),
        )
        if dense_x * dense_y > 1:
            half = self._scratch("half", (height, width, 3))
            warped = cv2.resize(warped, (width, height), dst=half, interpolation=cv2.INTER_AREA)
        return np.asarray(warped)

    def _scratch(self, purpose: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return this thread's memory for `purpose`, kept from job to job: fresh pages cost more than the decode saves."""
        need = int(np.prod(shape))
        held: NDArray[np.uint8] | None = getattr(self._local, purpose, None)
        if held is None or held.size < need:
            held = np.empty(need, np.uint8)
            setattr(self._local, purpose, held)
        return held[:need].reshape(shape)


def _mended(data: memoryview, said: str) -> bytes | None:
    """Return a JPEG without what a strict decoder complained of, if pixels do not depend on it; what else is wrong shows then."""
    if _NO_END in said:
        return bytes(data) + _END  # where pixels are missing, too, the decoder says something else now
    junk = _JUNK.search(said)
    if junk is None:
        return None
    whole, count = bytes(data), int(junk[1])
    if bytes.fromhex(junk[2]) == _END[1:]:
        end = whole.rindex(_END)
        return whole[: end - count] + whole[end:]
    at = 2
    while whole[at : at + 1] == b"\xff":  # from segment to segment, up to what is none
        at += 2 + int.from_bytes(whole[at + 2 : at + 4], "big")
    return whole[:at] + whole[at + count :]


def _opencv(data: memoryview) -> NDArray[np.uint8]:
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if picture is None:
        raise ValueError("the PNG decoder gave no picture")
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))


def _is_upright(affine: NDArray[np.float64]) -> bool:
    return bool(affine[0, 1] == 0 == affine[1, 0])


def _scales(affine: NDArray[np.float64]) -> tuple[float, float]:
    """Return how many target pixels a source pixel makes along its x and y axis; with rotation, the larger for both."""
    if _is_upright(affine):
        return abs(float(affine[0, 0])), abs(float(affine[1, 1]))
    largest = float(np.linalg.svd(affine[:, :2], compute_uv=False)[0])
    return largest, largest


def _halve(picture: NDArray[np.uint8], axis: int) -> NDArray[np.uint8]:
    """Average neighbouring pixels along x (axis 0) or y (axis 1); an odd last one is left out."""
    height, width = picture.shape[:2]
    size = (width // 2, height) if axis == 0 else (width, height // 2)
    even = picture[:, : width & ~1] if axis == 0 else picture[: height & ~1]
    return np.asarray(cv2.resize(even, size, interpolation=cv2.INTER_AREA))


def _paint_outside(target: NDArray[np.uint8], affine: NDArray[np.float64], size: tuple[int, int], fill: int) -> None:
    """Fill target pixels whose centre lies outside the source; for affines without rotation."""
    ends_x = sorted((affine[0, 2], affine[0, 0] * size[0] + affine[0, 2]))
    ends_y = sorted((affine[1, 2], affine[1, 1] * size[1] + affine[1, 2]))
    # A pixel i is inside when its centre i + 0.5 is; 1e-6 px keeps rounding from opening a rim.
    left, right = (int(np.ceil(end - 0.5 + slack)) for end, slack in zip(ends_x, (-1e-6, 1e-6), strict=True))
    top, bottom = (int(np.ceil(end - 0.5 + slack)) for end, slack in zip(ends_y, (-1e-6, 1e-6), strict=True))
    target[: max(top, 0)] = fill
    target[max(bottom, 0) :] = fill
    target[:, : max(left, 0)] = fill
    target[:, max(right, 0) :] = fill
