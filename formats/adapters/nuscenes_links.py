"""nuScenes' tables with their token references resolved to row numbers, and everything that does not resolve reported.

One `Tables` holds the whole metadata as columns; token strings live only as long as they are being resolved. Rows with a
reference that leads nowhere are reported and dropped, so that the rest can still be checked in the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .nuscenes_boxes import Annotations, load_annotations
from .nuscenes_tables import DOWNLOAD, LINKS, POSE, Findings, TableField, TableReader, TokenIndex, read_poses

__all__ = ["Label", "Log", "Map", "SceneRow", "Tables", "load_tables"]

_MODALITIES: Final = ("camera", "lidar", "radar")


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneRow:
    """One scene: a drive of the set."""

    name: str
    token: str
    description: str
    log: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The recording a scene was cut from."""

    logfile: str
    vehicle: str
    date: str
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """One raster map and the logs it serves."""

    filename: str
    logs: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Per-point labels of one key sweep (nuScenes-lidarseg)."""

    row: int
    """Row of `Tables`' sample data."""
    filename: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The metadata of a nuScenes dataset; arrays named `row_*` are sample_data's, ordered by scene, channel and stamp."""

    scenes: Sequence[SceneRow]
    logs: Sequence[Log]
    maps: Sequence[Map]
    channels: Sequence[tuple[str, str]]
    """(channel, modality)."""
    sample_stamp: NDArray[np.int64]
    sample_scene: NDArray[np.int32]
    sample_token: NDArray[np.bytes_]
    row_starts: NDArray[np.int64]
    """Where each (scene, channel) starts among the rows."""
    row_sample: NDArray[np.int32]
    row_channel: NDArray[np.int16]
    row_calibration: NDArray[np.int32]
    row_pose: NDArray[np.int32]
    row_stamp: NDArray[np.int64]
    row_key: NDArray[np.bool_]
    row_width: NDArray[np.int32]
    row_height: NDArray[np.int32]
    row_file: NDArray[np.bytes_]
    sensor_to_ego: NDArray[np.float64]
    intrinsics: NDArray[np.float64]
    ego_to_world: NDArray[np.float64]
    categories: Sequence[str]
    point_labels: Sequence[str]
    """Class names of lidarseg by index; empty without lidarseg."""
    annotations: Annotations | None
    labels: Sequence[Label]

    def bounds(self, scene: int, channel: int) -> tuple[int, int]:
        """Return the first and last + 1 row of one channel in one scene."""
        at = scene * len(self.channels) + channel
        return int(self.row_starts[at]), int(self.row_starts[at + 1])

    def channel_of(self, row: int) -> str:
        """Return the channel name of one sample_data row."""
        return self.channels[int(self.row_channel[row])][0]


def load_tables(folder: Path, shown: str, findings: Findings, *, limit_bytes: int) -> Tables:
    """Read and link every table in `folder`, which messages call `shown`."""
    reader = TableReader(folder, shown, findings, limit_bytes)
    text = {name: TableField(name=name, value="text") for name in ("name", "description", "channel", "modality", "filename")}
    sensor, sensors = reader.read("sensor", text["channel"], text["modality"])
    channels, sensor_channel = _channels(reader, sensor, findings)
    calibration, calibrations = reader.read(
        "calibrated_sensor",
        TableField(name="sensor_token", value="token"),
        *POSE,
        TableField(name="camera_intrinsic", value="matrix", default=[], optional=True),
    )
    to_sensor = reader.follow("calibrated_sensor", calibration, "sensor_token", sensors, "sensor.json")
    calibration_channel = np.where(to_sensor < 0, -1, np.append(sensor_channel, -1)[to_sensor])
    pose, poses = reader.read("ego_pose", *POSE)
    logs, scenes, sample, samples, sample_scene = _scenes(reader, text, findings)
    rows, data_index = _sample_data(
        reader, text, channels, samples, sample, poses, calibrations, calibration_channel, sample_scene
    )
    category, categories = reader.read(
        "category", text["name"], TableField(name="index", value="integer", default=-1, optional=True)
    )
    names = [name.decode() for name in category["name"]]
    return Tables(
        scenes=scenes,
        logs=logs[0],
        maps=_maps(reader, text, logs[1]),
        channels=channels,
        sample_stamp=sample["timestamp"],
        sample_scene=sample_scene.astype(np.int32),
        sample_token=sample["token"],
        sensor_to_ego=read_poses(reader, "calibrated_sensor", calibration),
        intrinsics=calibration["camera_intrinsic"],
        ego_to_world=read_poses(reader, "ego_pose", pose),
        categories=names,
        point_labels=_label_names(names, category["index"]) if reader.has("lidarseg") else (),
        annotations=load_annotations(reader, samples, sample, categories),
        labels=_labels(reader, text, data_index, rows.pop("order")),
        **rows,
    )


