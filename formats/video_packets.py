"""Video kept as the packets it was: one row a frame, its payload that frame's packet, decoded from its key frame on.

Rows are in presentation order; three columns say what decoding a row needs: `gop_rows` back to the key frame's row,
`gop_ahead` rows further on that are decoded before it, and `video_order`, the order of decoding. What the decoder must know
beforehand is a small JSON attachment of each drive, `<sensor>.video.json`. Decoding needs the extra `video`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import DecodeError, MissingExtra
from .image_header import check_size
from .limits import DEFAULT_LIMITS, Limits
from .schema import Column, canonical_json

__all__ = ["VIDEO_COLUMNS", "PacketDecoder", "VideoHeader", "VideoPackets", "header_name"]

VIDEO_COLUMNS: Final = tuple(Column(name=name, dtype="int32") for name in ("gop_rows", "gop_ahead", "video_order"))
# Canonical codec name → the decoder to use. A closed list: FFmpeg's rarer decoders have no place behind foreign bytes, and
# its own "av1" needs a GPU.
_DECODERS: Final = {
    "av1": "libdav1d",
    "h264": "h264",
    "hevc": "hevc",
    "mpeg4": "mpeg4",
    "vp8": "vp8",
    "vp9": "vp9",
}
_MOST_HEADER: Final = 1 << 20


def header_name(sensor: str) -> str:
    """Return the name of the attachment that holds a sensor's `VideoHeader`."""
    return f"{sensor}.video.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoHeader:
    """What a decoder is told before the first packet."""

    codec: str
    """"h264", "hevc", "av1", "vp9", "vp8" or "mpeg4"."""
    width: int
    height: int
    extradata: bytes
    """The container's codec configuration (avcC, hvcC, av1C …)."""
    color_range: int
    """This and the next three as numbered in ISO/IEC 23091-2, as the container states them."""
    colorspace: int
    color_primaries: int
    color_trc: int

    def encode(self) -> bytes:
        """Return it as canonical JSON."""
        return canonical_json({**asdict(self), "extradata": base64.b64encode(self.extradata).decode()})

    @staticmethod
    def decode(data: bytes) -> VideoHeader:
        """Read it back, refusing what is not exactly that."""
        try:
            plain = json.loads(data[:_MOST_HEADER])
            plain["extradata"] = base64.b64decode(plain["extradata"], validate=True)
            header = VideoHeader(**plain)
        except (ValueError, TypeError, KeyError, binascii.Error) as error:
            raise DecodeError(f"cannot read a video header: {error}; run `headway verify`") from error
        for field in fields(header):
            value = getattr(header, field.name)
            if field.name not in ("codec", "extradata") and type(value) is not int:
                raise DecodeError(f"cannot read a video header: {field.name} is {value!r}, expected a whole number")
        return header


class VideoPackets:
    """A video file as packets by frame number. Not safe for concurrent use; cheapest when read in order."""

    def __init__(self, path: str | Path) -> None:
        self._av = _av()
        self.path = Path(path)
        try:
            self._container: Any = self._av.open(str(path))  # Any: the return type depends on the mode argument
            self._stream = self._container.streams.video[0]
            found = [(p.pts, bool(p.is_keyframe)) for p in self._container.demux(self._stream) if p.pts is not None and p.size]
        except (self._av.error.FFmpegError, IndexError) as error:
            raise DecodeError(f"cannot open video {str(path)!r}: {error}; is the file complete?") from error
        if not found or not found[0][1]:
            raise DecodeError(f"cannot read video {str(path)!r}: it has {len(found)} frames, and does not start with a key frame")
        self._times = np.array([pts for pts, _ in found], np.int64)  # in order of decoding
        if len(np.unique(self._times)) != len(self._times):
            raise DecodeError(f"cannot read video {str(path)!r}: two frames share a presentation time")
        self._number = np.empty(len(found), np.int64)  # decoding position → frame number
        self._number[np.argsort(self._times)] = np.arange(len(found))
        self._keys = np.flatnonzero([key for _, key in found])
        self.columns = self._index()
        self._held: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._times)

    @property
    def header(self) -> VideoHeader:
        """What a decoder of these packets needs."""
        context, codec = self._stream.codec_context, str(self._stream.codec.canonical_name)
        if codec not in _DECODERS:
            raise DecodeError(
                f"cannot keep video {str(self.path)!r} as packets: its codec {codec!r} is none of {', '.join(_DECODERS)}; "
                "use --video jpeg"
            )
        colour = {name: int(getattr(context, name)) for name in ("color_range", "colorspace", "color_primaries", "color_trc")}
        return VideoHeader(
            codec=codec, width=context.width, height=context.height, extradata=bytes(context.extradata or b""), **colour
        )

    def packet(self, number: int) -> bytes:
        """Return the packet of frame `number`, counted in presentation order."""
        if number not in self._held:
            self._read_group(number)
        return self._held[number]

    def part(self, first: int, count: int) -> dict[str, NDArray[np.int32]]:
        """Return the columns of frames `first` to `first + count`, which must decode from each other alone.

        Raises:
            DecodeError: some need frames outside.
        """
        chosen = {name: values[first : first + count] for name, values in self.columns.items()}
        rows = np.arange(count)
        if len(chosen["gop_rows"]) != count:
            raise DecodeError(f"video {str(self.path)!r} has {len(self)} frames, asked for {first} to {first + count}")
        if np.any(chosen["gop_rows"] > rows) or np.any(rows + chosen["gop_ahead"] >= count):
            raise DecodeError(
                f"cannot keep frames {first} to {first + count} of {str(self.path)!r} as packets: they do not start with a key "
                "frame, or need frames beyond; use --video jpeg"
            )
        chosen["video_order"] = chosen["video_order"] - chosen["video_order"].min() if count else chosen["video_order"]
        return chosen

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def __enter__(self) -> VideoPackets:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _index(self) -> dict[str, NDArray[np.int32]]:
        """By frame number: rows back to the key frame that decoding starts at, rows ahead, and position in decoding order."""
        count = len(self._times)
        columns = {column.name: np.empty(count, np.int32) for column in VIDEO_COLUMNS}
        ahead, key = 0, -1
        for at, number in enumerate(self._number.tolist()):
            if key + 1 < len(self._keys) and self._keys[key + 1] == at:
                key, ahead = key + 1, 0
            ahead = max(ahead, number)
            start, reach = key, ahead
            # Shown before its key frame: it refers to the group before, too, and decoding starts there.
            while start > 0 and number < self._number[self._keys[start]]:
                start -= 1
                reach = max(reach, int(self._number[self._keys[start] : at + 1].max()))
            columns["gop_rows"][number] = number - self._number[self._keys[start]]
            columns["gop_ahead"][number] = reach - number
            columns["video_order"][number] = at
        if columns["gop_rows"].min() < 0:
            raise DecodeError(f"cannot read video {str(self.path)!r}: frames are shown before its first key frame")
        return columns

    def _read_group(self, number: int) -> None:
        """Hold the packets from the key frame at or before a frame's packet up to the next key frame."""
        at = int(self.columns["video_order"][number])
        key = int(np.searchsorted(self._keys, at, side="right")) - 1
        first = int(self._keys[key])
        last = int(self._keys[key + 1]) if key + 1 < len(self._keys) else len(self)
        number_of = {int(self._times[place]): int(self._number[place]) for place in range(first, last)}
        self._held = {}
        try:
            self._container.seek(int(self._times[first]), stream=self._stream, backward=True)
            for packet in self._container.demux(self._stream):
                if packet.pts in number_of and packet.size:
                    self._held[number_of[packet.pts]] = bytes(packet)
                    if len(self._held) == len(number_of):
                        return
        except self._av.error.FFmpegError as error:
            raise DecodeError(f"cannot read video {str(self.path)!r}: {error}; is the file complete?") from error
        raise DecodeError(f"cannot read video {str(self.path)!r}: packets of frame {number}'s group are missing; is it complete?")


