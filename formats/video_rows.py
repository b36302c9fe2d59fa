"""Frames of a video sensor by global row: finds the packets a row needs, checks their hashes, and decodes them.

Rows asked for together share the work: a group of pictures is decoded once. Each thread has a decoder of its own, so one
`VideoRows` serves several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .limits import Limits
from .video_packets import PacketDecoder, VideoHeader

if TYPE_CHECKING:
    from .timeline import Timeline

__all__ = ["VideoRows"]


class VideoRows:
    """Decodes rows of one video sensor."""

    def __init__(self, timeline: Timeline, header_of: Callable[[int], VideoHeader], limits: Limits) -> None:
        """`header_of` returns the header of a drive."""
        self._timeline = timeline
        self._header_of = header_of
        self._limits = limits
        self._local = threading.local()

    def read_set(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return every row whose packet decoding `rows` reads, ascending."""
        wanted = np.unique(rows)
        spans = [np.arange(start, stop) for start, stop in zip(*self._spans(wanted), strict=True)]
        return np.unique(np.concatenate(spans)) if spans else np.empty(0, np.int64)

    def frames(self, rows: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Return the frames of `rows`, in their order, uint8 (H, W, 3) RGB.

        Raises:
            CorruptShard: a packet is not the one that was packed.
            DecodeError: the packets do not decode.
        """
        wanted = np.unique(rows)
        starts, stops = self._spans(wanted)
        found: dict[int, NDArray[np.uint8]] = {}
        for start in np.unique(starts).tolist():
            group = starts == start
            found |= self._group(start, int(stops[group].max()), wanted[group])
        return [found[row] for row in rows.tolist()]

    def _spans(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        take = self._timeline.take
        return rows - take("gop_rows", rows), rows + take("gop_ahead", rows) + 1

    def _group(self, start: int, stop: int, wanted: NDArray[np.int64]) -> dict[int, NDArray[np.uint8]]:
        """Decode wanted rows that all start at key frame row `start`; packets after the last of them are not read."""
        order = self._timeline.take("video_order", np.arange(start, stop))
        last = order[wanted - start].max()
        chosen = [at for at in np.argsort(order).tolist() if order[0] <= order[at] <= last]
        packets = [(start + at, self._timeline.payload(start + at)) for at in chosen]
        return self._decoder(start).frames(packets, set(wanted.tolist()))

    def _decoder(self, row: int) -> PacketDecoder:
        """Return this thread's decoder, made anew where a drive's header differs from the last one's."""
        drive = int(np.searchsorted(self._timeline.starts, row, side="right")) - 1
        header = self._header_of(drive)
        held: PacketDecoder | None = getattr(self._local, "decoder", None)
        if held is None or held.header != header:
            held = self._local.decoder = PacketDecoder(header, self._limits)
        return held