def _channels(reader: TableReader, sensor: dict[str, Any], findings: Findings) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
    """Return the channels with their modality, and the channel of each sensor row, −1 for one of no modality we know."""
    pairs = [
        (channel.decode(), modality.decode()) for channel, modality in zip(sensor["channel"], sensor["modality"], strict=True)
    ]
    for row, (channel, modality) in enumerate(pairs):
        if modality not in _MODALITIES:
            reason = f"row {row}: modality is {modality!r}, expected one of {', '.join(_MODALITIES)}"
            findings.add("json", reader.name("sensor"), reason, sensor=channel)
    channels = sorted({pair for pair in pairs if pair[1] in _MODALITIES})
    for (first, _), (second, _) in pairwise(channels):
        if first == second:
            findings.add("duplicate", reader.name("sensor"), f"channel {first!r} has two modalities; {DOWNLOAD}", sensor=first)
    numbers = {pair: number for number, pair in enumerate(channels)}
    return channels, np.array([numbers.get(pair, -1) for pair in pairs], np.int64)


def _scenes(
    reader: TableReader, text: dict[str, TableField], findings: Findings
) -> tuple[tuple[list[Log], TokenIndex], list[SceneRow], dict[str, Any], TokenIndex, NDArray[np.int64]]:
    fields = [TableField(name=name, value="text") for name in ("logfile", "vehicle", "date_captured", "location")]
    log, log_index = reader.read("log", *fields)
    logs = [
        Log(logfile=a.decode(), vehicle=b.decode(), date=c.decode(), location=d.decode())
        for a, b, c, d in zip(*(log[field.name] for field in fields), strict=True)
    ]
    scene, scene_index = reader.read(
        "scene",
        text["name"],
        text["description"],
        TableField(name="log_token", value="token"),
        TableField(name="nbr_samples", value="integer"),
        TableField(name="first_sample_token", value="token"),
        TableField(name="last_sample_token", value="token"),
    )
    scene_log = reader.follow("scene", scene, "log_token", log_index, "log.json")
    sample, samples = reader.read(
        "sample", TableField(name="timestamp", value="stamp"), TableField(name="scene_token", value="token"), *LINKS
    )
    sample_scene = reader.follow("sample", sample, "scene_token", scene_index, "scene.json")
    for field in ("prev", "next"):
        reader.follow("sample", sample, field, samples, "sample.json", empty=True)
    for field in ("first_sample_token", "last_sample_token"):
        reader.follow("scene", scene, field, samples, "sample.json")
    names = [name.decode() for name in scene["name"]]
    lowered = [name.lower() for name in names]
    held = np.bincount(sample_scene[sample_scene >= 0], minlength=len(names))
    for row, name in enumerate(names):
        if lowered.index(name.lower()) < row:
            findings.add("duplicate", reader.name("scene"), f"scene name {name!r} is used by an earlier row; {DOWNLOAD}")
        if held[row] != scene["nbr_samples"][row] and reader.is_whole("sample"):
            reason = f"scene {name!r} says it has {scene['nbr_samples'][row]} samples, sample.json holds {held[row]}; {DOWNLOAD}"
            findings.add("dangling", reader.name("scene"), reason)
    order = np.lexsort((sample["timestamp"], sample_scene))
    again = order[1:][
        (np.diff(sample_scene[order]) == 0) & (np.diff(sample["timestamp"][order]) == 0) & (sample_scene[order][1:] >= 0)
    ]
    for row in again:
        reason = f"row {row}: two samples of scene {names[sample_scene[row]]!r} have one stamp; {DOWNLOAD}"
        findings.add("duplicate", reader.name("sample"), reason, stamp_ns=int(sample["timestamp"][row]))
    scenes = [
        SceneRow(
            name=name, token=scene["token"][row].decode(), description=scene["description"][row].decode(), log=int(scene_log[row])
        )
        for row, name in enumerate(names)
    ]
    return (logs, log_index), scenes, sample, samples, sample_scene


