"""Synthetic drives in nuScenes' own format: six cameras at 12 Hz, a LiDAR at 20 Hz, annotated key frames at 2 Hz.

Every file and table is a function of the seed. The same boxes are painted into the cameras, hit by the LiDAR and annotated,
each at the stamp of whoever looks, so points, pixels and labels agree; `synthetic_world`, `synthetic_camera` and
`synthetic_lidar` are what is seen. The tables open in nuscenes-devkit, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from ..formats import UsageError
from ..formats.pose import compose, rotation_matrix, to_matrix
from .synthetic_camera import Camera, Ground, make_ground
from .synthetic_lidar import Lidar, Sweep
from .synthetic_world import CAMERAS, LIDAR_TO_EGO, World, make_world

__all__ = ["SYNTHETIC_VERSION", "TINY", "Detail", "write_nuscenes"]

SYNTHETIC_VERSION: Final = "v1.0-synthetic"
"""Name of the folder that holds the tables."""

_LIDAR: Final = "LIDAR_TOP"
_FIRST_US: Final = 1_600_000_000_000_000
_KEY_US, _SWEEP_US, _IMAGES_A_SECOND = 500_000, 50_000, 12
_ANNOTATED_M: Final = 65.0
_VISIBILITY: Final = ((0.4, "1", "v0-40"), (0.6, "2", "v40-60"), (0.8, "3", "v60-80"), (1.1, "4", "v80-100"))

_TABLES: Final = (
    *("attribute", "calibrated_sensor", "category", "ego_pose", "instance", "log", "map", "sample", "sample_annotation"),
    *("sample_data", "scene", "sensor", "visibility"),
)

Row = dict[str, Any]  # Any: one row of a JSON table


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """How finely the drives are sensed; the defaults are nuScenes' own."""

    image_size: tuple[int, int] = (1600, 900)
    """Width, height in pixels; intrinsics follow."""
    rings: int = 32
    columns: int = 1085
    """Firings a LiDAR rotation."""
    jpeg_quality: int = 85
    ground_m: float = 0.1
    """Size of a pixel of the ground's texture."""


TINY: Final = Detail(image_size=(160, 90), rings=16, columns=360, ground_m=0.4)
"""For tests: the same drives in a fortieth of the time."""


