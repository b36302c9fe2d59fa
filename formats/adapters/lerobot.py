"""LeRobot v2.0, v2.1 and v3.0: one drive an episode; state, action and task as they are, videos as JPEG frames or packets.

The reference is the sensor "frame": one row a table row, stamped frame_index ÷ fps in exact integer arithmetic (the stored
float32 seconds are only compared with it). Source: the `meta/info.json` templates and tables of the dataset itself.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import DecodeError, Problem, SourceError, UsageError
from ..limits import DEFAULT_LIMITS
from ..schema import Camera, Column, Schema, Sensor
from ..source import DriveListing, Ignored, SourceDrive, SourceTimeline
from ..video_packets import VIDEO_COLUMNS
from .lerobot_video import EpisodeVideo
from .registry import SourceSpec

__all__ = ["LeRobot", "open_source"]

_TABLE_COLUMNS: Final = ("frame_index", "index", "task_index")
_BOOKKEEPING: Final = {"timestamp", "frame_index", "episode_index", "index", "task_index"}
# The stored time is a float32 of seconds: its step at 10 minutes is 61 µs. Half a frame at 1 kHz is well above that.
_TIME_TOLERANCE_S: Final = 5e-4


def open_source(spec: SourceSpec) -> LeRobot:
    """Open a dataset folder; options: `episodes` ("all", "present", or "3,7,12:20"), `video`, `jpeg_quality`."""
    known = {"episodes", "jpeg_quality", "video"}
    if unknown := set(spec.options) - known:
        raise UsageError(f"lerobot has no option {sorted(unknown)}; it has {sorted(known)}")
    episodes = spec.options.get("episodes", "all")
    quality = spec.options.get("jpeg_quality", 95)
    video = spec.options.get("video", "jpeg")
    if not isinstance(episodes, str) or not isinstance(quality, int) or not isinstance(video, str):
        raise UsageError("lerobot: episodes and video are text and jpeg_quality a whole number")
    return LeRobot(spec.path, episodes=episodes, video=video, jpeg_quality=quality)


@dataclass(frozen=True, slots=True)
class _Episode:
    index: int
    length: int
    data: Path
    first_row: int
    """Row of `data` at which the episode starts."""
    videos: Mapping[str, tuple[Path, int]]
    """Sensor → file and the number of the episode's first frame in it."""


