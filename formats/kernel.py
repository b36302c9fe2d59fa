"""The native core, typed: one call a step hands all its images and copies to native threads, with no Python in between.

A job says where encoded bytes lie, which affine maps source pixels to target pixels (centres at +0.5) and where in the
batch the picture goes; the caller keeps that memory alive and the core checks nothing about it. Each job ends with a
`Status`; a failed one leaves zeros and a message, and its neighbours untouched. Where the core was not built,
`available()` is False and says so once; callers then take their pure-Python path.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from types import ModuleType
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import DecodeError, HeadwayError, StalledError, UsageError

__all__ = [
    "COPY",
    "HOME",
    "IMAGE",
    "SPEC",
    "Status",
    "Step",
    "Take",
    "Target",
    "address",
    "addresses",
    "available",
    "copy_jobs",
    "image_jobs",
    "jpeg_scan",
    "locate",
    "points_decode",
    "set_threads",
    "shuffled",
    "submit",
    "take",
    "threads",
    "unavailable",
    "xxh3_64",
]

log = logging.getLogger("headway")

Ints = NDArray[np.int64]

_ABI: Final = 6
_MESSAGE_BYTES: Final = 128

# The structs of native/core.h, field by field; `_load` compares the sizes.
SPEC: Final = np.dtype(
    [
        ("width", "i4"), ("height", "i4"), ("layout", "i4"), ("dtype", "i4"), ("row_bytes", "i8"), ("plane_bytes", "i8"),
        ("scale", "f4", 3), ("offset", "f4", 3), ("pad", "f4", 3),
        ("max_scans", "i4"), ("max_pixels", "i8"), ("max_bytes", "i8"), ("max_cpu_ms", "i8"),
    ],
    align=True,
)  # fmt: skip
IMAGE: Final = np.dtype(
    [
        ("data", "u8"), ("length", "u8"), ("hash", "u8"), ("out", "u8"),
        ("affine", "f8", (2, 3)), ("spec", "u4"), ("flags", "u4"),
    ],
    align=True,
)  # fmt: skip
"""An image job: `data`, `length` and `out` are addresses and bytes; `spec` an index into the call's targets."""
COPY: Final = np.dtype(
    [
        ("source", "u8"), ("length", "u8"), ("hash", "u8"), ("out", "u8"), ("room", "u8"), ("fill", "u4"), ("flags", "u4"),
    ],
    align=True,
)  # fmt: skip
"""A copy job: `length` bytes to `out`, whose `room` bytes are filled up with `fill`."""

HOME: Final = np.dtype([("base", "u8"), ("good", "u8"), ("file", "u8"), ("bytes", "u8"), ("sums", "u8")])
"""A column in one shard: the address of its first row (0: not open), and those of flags, first byte, size and sums of the file
whose chunks are compared when a row in them is first taken (`good` 0: there is nothing to compare)."""

CHECK_HASH: Final = 1
"""Flag of both kinds of job: `hash` is the xxh3-64 of the bytes; compare it on the very buffer that is used."""
FULL_SIZE: Final = 2
"""Flag of an image job: no DCT scaling, every source pixel counts (slower; the reference path of the tests)."""
PLAIN_HUFFMAN: Final = 4
"""Flag of an image job: libjpeg-turbo's own entropy decoder from the start (slower, same pictures; for the tests)."""

_DTYPES: Final = {"uint8": (0, 1), "float16": (1, 2), "bfloat16": (2, 2), "float32": (3, 4)}