def write_nuscenes(
    destination: str | os.PathLike[str],
    *,
    drives: int = 2,
    seconds: float = 6.0,
    seed: int = 0,
    detail: Detail | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write synthetic drives into a new folder `destination`, which appears when it is complete; return it.

    About 10 s of one core for a drive of 6 s. `progress` is told files done and files in all.

    Raises:
        UsageError: the destination is there already, or holds something else.
    """
    target = Path(destination)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"cannot write synthetic drives to {str(target)!r}: it is not empty; remove it or name another folder")
    if drives < 1 or seconds < 0.5:
        raise UsageError(f"cannot write {drives} drives of {seconds} s: at least one of 0.5 s makes a data set")
    staging = target.with_name(f"{target.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        writer = _Writer(staging, seed, detail or Detail(), drives, seconds, progress)
        for drive in range(drives):
            writer.write_drive(drive)
        writer.write_tables()
        if target.exists():
            target.rmdir()
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return target


@dataclass
class _Writer:
    root: Path
    seed: int
    detail: Detail
    drives: int
    seconds: float
    progress: Callable[[int, int], None] | None
    tables: dict[str, list[Row]] = field(default_factory=dict)
    done: int = 0

    def __post_init__(self) -> None:
        width, height = self.detail.image_size
        self.cameras = [Camera(rig=rig, width=width, height=height) for rig in CAMERAS]
        self.lidar = Lidar(rings=self.detail.rings, columns=self.detail.columns)
        self.samples = int(self.seconds * 1_000_000) // _KEY_US + 1
        self.tables = {name: [] for name in _TABLES}
        for camera in CAMERAS:
            (self.root / "samples" / camera.name).mkdir(parents=True)
            (self.root / "sweeps" / camera.name).mkdir(parents=True)
        for folder in ("samples", "sweeps"):
            (self.root / folder / _LIDAR).mkdir(parents=True)
        (self.root / "maps").mkdir()

    def write_drive(self, drive: int) -> None:
        """Write the files and rows of one drive."""
        world = make_world(self.seed, drive, self.seconds)
        ground = make_ground(world, self.seed * 1000 + drive, pixel_m=self.detail.ground_m)
        start = _FIRST_US + drive * 3600 * 1_000_000
        log = f"synthetic-{drive:04}-2020-09-13-12-26-40+0000"
        self._scene_rows(drive, start, log, ground)
        rng = np.random.default_rng([self.seed, drive, 2])
        last = (self.samples - 1) * _KEY_US
        brightness = rng.uniform(25, 220, len(world.things))
        sizes = np.array([thing.size for thing in world.things])
        annotated: dict[int, Row] = {}
        sweeps: list[Row] = []
        for offset in range(0, last + 1, _SWEEP_US):
            seconds = offset / 1e6
            boxes, ego = world.poses(seconds), world.ego(seconds)
            sweep = self.lidar.sweep(compose(ego, np.array(LIDAR_TO_EGO)), boxes, sizes, brightness, rng)
            row = self._data_row(drive, start, start + offset, log, _LIDAR, offset % _KEY_US == 0, ego)
            (self.root / row["filename"]).write_bytes(sweep.points.tobytes())
            sweeps.append(row)
            if row["is_key_frame"]:
                self._annotate(drive, offset // _KEY_US, world, boxes, ego, sweep, annotated)
        _link(sweeps)
        colours = np.array([thing.colour for thing in world.things], np.uint8)
        for camera in self.cameras:
            self._images(camera, drive, start, log, world, ground, sizes, colours)

    def write_tables(self) -> None:
        """Write the JSON tables."""
        for name, level in ((row[1], row[2]) for row in _VISIBILITY):
            self.tables["visibility"].append({"token": name, "level": level, "description": f"visible share {level[1:]} %"})
        folder = self.root / SYNTHETIC_VERSION
        folder.mkdir()
        for table, rows in self.tables.items():
            (folder / f"{table}.json").write_text(json.dumps(rows, indent=0) + "\n", "utf-8")

    def _images(
        self,
        camera: Camera,
        drive: int,
        start: int,
        log: str,
        world: World,
        ground: Ground,
        sizes: NDArray[np.float64],
        colours: NDArray[np.uint8],
    ) -> None:
        rows: list[Row] = []
        for number in range((self.samples - 1) * _IMAGES_A_SECOND // 2 + 1):
            offset = round(number * 1_000_000 / _IMAGES_A_SECOND) - camera.rig.before_us
            seconds = offset / 1e6
            ego = world.ego(seconds)
            image = camera.picture(ego, ground, world.poses(seconds), sizes, colours)
            row = self._data_row(drive, start, start + offset, log, camera.rig.name, number % 6 == 0, ego, camera)
            data = simplejpeg.encode_jpeg(image, self.detail.jpeg_quality, "RGB", "420", fastdct=False)
            (self.root / row["filename"]).write_bytes(data)
            rows.append(row)
        _link(rows)

    def _token(self, *parts: str | int) -> str:
        text = "/".join(map(str, (self.seed, *parts)))
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    def _named(self, table: str, name: str, **more: object) -> str:
        """Return the token of a row of a table of names, which is added the first time."""
        token = self._token(table, name)
        if all(row["token"] != token for row in self.tables[table]):
            self.tables[table].append({"token": token, "name": name, "description": "", **more})
        return token

    def _scene_rows(self, drive: int, start: int, log: str, ground: Ground) -> None:
        log_token, scene = self._token("log", drive), self._token("scene", drive)
        place = f"synthetic-town-{drive}"
        self.tables["log"].append(
            {"token": log_token, "logfile": log, "vehicle": "synthetic", "date_captured": "2020-09-13", "location": place}
        )
        map_token = self._token("map", drive)
        filename = f"maps/{map_token}.png"
        # Rasters run north up: their first row is the greatest y.
        (self.root / filename).write_bytes(cv2.imencode(".png", ground.road[::-1])[1].tobytes())
        self.tables["map"].append(
            {"token": map_token, "log_tokens": [log_token], "category": "semantic_prior", "filename": filename}
        )
        for number in range(self.samples):
            self.tables["sample"].append(
                {
                    "token": self._token("sample", drive, number),
                    "timestamp": start + number * _KEY_US,
                    "prev": self._token("sample", drive, number - 1) if number else "",
                    "next": self._token("sample", drive, number + 1) if number + 1 < self.samples else "",
                    "scene_token": scene,
                }
            )
        self.tables["scene"].append(
            {
                "token": scene,
                "log_token": log_token,
                "nbr_samples": self.samples,
                "first_sample_token": self._token("sample", drive, 0),
                "last_sample_token": self._token("sample", drive, self.samples - 1),
                "name": f"synthetic-{drive:04}",
                "description": "a made-up town with coloured boxes for traffic",
            }
        )
        for camera in self.cameras:
            self._calibrate(drive, camera.rig.name, "camera", camera.rig.sensor_to_ego, camera.intrinsics.tolist())
        self._calibrate(drive, _LIDAR, "lidar", np.array(LIDAR_TO_EGO), [])

    def _calibrate(
        self, drive: int, channel: str, modality: str, pose: NDArray[np.float64], intrinsics: list[list[float]]
    ) -> None:
        sensor = self._token("sensor", channel)
        if drive == 0:
            self.tables["sensor"].append({"token": sensor, "channel": channel, "modality": modality})
        self.tables["calibrated_sensor"].append(
            {
                "token": self._token("calibrated_sensor", drive, channel),
                "sensor_token": sensor,
                "translation": pose[:3].tolist(),
                "rotation": pose[3:].tolist(),
                "camera_intrinsic": intrinsics,
            }
        )

    def _data_row(
        self,
        drive: int,
        start: int,
        stamp: int,
        log: str,
        channel: str,
        key: bool,
        ego: NDArray[np.float64],
        camera: Camera | None = None,
    ) -> Row:
        token = self._token("sample_data", drive, channel, stamp)
        self.tables["ego_pose"].append(
            {"token": token, "timestamp": stamp, "rotation": ego[3:].tolist(), "translation": ego[:3].tolist()}
        )
        folder, ending = "samples" if key else "sweeps", "jpg" if camera else "pcd.bin"
        row = {
            "token": token,
            # A row between two samples belongs to the later one.
            "sample_token": self._token("sample", drive, -((start - stamp) // _KEY_US)),
            "ego_pose_token": token,
            "calibrated_sensor_token": self._token("calibrated_sensor", drive, channel),
            "timestamp": stamp,
            "fileformat": "jpg" if camera else "pcd",
            "is_key_frame": key,
            "height": camera.height if camera else 0,
            "width": camera.width if camera else 0,
            "filename": f"{folder}/{channel}/{log}__{channel}__{stamp}.{ending}",
            "prev": "",
            "next": "",
        }
        self.tables["sample_data"].append(row)
        self.done += 1
        if self.progress is not None:
            images = (self.samples - 1) * _IMAGES_A_SECOND // 2 + 1
            self.progress(self.done, self.drives * (images * len(CAMERAS) + (self.samples - 1) * _KEY_US // _SWEEP_US + 1))
        return row

    def _annotate(
        self,
        drive: int,
        sample: int,
        world: World,
        boxes: NDArray[np.float64],
        ego: NDArray[np.float64],
        sweep: Sweep,
        annotated: dict[int, Row],
    ) -> None:
        """Add the boxes around the car; `annotated` holds each thing's latest annotation, to link the next one to it."""
        to_world = to_matrix(compose(ego, np.array(LIDAR_TO_EGO)))
        points = sweep.points[:, :3].astype(np.float64) @ to_world[:3, :3].T + to_world[:3, 3]
        for number, thing in enumerate(world.things):
            box = boxes[number]
            if not thing.category or np.linalg.norm(box[:2] - ego[:2]) > _ANNOTATED_M:
                continue
            length, width, height = thing.size
            around = np.abs(points[:, :2] - box[:2]).max(1) < length + width
            local = (points[around] - box[:3]) @ rotation_matrix(box[3:])
            inside = (np.abs(local) <= np.array(thing.size) / 2).all(1)
            token, instance = self._token("annotation", drive, sample, number), self._token("instance", drive, number)
            row = {
                "token": token,
                "sample_token": self._token("sample", drive, sample),
                "instance_token": instance,
                "visibility_token": next(name for share, name, _ in _VISIBILITY if sweep.seen[number] < share),
                "attribute_tokens": [self._named("attribute", thing.attribute)] if thing.attribute else [],
                "translation": box[:3].tolist(),
                "size": [width, length, height],
                "rotation": box[3:].tolist(),
                "prev": "",
                "next": "",
                "num_lidar_pts": int(inside.sum()),
                "num_radar_pts": 0,
            }
            before = annotated.get(number)
            if before is None:
                category = self._named("category", thing.category, index=len(self.tables["category"]) + 1)
                self.tables["instance"].append(
                    {"token": instance, "category_token": category, "nbr_annotations": 0, "first_annotation_token": token}
                )
            else:
                before["next"], row["prev"] = token, before["token"]
            owner = next(item for item in reversed(self.tables["instance"]) if item["token"] == instance)
            owner["nbr_annotations"] += 1
            owner["last_annotation_token"] = token
            annotated[number] = row
            self.tables["sample_annotation"].append(row)


def _link(rows: list[Row]) -> None:
    for before, after in pairwise(rows):
        before["next"], after["prev"] = after["token"], before["token"]