class LeRobot:
    """A LeRobot dataset seen as drives."""

    kind = "lerobot"

    def __init__(self, path: str | Path, *, episodes: str = "all", video: str = "jpeg", jpeg_quality: int = 95) -> None:
        if not 1 <= jpeg_quality <= 100:
            raise UsageError(f"jpeg_quality must be 1 to 100, not {jpeg_quality}")
        if video not in ("jpeg", "keep"):
            raise UsageError(f"video must be 'jpeg' or 'keep', not {video!r}")
        self.root, self._quality, self._keep = Path(path), jpeg_quality, video == "keep"
        info = self._read_json("meta/info.json")
        self._fps = _rational(info.get("fps"))
        self._v3 = str(info.get("codebase_version", "")).startswith("v3")
        features = info.get("features")
        if not isinstance(features, dict) or not features:
            raise SourceError(f"cannot read {self.root / 'meta/info.json'}: 'features' is missing or empty")
        self._images = {name: item for name, item in features.items() if item.get("dtype") in ("video", "image")}
        self._values = {name: item for name, item in features.items() if name not in self._images and name not in _BOOKKEEPING}
        self.schema = Schema(reference="frame", sensors=tuple(self._sensors()))
        self.licence = str(info.get("license") or _licence(self.root))
        self.ignored: list[Ignored] = []
        self._tasks = self._read_tasks()
        listed = self._list_v3(info) if self._v3 else self._list_v2(info)
        self._episodes = self._check(self._choose(listed, episodes), present=episodes == "present")
        self.listings: Sequence[DriveListing] = _listings(self._episodes, robot=str(info.get("robot_type", "")))

    def open_drive(self, name: str) -> SourceDrive:
        """Open one episode."""
        episode = self._episodes[name]
        table = _table(episode.data).slice(episode.first_row, episode.length)
        frame_index = table["frame_index"].to_numpy()
        self._verify(episode, table, frame_index)
        stamps = np.array([_stamp(int(i), self._fps) for i in frame_index], np.int64)
        here = [f"{episode.data.relative_to(self.root)}: row {episode.first_row + i}" for i in range(episode.length)]
        frame_columns = {column: table[column].to_numpy().astype(np.int64) for column in _TABLE_COLUMNS}
        timelines = {"frame": SourceTimeline(stamps=stamps, columns=frame_columns, origin=here.__getitem__)}
        for feature, item in self._values.items():
            value = _fixed(table[feature], tuple(item["shape"]), self.schema.sensor(feature).column("value"), episode)
            timelines[feature] = SourceTimeline(stamps=stamps, columns={"value": value}, origin=here.__getitem__)
        timelines["task"] = self._task_timeline(stamps, frame_columns["task_index"], here)
        for feature in self._images:
            timelines[feature] = self._image_timeline(feature, episode, table, stamps)
        headers = [self._video(episode, feature).header(feature) for feature in episode.videos]
        return SourceDrive(timelines=timelines, attachments=headers if self._keep else ())

    def _sensors(self) -> list[Sensor]:
        integers = tuple(Column(name=name, dtype="int64") for name in _TABLE_COLUMNS)
        sensors = [
            Sensor(name="frame", kind="array", codec=None, columns=integers),
            Sensor(name="task", kind="text", codec="text"),
        ]
        for name, item in self._values.items():
            shape = tuple(int(side) for side in item["shape"])
            sensors.append(
                Sensor(name=name, kind="array", codec=None, columns=(Column(name="value", dtype=item["dtype"], shape=shape),))
            )
        for name, item in self._images.items():
            depth = bool(item.get("info", {}).get("video.is_depth_map"))
            if depth and not (self._keep and item["dtype"] == "video"):
                raise SourceError(
                    f"cannot pack {name!r}: depth videos are lossy in JPEG; leave the feature out or convert it to 16-bit PNG"
                )
            size = tuple(Column(name=side, dtype="int32", unit="px") for side in ("width", "height"))
            camera = Camera(colour="depth") if depth else Camera()
            if self._keep and item["dtype"] == "video":
                columns = (*size, *VIDEO_COLUMNS)
                sensors.append(Sensor(name=name, kind="image", codec="video", columns=columns, camera=camera))
            else:
                sensors.append(Sensor(name=name, kind="image", codec="jpeg", columns=size, camera=camera))
        return sensors

    def _list_v2(self, info: Mapping[str, Any]) -> list[_Episode]:
        chunk = int(info.get("chunks_size", 1000))
        listed = []
        for line in self._read_lines("meta/episodes.jsonl"):
            number = int(line["episode_index"])
            fill = {"episode_chunk": number // chunk, "episode_index": number}
            data = self.root / _fill(info["data_path"], fill)
            videos = {
                name: (self.root / _fill(info["video_path"], fill | {"video_key": name}), 0)
                for name, item in self._images.items()
                if item["dtype"] == "video"
            }
            listed.append(_Episode(number, int(line["length"]), data, 0, videos))
        return listed

    def _list_v3(self, info: Mapping[str, Any]) -> list[_Episode]:
        listed = []
        starts: dict[tuple[int, int], int] = {}  # dataset index at which a data file begins
        for path in sorted((self.root / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
            for row in pq.read_table(path).to_pylist():
                at = (int(row["data/chunk_index"]), int(row["data/file_index"]))
                start = int(row["dataset_from_index"])
                starts[at] = min(starts.get(at, start), start)
                data = self.root / _fill(info["data_path"], {"chunk_index": at[0], "file_index": at[1]})
                videos = {}
                for name, item in self._images.items():
                    if item["dtype"] == "video":
                        prefix = f"videos/{name}"
                        fill = {"chunk_index": int(row[f"{prefix}/chunk_index"]), "file_index": int(row[f"{prefix}/file_index"])}
                        file = self.root / _fill(info["video_path"], fill | {"video_key": name})
                        # The stored start is a float sum of durations; the frame it means is the nearest one.
                        videos[name] = (file, round(Fraction(row[f"{prefix}/from_timestamp"]) * self._fps))
                listed.append(_Episode(int(row["episode_index"]), int(row["length"]), data, start, videos))
        if not listed:
            raise SourceError(f"cannot read {self.root}: no episode tables below meta/episodes")
        return [
            _Episode(e.index, e.length, e.data, e.first_row - starts[_file_numbers(e.data)], e.videos)
            for e in sorted(listed, key=lambda e: e.index)
        ]

    def _choose(self, listed: list[_Episode], episodes: str) -> list[_Episode]:
        if episodes in ("all", "present"):
            return listed
        wanted: set[int] = set()
        try:
            for part in episodes.split(","):
                first, _, last = part.partition(":")
                wanted.update(range(int(first), int(last) if last else int(first) + 1))
        except ValueError as error:
            raise UsageError(f"episodes must be 'all', 'present' or a list such as '3,7,12:20', not {episodes!r}") from error
        if unknown := wanted - {episode.index for episode in listed}:
            raise UsageError(f"no such episodes: {sorted(unknown)[:10]}; the dataset lists {len(listed)}")
        return [episode for episode in listed if episode.index in wanted]

    def _check(self, chosen: list[_Episode], *, present: bool) -> dict[str, _Episode]:
        problems, found = [], {}
        for episode in chosen:
            missing = [path for path in _files(episode) if not path.is_file()]
            name = f"episode_{episode.index:06d}"
            if name in found:
                problems.append(
                    Problem(path="meta/episodes", reason=f"episode {episode.index} is listed twice", code="duplicate")
                )
            elif missing and present:
                self.ignored.append(Ignored(path=name, reason=f"absent here: {missing[0].relative_to(self.root)}"))
            elif missing:
                problems += [
                    Problem(
                        path=str(path.relative_to(self.root)),
                        reason=f"is missing (episode {episode.index}); fetch it, or pack what is there: episodes=present",
                        code="missing",
                    )
                    for path in missing
                ]
            else:
                found[name] = episode
        if problems:
            raise SourceError(f"cannot pack {self.root}: {len(problems)} problems", problems)
        if not found:
            raise SourceError(f"cannot pack {self.root}: none of the {len(chosen)} chosen episodes is present")
        return dict(sorted(found.items()))

    def _verify(self, episode: _Episode, table: pa.Table, frame_index: NDArray[np.int64]) -> None:
        where = str(episode.data.relative_to(self.root))
        if table.num_rows != episode.length or not np.array_equal(frame_index, np.arange(episode.length)):
            reason = (
                f"episode {episode.index} should be {episode.length} rows with frame_index 0, 1, 2 …; found {table.num_rows} rows"
            )
            raise SourceError("cannot pack an episode", [Problem(path=where, reason=reason, code="layout")])
        if set(table["episode_index"].to_pylist()) != {episode.index}:
            reason = f"rows {episode.first_row} to {episode.first_row + episode.length} are not all of episode {episode.index}"
            raise SourceError("cannot pack an episode", [Problem(path=where, reason=reason, code="layout")])
        drift = np.abs(table["timestamp"].to_numpy().astype(np.float64) - frame_index / float(self._fps))
        if drift.max() > _TIME_TOLERANCE_S:
            worst = int(drift.argmax())
            reason = f"timestamp of frame {worst} is {drift[worst]:.4f} s off frame_index ÷ {self._fps} fps"
            raise SourceError("cannot pack an episode", [Problem(path=where, reason=reason, code="layout")])

    def _task_timeline(self, stamps: NDArray[np.int64], tasks: NDArray[np.int64], here: list[str]) -> SourceTimeline:
        """One row wherever the task changes: `sync="previous"` finds the one that holds."""
        rows = np.flatnonzero(np.r_[True, np.diff(tasks) != 0])
        unknown = sorted({int(task) for task in tasks[rows]} - set(self._tasks))
        if unknown:
            problem = Problem(path=here[0], reason=f"task_index {unknown[0]} is not in the task table", code="dangling")
            raise SourceError("cannot pack an episode", [problem])
        return SourceTimeline(
            stamps=stamps[rows], columns={}, read=lambda i: self._tasks[int(tasks[rows[i]])], origin=lambda i: here[int(rows[i])]
        )

    def _image_timeline(self, feature: str, episode: _Episode, table: pa.Table, stamps: NDArray[np.int64]) -> SourceTimeline:
        height, width = _image_size(self._images[feature])
        size = {"width": np.full(episode.length, width, np.int32), "height": np.full(episode.length, height, np.int32)}
        if feature not in episode.videos:
            cells = table[feature].combine_chunks()
            return SourceTimeline(stamps=stamps, columns=size, read=lambda i: _embedded(self.root, cells[i].as_py(), feature))
        video = self._video(episode, feature)
        return video.packets(stamps, size) if self._keep else video.jpegs(stamps, size, self._quality)

    def _video(self, episode: _Episode, feature: str) -> EpisodeVideo:
        file, first = episode.videos[feature]
        return EpisodeVideo(self.root, file, first, _image_size(self._images[feature]))

    def _read_tasks(self) -> dict[int, str]:
        if not self._v3:
            return {int(line["task_index"]): str(line["task"]) for line in self._read_lines("meta/tasks.jsonl")}
        table = pq.read_table(self.root / "meta" / "tasks.parquet")
        text = next((name for name in ("task", "__index_level_0__") if name in table.column_names), None)
        if text is None:
            raise SourceError(f"cannot read {self.root / 'meta/tasks.parquet'}: no column 'task'; it has {table.column_names}")
        return dict(zip(table["task_index"].to_pylist(), table[text].to_pylist(), strict=True))

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            data = json.loads(self._read_text(name))
        except ValueError as error:
            raise SourceError(f"cannot read {self.root / name}: not JSON: {error}") from error
        if not isinstance(data, dict):
            raise SourceError(f"cannot read {self.root / name}: expected an object, found {type(data).__name__}")
        return data

    def _read_lines(self, name: str) -> list[dict[str, Any]]:
        lines = []
        for number, line in enumerate(self._read_text(name).splitlines(), 1):
            try:
                lines.append(json.loads(line))
            except ValueError as error:
                raise SourceError(f"cannot read {self.root / name}: line {number} is not JSON: {error}") from error
        return lines

    def _read_text(self, name: str) -> str:
        path = self.root / name
        if not path.is_file():
            raise SourceError(f"cannot pack {self.root}: {name} is missing; is this the root folder of a LeRobot dataset?")
        if path.stat().st_size > DEFAULT_LIMITS.manifest_bytes:
            raise SourceError(
                f"cannot read {path}: {path.stat().st_size} bytes, at most {DEFAULT_LIMITS.manifest_bytes} are read"
            )
        return path.read_text(encoding="utf-8")


def _listings(episodes: Mapping[str, _Episode], *, robot: str) -> list[DriveListing]:
    """List drives; the size of a file that several share is split among them by length."""
    frames: Counter[Path] = Counter()
    for episode in episodes.values():
        for path in _files(episode):
            frames[path] += episode.length
    size = {path: path.stat().st_size for path in frames}
    return [
        DriveListing(
            name=name,
            source_bytes=sum(size[path] * episode.length // max(1, frames[path]) for path in _files(episode)),
            attributes={"robot": robot},
        )
        for name, episode in episodes.items()
    ]


def _files(episode: _Episode) -> list[Path]:
    return [episode.data, *(file for file, _ in episode.videos.values())]


def _fill(template: object, values: Mapping[str, int | str]) -> str:
    """Fill `{name}` and `{name:03d}` only: the template is data, and `str.format` would follow attributes and any width."""

    def field(match: re.Match[str]) -> str:
        name, width = match.group(1), match.group(2)
        if name not in values:
            raise SourceError(f"meta/info.json: path template {template!r} asks for {name!r}; known are {sorted(values)}")
        return str(values[name]).zfill(int(width or 0))

    filled = re.sub(r"\{(\w+)(?::0?(\d{1,2})d)?\}", field, str(template))
    if "{" in filled or ".." in Path(filled).parts or Path(filled).is_absolute():
        raise SourceError(
            f"meta/info.json: path template {template!r} must stay inside the dataset and use {{name}} or {{name:03d}} only"
        )
    return filled


@lru_cache(maxsize=2)
def _table(path: Path) -> pa.Table:
    return pq.read_table(path)


def _rational(fps: object) -> Fraction:
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not math.isfinite(fps) or fps <= 0:
        raise SourceError(f"meta/info.json: fps must be a positive number, found {fps!r}")
    return Fraction(fps).limit_denominator(1001)  # 29.97 means 30000/1001


def _stamp(frame: int, fps: Fraction) -> int:
    return round(frame * 1_000_000_000 / fps)


def _fixed(values: pa.ChunkedArray, shape: tuple[int, ...], column: Column, episode: _Episode) -> NDArray[Any]:
    flat = values.combine_chunks()
    while pa.types.is_list(flat.type) or pa.types.is_fixed_size_list(flat.type) or pa.types.is_large_list(flat.type):
        flat = flat.flatten()
    array = flat.to_numpy(zero_copy_only=False)
    if flat.null_count or array.size != episode.length * math.prod(shape):
        raise SourceError(
            f"{episode.data}: {array.size} values ({flat.null_count} null), expected {episode.length} of shape {shape}"
        )
    return np.ascontiguousarray(array.reshape(episode.length, *shape), column.numpy_dtype)


def _embedded(root: Path, cell: object, feature: str) -> bytes:
    if isinstance(cell, dict) and isinstance(cell.get("bytes"), bytes):
        data: bytes = cell["bytes"]
        return data
    if isinstance(cell, dict) and isinstance(cell.get("path"), str):
        path: Path = (root / cell["path"]).resolve()
        if not path.is_relative_to(root.resolve()):
            raise DecodeError(f"image path {cell['path']!r} of {feature!r} leads out of the dataset")
        return path.read_bytes()
    raise DecodeError(f"image cell of {feature!r} holds neither bytes nor a path")


def _image_size(feature: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width, whichever order the feature names its axes in."""
    names, shape = feature.get("names") or ["height", "width", "channel"], feature["shape"]
    return int(shape[names.index("height")]), int(shape[names.index("width")])


def _file_numbers(path: Path) -> tuple[int, int]:
    return int(path.parent.name.rpartition("-")[2]), int(path.stem.rpartition("-")[2])


def _licence(root: Path) -> str:
    path = root / "LICENSE"
    return path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[0] if path.is_file() else ""