class Status(IntEnum):
    """How a job ended. From CORRUPT to NO_MEMORY its output is zeros."""

    PENDING = -1
    OK = 0
    WARNING = 1
    """Decoded whole; the message says what was odd (bytes between segments, no end-of-image marker)."""
    CORRUPT = 2
    """Not decodable, or data missing."""
    LIMIT = 3
    """More pixels, scans, memory or CPU time than allowed."""
    MISMATCH = 4
    """The bytes are not those the hash was taken of."""
    REQUEST = 5
    """The job cannot be meant: a singular affine, a copy into too little room."""
    NO_MEMORY = 6
    CANCELLED = 7
    """Not begun; its output is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How one group of images is to look in the batch, and what an image may cost."""

    width: int
    height: int
    layout: Literal["chw", "hwc"] = "chw"
    dtype: Literal["uint8", "float16", "bfloat16", "float32"] = "uint8"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Per channel, in levels 0–255: a stored value is (level − mean) / std."""
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    pad: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Level of target pixels whose centre lies outside the image, before mean and std."""
    max_pixels: int = 64_000_000
    """Declared width × height of a source image."""
    max_scans: int = 100
    """Scans of a progressive image; encoders write about ten."""
    max_bytes: int = 256 << 20
    """Working memory of one image: a progressive file's coefficients, a rotation's canvas."""
    max_cpu_ms: int = 10_000
    """CPU time of one image."""

    def __post_init__(self) -> None:
        if not (1 <= self.width <= 65535 and 1 <= self.height <= 65535):
            raise UsageError(f"Target: width and height must be 1 to 65535, found {self.width} × {self.height}")
        if self.dtype not in _DTYPES or self.layout not in ("chw", "hwc"):
            raise UsageError(f"Target: unknown dtype {self.dtype!r} or layout {self.layout!r}")
        if not all(value > 0 for value in self.std):
            raise UsageError(f"Target: std must be above 0, found {self.std!r}")

    @property
    def image_bytes(self) -> int:
        """Bytes of one picture in the batch."""
        return self.width * self.height * 3 * _DTYPES[self.dtype][1]

    def spec(self) -> NDArray[np.void]:
        """Return the record the core reads, for pictures without gaps between rows."""
        spec = np.zeros(1, SPEC)
        code, size = _DTYPES[self.dtype]
        spec["width"], spec["height"], spec["dtype"] = self.width, self.height, code
        spec["layout"] = int(self.layout == "hwc")
        spec["row_bytes"] = self.width * size * (3 if self.layout == "hwc" else 1)
        spec["plane_bytes"] = self.width * self.height * size
        mean, std = np.asarray(self.mean, np.float64), np.asarray(self.std, np.float64)
        spec["scale"], spec["offset"], spec["pad"] = 1 / std, -mean / std, self.pad
        spec["max_pixels"], spec["max_scans"] = self.max_pixels, self.max_scans
        spec["max_bytes"], spec["max_cpu_ms"] = self.max_bytes, self.max_cpu_ms
        return spec


class Step:
    """One batch's jobs on their way; dropping it cancels what has not begun and waits for what has, up to 20 s.

    What a thread hangs in for longer (a mapped file whose server is gone) keeps its memory for good.
    """

    __slots__ = ("_handle", "_messages", "status")

    def __init__(self, handle: Any, status: NDArray[np.int8], messages: NDArray[np.uint8]) -> None:  # Any: native.Step
        self._handle = handle
        self._messages = messages
        self.status = status
        """int8 (jobs,), images first, then copies: a `Status` each, complete once `wait` returns True."""

    def wait(self, timeout_s: float, *, help: bool = False) -> bool:
        """Return True when all jobs are done, False if `timeout_s` passes first; Ctrl-C interrupts within 0.1 s.

        With `help` the caller does jobs that no thread has begun.
        """
        return bool(self._handle.wait(timeout_s, help))

    def is_done(self) -> bool:
        """Tell whether all jobs are done."""
        return bool(self._handle.is_done())

    def cancel(self) -> None:
        """Drop the jobs not yet begun; return when none is running.

        Raises:
            StalledError: one has been running for 20 s.
        """
        if not self._handle.cancel():
            raise StalledError(
                f"cannot cancel a step of {len(self.status)} decode jobs: one has run for 20 s; its thread hangs in a read: see "
                "whether the files of the set are still there (network mounts)"
            )

    def message(self, job: int) -> str:
        """Return what the decoder said about a job; empty if it had nothing to say."""
        return bytes(self._messages[job]).split(b"\0", 1)[0].decode("utf-8", "replace")

    def times(self) -> tuple[int, int, int, int]:
        """Return (submitted, started, finished, busy) in monotonic ns; `busy` sums over threads."""
        submitted, started, finished, busy = self._handle.times()
        return submitted, started, finished, busy

    def raise_first(self) -> None:
        """Raise DecodeError for the first job that left no picture."""
        for job in np.flatnonzero(self.status >= Status.CORRUPT):
            status, said = Status(int(self.status[job])).name.lower(), self.message(int(job)) or "no message"
            raise DecodeError(f"cannot finish job {int(job)} of {len(self.status)}: {status}, {said}")


