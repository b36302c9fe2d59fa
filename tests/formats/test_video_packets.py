"""Video kept as packets: every frame decodes to what the file gives, whatever its group of pictures looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from headway.formats import (
    Attachment,
    Camera,
    DecodeError,
    DriveListing,
    Limits,
    PackOptions,
    Schema,
    Sensor,
    SourceDrive,
    SourceTimeline,
    UsageError,
    open_set,
    pack,
    verify_set,
)
from headway.formats.adapters import SourceSpec
from headway.formats.video import VideoFile
from headway.formats.video_packets import VIDEO_COLUMNS, PacketDecoder, VideoHeader, VideoPackets, header_name

FRAMES = 30
CODINGS = {
    "no reordering": ("libx264", {"g": "8", "bf": "0", "sc_threshold": "0"}),
    "B frames": ("libx264", {"g": "10", "bf": "3", "b_strategy": "0", "sc_threshold": "0"}),
    "open groups": ("libx264", {"g": "10", "bf": "2", "b_strategy": "0", "x264-params": "open-gop=1:keyint=10:scenecut=0"}),
    "hevc, open groups": ("libx265", {"x265-params": "open-gop=1:keyint=10:bframes=3:scenecut=0:log-level=none"}),
    "mpeg4": ("mpeg4", {"g": "6"}),
}


def write_video(path: Path, codec: str, options: dict[str, str], frames: int = FRAMES) -> Path:
    """A small moving picture; each frame also carries its number as brightness."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=30, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        across, down = np.meshgrid(np.arange(64), np.arange(48))
        for number in range(frames):
            picture = np.stack([across * 3 + number * 5, down * 4 + number, across + down + number * 7], -1) % 256
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture.astype(np.uint8), format="rgb24")))
        container.mux(stream.encode(None))
    return path


@dataclass
class Films:
    """A source with one drive a film, each kept as packets."""

    paths: Sequence[Path]
    kind: str = "films"
    licence: str = ""
    ignored: tuple[()] = ()
    videos: dict[Path, VideoPackets] = field(default_factory=dict)

    schema = Schema(
        reference="KEY",
        sensors=(
            Sensor(name="KEY", kind="text", codec="text"),
            Sensor(name="CAM", kind="image", codec="video", camera=Camera(), columns=VIDEO_COLUMNS),
        ),
    )

    @property
    def listings(self) -> list[DriveListing]:
        return [DriveListing(name=path.stem, source_bytes=path.stat().st_size) for path in self.paths]

    def open_drive(self, name: str) -> SourceDrive:
        path = next(path for path in self.paths if path.stem == name)
        video = self.videos.setdefault(path, VideoPackets(path))
        stamps = np.arange(len(video), dtype=np.int64) * 33_333_333
        camera = SourceTimeline(stamps=stamps, columns=video.part(0, len(video)), read=video.packet)
        key = SourceTimeline(stamps=stamps, columns={}, read="frame {}".format)
        header = Attachment(name=header_name("CAM"), media_type="application/json", read=video.header.encode)
        return SourceDrive(timelines={"KEY": key, "CAM": camera}, attachments=[header])


CURRENT: list[Films] = []


def open_films(spec: SourceSpec) -> Films:
    return CURRENT[-1]


def packed_films(paths: Sequence[Path], where: Path, **options: Any) -> Path:  # Any: PackOptions' fields
    CURRENT.append(Films(paths))
    spec = SourceSpec(kind="tests.formats.test_video_packets:open_films", path="", options={})
    pack(spec, where, PackOptions(workers=1, **options))
    return where


def reference(path: Path) -> list[NDArray[np.uint8]]:
    with VideoFile(path) as video:
        return [video.frame(number) for number in range(len(video))]


