"""A LeRobot video seen as rows of a timeline: each frame encoded as a JPEG, or the file's own packets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError, Problem, SourceError
from ..source import Attachment, SourceTimeline
from ..video import VideoFile
from ..video_packets import VideoPackets, header_name

__all__ = ["EpisodeVideo"]


@dataclass(frozen=True, slots=True)
class EpisodeVideo:
    """The frames of one episode in a video file that episodes may share."""

    root: Path
    """Folder of the dataset, for messages."""
    file: Path
    first: int
    """Number of the episode's first frame in the file."""
    size: tuple[int, int]
    """Height and width, as info.json has them."""

    def jpegs(self, stamps: NDArray[np.int64], columns: Mapping[str, NDArray[np.int32]], quality: int) -> SourceTimeline:
        """Return a timeline whose payloads are frames encoded as JPEG."""
        return SourceTimeline(stamps=stamps, columns=columns, read=self._jpeg(quality), origin=self._origin)

    def packets(self, stamps: NDArray[np.int64], columns: Mapping[str, NDArray[np.int32]]) -> SourceTimeline:
        """Return a timeline whose payloads are the file's packets."""
        try:
            needed = _packets(self.file).part(self.first, len(stamps))
        except DecodeError as error:
            problem = Problem(path=self._name, reason=str(error), code="video")
            raise SourceError("cannot pack an episode", [problem]) from error
        read = _packets(self.file).packet
        return SourceTimeline(
            stamps=stamps, columns={**columns, **needed}, read=lambda i: read(self.first + i), origin=self._origin
        )

    def header(self, feature: str) -> Attachment:
        """Return what a decoder must know before the first packet."""
        return Attachment(name=header_name(feature), media_type="application/json", read=self._header)

    @property
    def _name(self) -> str:
        return str(self.file.relative_to(self.root))

    def _origin(self, row: int) -> str:
        return f"{self._name}: frame {self.first + row}"

    def _jpeg(self, quality: int) -> Callable[[int], bytes]:
        def read(row: int) -> bytes:
            import simplejpeg  # only packing needs an encoder

            pixels = _video(self.file).frame(self.first + row)
            if pixels.shape[:2] != self.size:
                found, stated = (f"{width}×{height}" for height, width in (pixels.shape[:2], self.size))
                raise DecodeError(f"frame {row} of {self.file} is {found}, info.json says {stated}")
            encoded: bytes = simplejpeg.encode_jpeg(
                np.ascontiguousarray(pixels), quality=quality, colorspace="RGB", colorsubsampling="420"
            )
            return encoded

        return read

    def _header(self) -> bytes:
        found = _packets(self.file).header
        if (found.height, found.width) != self.size:
            reason = (
                f"is {found.width}×{found.height}, info.json says {self.size[1]}×{self.size[0]}; correct the one that is wrong"
            )
            raise SourceError("cannot pack a video", [Problem(path=self._name, reason=reason, code="layout")])
        return found.encode()


@lru_cache(maxsize=8)
def _video(path: Path) -> VideoFile:
    # Kept open from frame to frame; the least recently used of eight is closed by the collector.
    return VideoFile(path)


@lru_cache(maxsize=8)
def _packets(path: Path) -> VideoPackets:
    # As above: one group of pictures of each of eight videos is in memory.
    return VideoPackets(path)