class PacketDecoder:
    """Decodes runs of packets that start with a key frame. One thread at a time; keep it: starting a decoder costs."""

    def __init__(self, header: VideoHeader, limits: Limits = DEFAULT_LIMITS) -> None:
        check_size(header.width, header.height, limits)
        if header.codec not in _DECODERS:
            raise DecodeError(f"cannot decode video of codec {header.codec!r}: known are {', '.join(_DECODERS)}")
        self._av = _av()
        self.header = header
        self._context: Any = self._av.CodecContext.create(_DECODERS[header.codec], "r")  # Any: the class depends on the name
        self._context.extradata = header.extradata or None
        self._context.thread_count = 1  # threads are the caller's, and none may be running at a fork
        self._context.options = {"max_pixels": str(limits.image_pixels)}
        for name in ("color_range", "colorspace", "color_primaries", "color_trc"):
            setattr(self._context, name, getattr(header, name))

    def frames(self, packets: Sequence[tuple[int, bytes | memoryview]], wanted: set[int]) -> dict[int, NDArray[np.uint8]]:
        """Return wanted frames as uint8 (H, W, 3) RGB, by number; `packets` are (frame number, bytes) in decoding order.

        Raises:
            DecodeError: the decoder refused a packet, or a wanted frame did not come out.
        """
        out: dict[int, NDArray[np.uint8]] = {}
        try:
            for order, (number, data) in enumerate(packets):
                packet = self._av.Packet(bytes(data))
                packet.pts, packet.dts = number, order
                self._keep(self._context.decode(packet), wanted, out)
            self._keep(self._context.decode(None), wanted, out)
        except self._av.error.FFmpegError as error:
            raise DecodeError(
                f"expected {self.header.codec} packets that decode, found: {error}; run `headway verify`"
            ) from error
        finally:
            self._context.flush_buffers()
        if missing := sorted(wanted - out.keys()):
            raise DecodeError(
                f"expected frames {missing} to come out of {len(packets)} packets, they did not; run `headway verify`"
            )
        return out

    def _keep(self, frames: Sequence[Any], wanted: set[int], out: dict[int, NDArray[np.uint8]]) -> None:  # Any: av.VideoFrame
        for frame in frames:
            if frame.pts not in wanted:
                continue
            if frame.is_corrupt or (frame.width, frame.height) != (self.header.width, self.header.height):
                raise DecodeError(
                    f"expected a whole frame of {self.header.width} × {self.header.height} px, found {frame.width} × "
                    f"{frame.height}{', corrupt' if frame.is_corrupt else ''}; run `headway verify`"
                )
            out[frame.pts] = frame.to_ndarray(format="rgb24")


def _av() -> Any:  # Any: the module, typed only where the extra is installed
    try:
        import av
    except ImportError as error:
        raise MissingExtra("video", "reading video") from error
    return av
