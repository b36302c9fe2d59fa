"""Frames of a video file by their number: an index of presentation times, and sequential or seeking decode through PyAV.

Frame numbers are positions in presentation order; times in seconds never select a frame (a start time rounded up by one
float step would lose the first frame). Decoding needs the extra `video`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import DecodeError, MissingExtra

__all__ = ["VideoFile"]


class VideoFile:
    """One video stream. Not safe for concurrent use; cheapest when frames are asked for in ascending order."""

    def __init__(self, path: str | Path) -> None:
        try:
            import av
        except ImportError as error:
            raise MissingExtra("video", "reading video") from error
        self.path = Path(path)
        self._errors: Any = av.error.FFmpegError  # Any: PyAV's exceptions are built at run time
        try:
            self._container: Any = av.open(str(path))  # Any: the return type depends on the mode argument
            self._stream = self._container.streams.video[0]
            packets = [(p.pts, p.is_keyframe) for p in self._container.demux(self._stream) if p.pts is not None and p.size]
        except (self._errors, IndexError) as error:
            raise DecodeError(f"cannot open video {str(path)!r}: {error}; is the file complete?") from error
        if not packets:
            raise DecodeError(f"cannot read video {str(path)!r}: it holds no frames")
        packets.sort()
        self.times: NDArray[np.int64] = np.array([pts for pts, _ in packets], np.int64)
        """Presentation time of each frame, in units of the stream's time base; ascending."""
        if len(np.unique(self.times)) != len(self.times):
            raise DecodeError(f"cannot read video {str(path)!r}: two frames share a presentation time")
        self._next = -1
        self._frames: Any = iter(())

    def __len__(self) -> int:
        return len(self.times)

    @property
    def codec(self) -> str:
        """Name of the codec the file is written in, such as "av1" or "h264"."""
        return str(self._stream.codec.canonical_name)

    def frame(self, number: int) -> NDArray[np.uint8]:
        """Decode frame `number` to uint8 (H, W, 3) RGB."""
        if not 0 <= number < len(self):
            raise DecodeError(f"video {str(self.path)!r} has {len(self)} frames, asked for number {number}")
        if number != self._next:
            self._seek(number)
        try:
            for frame in self._frames:
                if frame.pts == self.times[number]:
                    self._next = number + 1
                    pixels: NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
                    return pixels
                if frame.pts > self.times[number]:
                    break
        except self._errors as error:
            raise DecodeError(f"cannot decode frame {number} of video {str(self.path)!r}: {error}") from error
        self._next = -1
        raise DecodeError(
            f"cannot decode frame {number} of video {str(self.path)!r}: the decoder did not deliver it; is the file complete?"
        )

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _seek(self, number: int) -> None:
        # Seeking lands on the key frame at or before the time asked for; decoding then runs up to the frame.
        self._container.seek(int(self.times[number]), stream=self._stream, backward=True)
        self._frames = self._container.decode(self._stream)
