"""One nuScenes scene as a drive: timelines cut from the tables, payloads read from its files one at a time.

What may go wrong in a single file after preflight (a cut image size, NaN points, a size that changed) raises `DecodeError`
naming file, sensor and stamp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import pose
from ..errors import DecodeError
from ..limits import DEFAULT_LIMITS
from ..schema import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, Schema
from ..source import Attachment, Payload, SourceDrive, SourceTimeline
from .nuscenes_check import Chosen
from .nuscenes_files import Folder, Layout, is_inside, read_image, read_labels, read_lidar, read_radar
from .nuscenes_links import Tables

__all__ = ["BOXES", "EGO", "LABELS", "REFERENCE", "SceneDrive"]

REFERENCE: Final = "sample"
BOXES: Final = "boxes"
EGO: Final = "ego"
LABELS: Final = "_lidarseg"
"""Suffix of the sensor that holds a LiDAR channel's point labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneDrive:
    """One scene of checked tables; `open` gives its timelines."""

    tables: Tables
    chosen: Chosen
    folder: Folder
    layout: Layout
    drop_nan: bool
    schema: Schema
    scene: int

    def open(self) -> SourceDrive:
        tables = self.tables
        samples = np.flatnonzero(tables.sample_scene == self.scene)
        samples = samples[np.argsort(tables.sample_stamp[samples], kind="stable")]
        stamps = tables.sample_stamp[samples]
        first, last = tables.bounds(self.scene, 0)[0], tables.bounds(self.scene, len(tables.channels) - 1)[1]
        ego_stamps, at = np.unique(tables.row_stamp[first:last], return_index=True)
        ego = tables.ego_to_world[tables.row_pose[first:last][at]]
        to_world = _poses_at(ego_stamps, ego, stamps)
        width = self.schema.sensor(REFERENCE).column("token").shape[0]
        token = tables.sample_token[samples].astype(f"S{width}").view(np.uint8).reshape(len(samples), width)
        timelines = {REFERENCE: SourceTimeline(stamps=stamps, columns={EGO_TO_WORLD: to_world, "token": token})}
        for channel in self.chosen.channels:
            self._channel(timelines, channel, samples)
        if EGO in self.schema.by_name:
            timelines[EGO] = SourceTimeline(stamps=ego_stamps, columns={EGO_TO_WORLD: ego})
        if BOXES in self.schema.by_name:
            timelines[BOXES] = SourceTimeline(
                stamps=stamps,
                columns={EGO_TO_WORLD: to_world},
                read=partial(self._boxes, samples),
                origin=lambda row: f"sample_annotation.json, sample {tables.sample_token[samples[row]].decode()}",
                own=np.arange(len(samples)),
            )
        return SourceDrive(timelines=timelines, attachments=self._attachments())

    def _channel(self, timelines: dict[str, SourceTimeline], channel: int, samples: NDArray[np.int64]) -> None:
        tables = self.tables
        name, modality = tables.channels[channel]
        first, last = tables.bounds(self.scene, channel)
        rows = np.arange(first, last)[self.chosen.sizes[first:last] >= 0]
        if len(rows) == 0:
            return
        calibration = tables.row_calibration[rows]
        columns: dict[str, NDArray[Any]] = {
            SENSOR_TO_EGO: tables.sensor_to_ego[calibration],
            EGO_TO_WORLD: tables.ego_to_world[tables.row_pose[rows]],
        }
        if modality == "camera":
            columns |= {
                INTRINSICS: tables.intrinsics[calibration],
                "width": tables.row_width[rows],
                "height": tables.row_height[rows],
            }
        timelines[name] = SourceTimeline(
            stamps=tables.row_stamp[rows],
            columns=columns,
            read=partial(self._payload, rows, modality),
            origin=lambda row: tables.row_file[rows[row]].decode(),
            own=self._own(rows, samples),
        )
        labelled = np.array([row for row in rows.tolist() if row in self.chosen.label_files], np.int64)
        if f"{name}{LABELS}" in self.schema.by_name and len(labelled):
            timelines[f"{name}{LABELS}"] = SourceTimeline(
                stamps=tables.row_stamp[labelled],
                columns={},
                read=partial(self._labels, labelled),
                origin=lambda row: self.chosen.label_files[int(labelled[row])],
                own=self._own(labelled, samples),
            )

    def _own(self, rows: NDArray[np.int64], samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each sample the position among `rows` of its key frame, −1 where it has none."""
        own = np.full(len(samples), -1, np.int64)
        sorted_samples = np.argsort(samples, kind="stable")
        keys = np.flatnonzero(self.tables.row_key[rows])
        frame = sorted_samples[np.searchsorted(samples[sorted_samples], self.tables.row_sample[rows[keys]])]
        own[frame] = keys
        return own

    def _payload(self, rows: NDArray[np.int64], modality: str, row: int) -> Payload:
        at = int(rows[row])
        filename = self.tables.row_file[at].decode()
        path = self.folder.path(filename)
        what = f"{filename} (sensor {self.tables.channel_of(at)!r}, stamp {int(self.tables.row_stamp[at])})"
        if modality == "camera":
            return read_image(path, what, int(self.tables.row_width[at]), int(self.tables.row_height[at]))
        if modality == "radar":
            return read_radar(path, what, allow_nan=self.drop_nan)
        # Labels go by position: a point that leaves would shift them all.
        return read_lidar(path, self.layout, what, allow_nan=self.drop_nan and at not in self.chosen.label_files)

    def _labels(self, rows: NDArray[np.int64], row: int) -> Payload:
        at = int(rows[row])
        filename = self.chosen.label_files[at]
        return read_labels(self.folder.path(filename), f"{filename} (stamp {int(self.tables.row_stamp[at])})")

    def _boxes(self, samples: NDArray[np.int64], row: int) -> Payload:
        boxes = self.tables.annotations
        assert boxes is not None, "only a source with annotations has the sensor"
        part = slice(int(boxes.starts[samples[row]]), int(boxes.starts[samples[row] + 1]))
        return {
            "centre": boxes.centre[part],
            "size": boxes.size[part],
            "rotation": boxes.rotation[part],
            "velocity": boxes.velocity[part],
            "category": boxes.category[part],
            "track_id": [token.decode() for token in boxes.track[part]],
            "attributes": [boxes.attribute_names[number] for number in boxes.attributes[part]],
            "visibility": boxes.visibility[part],
            "lidar_points": boxes.lidar_points[part],
            "radar_points": boxes.radar_points[part],
        }

    def _attachments(self) -> list[Attachment]:
        tables, scene = self.tables, self.tables.scenes[self.scene]
        names = [item.filename for item in tables.maps if scene.log in item.logs]
        location = tables.logs[scene.log].location if 0 <= scene.log < len(tables.logs) else ""
        names += [f"maps/expansion/{location}.json", f"maps/basemap/{location}.png"]
        names += [
            f"can_bus/{name}"
            for name in self.folder.sizes(self.folder.path("can_bus/-").parent)
            if name.startswith(f"{scene.name}_")
        ]
        kinds = {".png": "image/png", ".json": "application/json", ".jpg": "image/jpeg"}
        return [
            Attachment(name=name, media_type=kinds.get(path.suffix, "application/octet-stream"), read=_reader(path))
            for name in sorted(set(names))
            if is_inside(name) and (path := self.folder.path(name)).is_file()
        ]


def _reader(path: Path) -> Callable[[], bytes]:
    def read() -> bytes:
        size = path.stat().st_size
        if size > DEFAULT_LIMITS.attachment_bytes:
            raise DecodeError(f"cannot attach {path.name}: {size} bytes, above the limit of {DEFAULT_LIMITS.attachment_bytes}")
        return path.read_bytes()

    return read


def _poses_at(stamps: NDArray[np.int64], poses: NDArray[np.float64], at: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return poses at `at`: the source's own, bit for bit, where it has one at that stamp, else interpolated."""
    found = pose.interpolate(stamps, poses, at)
    nearest = np.minimum(np.searchsorted(stamps, at), len(stamps) - 1)
    exact = stamps[nearest] == at
    found[exact] = poses[nearest[exact]]
    return found