def image_jobs(count: int) -> NDArray[np.void]:
    """Return `count` zeroed image jobs to fill in by column."""
    return np.zeros(count, IMAGE)


def copy_jobs(count: int) -> NDArray[np.void]:
    """Return `count` zeroed copy jobs to fill in by column."""
    return np.zeros(count, COPY)


def address(array: NDArray[Any]) -> int:  # Any: whatever lies there
    """Return where an array's first byte lies in memory."""
    return int(array.__array_interface__["data"][0])


def addresses(buffers: Sequence[Any]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:  # Any: bytes, memoryview, array
    """Return the addresses and sizes of contiguous buffers; the caller keeps them alive until their step is done."""
    views = [np.frombuffer(buffer, np.uint8) if len(buffer) else _NOTHING for buffer in buffers]
    starts = [address(view) for view in views]
    return np.array(starts, np.uint64), np.array([view.size for view in views], np.uint64)


def submit(
    targets: Sequence[Target] | NDArray[np.void],
    images: NDArray[np.void],
    copies: NDArray[np.void] | None = None,
    *,
    keep: object = None,
) -> Step:
    """Queue one step's jobs and return at once; steps are worked off in the order they come.

    `keep` is held until the step is dropped: pass whatever owns the memory that the jobs' addresses point into.
    """
    native = _load()
    if native is None:
        raise HeadwayError(f"cannot submit decode jobs: {_reason()}; check kernel.available() first")
    specs = (
        targets
        if isinstance(targets, np.ndarray)
        else np.concatenate([np.zeros(0, SPEC), *(target.spec() for target in targets)])
    )
    copies = _NO_COPIES if copies is None else copies
    if specs.dtype != SPEC or images.dtype != IMAGE or copies.dtype != COPY:
        raise UsageError(f"submit: expected SPEC, IMAGE and COPY records, found {specs.dtype}, {images.dtype}, {copies.dtype}")
    jobs = len(images) + len(copies)
    status, messages = np.empty(jobs, np.int8), np.zeros((jobs, _MESSAGE_BYTES), np.uint8)
    return Step(native.submit(specs, images, copies, status, messages, keep), status, messages)


def set_threads(count: int) -> int:
    """Set how many decode threads this process has and return how many run; 0: whoever waits does the work.

    Returns at once: threads too many end after the job they are at. Shared by all loaders of the process. A forked child
    starts its own at its first submit.
    """
    native = _load()
    return 0 if native is None else int(native.set_threads(count))


def threads() -> int:
    """Return how many decode threads run."""
    native = _load()
    return 0 if native is None else int(native.threads())


def xxh3_64(data: Any) -> int:  # Any: a contiguous buffer
    """Return the xxh3-64 of a buffer, taken without the interpreter lock."""
    native = _load()
    if native is not None:
        return int(native.xxh3_64(data))
    import xxhash

    return int(xxhash.xxh3_64_intdigest(data))


def locate(starts: Ints, offsets: Ints, hints: Ints, shift: int, numbers: Ints) -> tuple[Ints, Ints, int]:
    """Return (part, row in the part's shard, how many) of `numbers` (n,); the first that no part holds ends the count.

    Part k holds the numbers [starts[k], starts[k + 1]), in its shard from offsets[k] on; hints[n >> shift] is a part at or
    before the one that holds n.
    """
    native = _load()
    assert native is not None, "callers ask available() first"
    numbers = np.ascontiguousarray(numbers)
    part, row = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
    return part, row, int(native.locate(starts, offsets, hints, numbers, part, row, shift))


class Take(Protocol):
    """Rows on their way."""

    def wait(self, timeout_s: float) -> bool:
        """Return True when all rows are there, False if `timeout_s` passes first; IndexError for a row that there is not."""
        ...

    def is_done(self) -> bool:
        """Tell whether nobody works on them any more."""
        ...


def take(
    counts: Ints,
    homes: tuple[NDArray[np.void], ...],
    shard: Ints,
    row: Ints,
    outs: tuple[NDArray[Any], ...],  # Any: dtypes by schema
    *,
    later: bool = False,
) -> Take:
    """Fill each of `outs` (n, …), contiguous, with rows (shard, row) of its column, without the interpreter lock.

    Args:
        counts: (S,) rows of each shard.
        homes: for each of `outs`, (S,) records `HOME`.
        later: leave it to the decode threads and return at once; whoever waits does what they have not begun.

    The caller keeps what `homes` point to alive; indices are compared with `counts`, chunks with their sums.

    Raises:
        IndexError: a row that there is not, of a shard that is not open, or in a damaged chunk (`later`: raised by `wait`).
    """
    native = _load()
    assert native is not None, "callers ask available() first"
    taken: Take = native.take(counts, homes, shard, row, outs, later)
    return taken


def shuffled(line: tuple[int, int, int, int], short_end: int, key: int, permutations: NDArray[np.uint8], positions: Ints) -> Ints:
    """Return the item at each position of a shuffled line, as loader/shuffled.py defines it, for that file alone.

    `line` is (items, slots, block_items, span_blocks); `permutations` (256, block_items) where these are at most 64.
    """
    native = _load()
    assert native is not None, "callers ask available() first"
    positions = np.ascontiguousarray(positions)
    items = np.empty_like(positions)
    native.shuffled(line, short_end, key, permutations, positions, positions.shape[-1], items)
    return items


def points_decode(data: Any, columns: NDArray[Any], points: int) -> None:  # Any: a contiguous buffer
    """Decode one payload of points to the addresses in `columns`, records of `points.TARGET`; for points.py alone.

    Raises:
        ValueError: the payload is damaged; the message says how.
    """
    native = _load()
    assert native is not None, "callers ask available() first"
    native.points_decode(data, columns, points)


def jpeg_scan(data: Any) -> tuple[Any, ...] | None:  # Any: a contiguous buffer; jpeg.py names the facts
    """Return the facts of a JPEG that is whole by its markers, None for any other; for jpeg.py alone."""
    native = _load()
    assert native is not None, "callers ask available() first"
    facts: tuple[Any, ...] | None = native.jpeg_scan(data)
    return facts


def available() -> bool:
    """Return whether the core can be used; the first time it cannot, one log line says why."""
    return _load() is not None


def unavailable() -> str:
    """Return why the core cannot be used and what would change that; "" where it can."""
    return _find()[1]


_NOTHING: Final = np.zeros(1, np.uint8)[:0]
_NO_COPIES: Final = np.zeros(0, COPY)


@lru_cache(maxsize=1)
def _find() -> tuple[ModuleType | None, str]:
    if os.environ.get("HEADWAY_NATIVE") == "0":
        return None, "HEADWAY_NATIVE=0 is set"
    try:
        from . import native
    except ImportError as error:
        return None, f"{error}"
    # Without the built file the folder of sources is what the import finds.
    if getattr(native, "__file__", None) is None:
        return None, "not built; install gcc, libjpeg-dev (2.1 or newer) and libzstd-dev, then reinstall headway"
    found = (native.ABI, native.SPEC_BYTES, native.IMAGE_BYTES, native.COPY_BYTES, native.MESSAGE_BYTES)
    if found != (_ABI, SPEC.itemsize, IMAGE.itemsize, COPY.itemsize, _MESSAGE_BYTES):
        return None, f"built for another version of headway ({found}); reinstall headway"
    # Threads must be gone before the interpreter takes the memory they write to.
    atexit.register(_close, native)
    return native, ""


def _close(native: ModuleType) -> None:
    left = native.close()
    if left:
        log.warning("%d decode threads hang in a read (network mounts?); the process ends without waiting for them", left)


@lru_cache(maxsize=1)
def _load() -> ModuleType | None:
    native, reason = _find()
    if native is None and os.environ.get("HEADWAY_NATIVE") != "0":
        log.warning("the native core is not in use (%s); the pure-Python path is slower", reason)
    return native


def _reason() -> str:
    return f"the native core is not in use ({_find()[1]})"