def _sample_data(
    reader: TableReader,
    text: dict[str, TableField],
    channels: Sequence[tuple[str, str]],
    samples: TokenIndex,
    sample: dict[str, Any],
    poses: TokenIndex,
    calibrations: TokenIndex,
    calibration_channel: NDArray[np.int64],
    sample_scene: NDArray[np.int64],
) -> tuple[dict[str, Any], TokenIndex]:
    token = [TableField(name=f"{name}_token", value="token") for name in ("sample", "ego_pose", "calibrated_sensor")]
    data, index = reader.read(
        "sample_data",
        *token,
        *LINKS,
        TableField(name="timestamp", value="stamp"),
        TableField(name="is_key_frame", value="flag"),
        text["filename"],
        TableField(name="width", value="integer", default=0, optional=True),
        TableField(name="height", value="integer", default=0, optional=True),
    )
    to_calibration = reader.follow("sample_data", data, "calibrated_sensor_token", calibrations, "calibrated_sensor.json")
    channel = np.where(to_calibration < 0, -1, np.append(calibration_channel, -1)[to_calibration])
    names = np.array([*(name for name, _ in channels), ""], object)[channel]
    to_sample = reader.follow("sample_data", data, "sample_token", samples, "sample.json", sensors=names)
    to_pose = reader.follow("sample_data", data, "ego_pose_token", poses, "ego_pose.json", sensors=names)
    for field in ("prev", "next"):
        reader.follow("sample_data", data, field, index, "sample_data.json", empty=True, sensors=names)
        del data[field]
    scene = np.append(sample_scene, -1)[to_sample]
    order = np.lexsort((data["timestamp"], channel, scene))
    order = order[((to_calibration >= 0) & (to_pose >= 0) & (scene >= 0) & (channel >= 0))[order]]
    key = scene[order] * len(channels) + channel[order]
    scenes = int(sample_scene.max(initial=-1)) + 1
    return {
        "order": order,
        "row_starts": np.searchsorted(key, np.arange(scenes * len(channels) + 1)),
        "row_sample": to_sample[order].astype(np.int32),
        "row_channel": channel[order].astype(np.int16),
        "row_calibration": to_calibration[order].astype(np.int32),
        "row_pose": to_pose[order].astype(np.int32),
        "row_stamp": data["timestamp"][order],
        "row_key": data["is_key_frame"][order],
        "row_width": np.clip(data["width"][order], 0, 1 << 30).astype(np.int32),
        "row_height": np.clip(data["height"][order], 0, 1 << 30).astype(np.int32),
        "row_file": data["filename"][order],
    }, index


def _maps(reader: TableReader, text: dict[str, TableField], logs: TokenIndex) -> list[Map]:
    table, _ = reader.read("map", text["filename"], TableField(name="log_tokens", value="tokens"))
    found = []
    for row, tokens in enumerate(table["log_tokens"]):
        column = {
            "token": np.repeat(table["token"][row : row + 1], len(tokens)),
            "log_tokens": np.array([t.encode() for t in tokens], "S"),
        }
        rows = reader.follow("map", column, "log_tokens", logs, "log.json") if tokens else np.zeros(0, np.int64)
        found.append(Map(filename=table["filename"][row].decode(), logs=frozenset(rows[rows >= 0].tolist())))
    return found


def _label_names(names: Sequence[str], indexes: NDArray[np.int64]) -> tuple[str, ...]:
    """Return class names by lidarseg index; indexes no category has are called by their number."""
    known = {int(index): name for name, index in zip(names, indexes, strict=True) if 0 <= index < 256}
    return tuple(known.get(index, f"index {index}") for index in range(max(known, default=-1) + 1))


def _labels(reader: TableReader, text: dict[str, TableField], data: TokenIndex, order: NDArray[np.int64]) -> list[Label]:
    if not reader.has("lidarseg"):
        return []
    table, _ = reader.read("lidarseg", TableField(name="sample_data_token", value="token"), text["filename"])
    target = reader.follow("lidarseg", table, "sample_data_token", data, "sample_data.json")
    position = np.full(int(order.max(initial=-1)) + 1, -1)
    position[order] = np.arange(len(order))
    found = []
    for row, filename in zip(target.tolist(), table["filename"], strict=True):
        if 0 <= row < len(position) and position[row] >= 0:
            found.append(Label(row=int(position[row]), filename=filename.decode()))
    return found