@pytest.mark.parametrize("coding", CODINGS)
def test_every_frame_in_any_order_is_the_files(coding: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / "film.mp4", *CODINGS[coding])
    expected = reference(path)
    with open_set(packed_films([path], tmp_path / "set", shard_bytes=path.stat().st_size // 4)) as packed:
        camera = packed.timeline("CAM")
        assert len(camera) == FRAMES
        assert len(packed.manifest.shards) > 1, "groups of pictures lie across shards"
        assert camera.take("gop_rows", np.arange(FRAMES)).max() > 4, "the encoder made groups of pictures"
        assert (camera.take("gop_ahead", np.arange(FRAMES)).max() > 0) == ("B" in coding or "open" in coding)
        for row in np.random.default_rng(1).permutation(FRAMES).tolist():
            np.testing.assert_array_equal(camera.value(row), expected[row], err_msg=f"row {row}")
        rows = np.array([20, 3, 3, 11, 12, 29])
        for row, frame in zip(rows.tolist(), camera.frames(rows), strict=True):
            np.testing.assert_array_equal(frame, expected[row])
    assert verify_set(tmp_path / "set").ok


def test_packets_are_the_files_own_bytes(tmp_path: Path) -> None:
    path = write_video(tmp_path / "film.mp4", *CODINGS["B frames"])
    with av.open(str(path)) as container:
        packets = {packet.pts: bytes(packet) for packet in container.demux(video=0) if packet.size}
    with open_set(packed_films([path], tmp_path / "set")) as packed:
        camera = packed.timeline("CAM")
        assert [bytes(camera.payload(row)) for row in range(FRAMES)] == [packets[pts] for pts in sorted(packets)]


def test_the_read_set_reaches_from_the_key_frame_to_what_is_decoded_before(tmp_path: Path) -> None:
    path = write_video(tmp_path / "film.mp4", *CODINGS["no reordering"])
    with open_set(packed_films([path], tmp_path / "set")) as packed:
        camera = packed.timeline("CAM")
        assert camera.packets_read(np.array([10, 17])).tolist() == [8, 9, 10, 16, 17]
        assert camera.packets_read(np.array([], np.int64)).tolist() == []


def test_drives_decode_with_their_own_headers(tmp_path: Path) -> None:
    films = [write_video(tmp_path / f"film-{at}.mp4", *CODINGS[name]) for at, name in enumerate(("B frames", "mpeg4"))]
    with open_set(packed_films(films, tmp_path / "set")) as packed:
        camera = packed.timeline("CAM")
        for row, frame in zip((5, FRAMES + 5, 6), camera.frames(np.array([5, FRAMES + 5, 6])), strict=True):
            np.testing.assert_array_equal(frame, reference(films[row // FRAMES])[row % FRAMES])


def test_packing_packets_is_reproducible(tmp_path: Path) -> None:
    path = write_video(tmp_path / "film.mp4", *CODINGS["B frames"])
    sets = [open_set(packed_films([path], tmp_path / name, shard_bytes=size)) for name, size in (("a", 3_000), ("b", 10**6))]
    assert sets[0].set_id == sets[1].set_id


def test_a_part_that_needs_frames_outside_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with VideoPackets(write_video(tmp_path / "film.mp4", *CODINGS["B frames"])) as video:
        assert set(video.part(10, 20)) == {column.name for column in VIDEO_COLUMNS}
        for first, count in ((3, 10), (0, 7)):
            with pytest.raises(DecodeError, match="--video jpeg"):
                video.part(first, count)
        with pytest.raises(DecodeError, match="has 30 frames"):
            video.part(20, 20)


def test_a_cut_file_and_an_image_are_refused_by_name(tmp_path: Path) -> None:
    path = write_video(tmp_path / "film.mp4", *CODINGS["no reordering"])
    path.write_bytes(path.read_bytes()[:800])
    with pytest.raises(DecodeError, match=r"film\.mp4"):
        VideoPackets(path)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"extradata":"?"}', b'{"codec":"h264","extradata":"","width":"8"}'])
def test_damaged_headers_are_typed_errors(data: bytes) -> None:
    with pytest.raises(DecodeError, match="video header"):
        VideoHeader.decode(data)


def header(**changes: Any) -> VideoHeader:  # Any: one of its fields' types each
    plain = {"codec": "h264", "width": 64, "height": 48, "extradata": b"", "color_range": 0, "colorspace": 2}
    return VideoHeader(**{**plain, "color_primaries": 2, "color_trc": 2, **changes})


def test_unknown_codecs_and_giants_never_reach_a_decoder() -> None:
    """lyuwenyu/RT-DETR#337: sizes are limited before anything is allocated."""
    with pytest.raises(DecodeError, match="known are"):
        PacketDecoder(header(codec="cinepak"))
    with pytest.raises(DecodeError, match="at most"):
        PacketDecoder(header(width=30_000, height=30_000), Limits())


def test_packets_that_do_not_decode_are_typed_errors() -> None:
    decoder = PacketDecoder(header())
    with pytest.raises(DecodeError, match=r"h264|come out"):
        decoder.frames([(0, b"\0\0\0\1\x65" + bytes(50))], {0})


def test_frames_of_what_is_no_video_is_a_usage_error(tmp_path: Path) -> None:
    path = write_video(tmp_path / "film.mp4", *CODINGS["mpeg4"])
    with open_set(packed_films([path], tmp_path / "set")) as packed, pytest.raises(UsageError, match="not video"):
        packed.timeline("KEY").frames(np.array([0]))
