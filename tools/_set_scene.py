"""The scene of one frame of a packed set: each payload at its own stamp and pose, moved through the world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ..formats import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, DecodeError, Sensor, UsageError
from ..formats.pose import interpolate, invert, to_matrix
from ..formats.raw_image import read_raw, states_size
from .scene import SECOND, CameraImage, Path, Scene, boxes_of, chain, in_ring_order, is_radar, move, no_boxes

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet
    from ..formats.timeline import Timeline

__all__ = ["scene_from_set"]

Float = NDArray[np.float64]
PAST_NS, FUTURE_NS = 2 * SECOND, 6 * SECOND


def scene_from_set(packed: PackedSet, frame: int) -> Scene:
    """Read global frame `frame` of a set, payloads and all."""
    if not 0 <= frame < len(packed):
        raise UsageError(f"cannot show frame {frame}: the set has frames 0 to {len(packed) - 1}")
    schema = packed.schema
    drive = int(np.searchsorted(packed.frame_starts, frame, side="right")) - 1
    stamp, ego = _ego_at(packed, drive, frame)
    from_world = to_matrix(invert(ego))
    cameras, clouds, boxes = [], [], no_boxes()
    for sensor in schema.sensors:
        row = int(packed.own(sensor.name, np.array([frame]))[0])
        if row < 0 or sensor.codec is None:
            continue
        timeline = packed.timeline(sensor.name)

        def column(name: str, sensor: Sensor = sensor, row: int = row) -> NDArray[Any] | None:
            return packed.timeline(sensor.name).take(name, np.array([row]))[0] if sensor.has(name) else None

        own_ego, mount = column(EGO_TO_WORLD), column(SENSOR_TO_EGO)
        to_world = to_matrix(ego if own_ego is None else own_ego)
        to_own_ego = np.eye(4) if mount is None else to_matrix(mount)
        if sensor.kind == "image" and sensor.has(INTRINSICS) and sensor.camera is not None:
            matrix, distortion = column(INTRINSICS), column("distortion")
            offset = int(timeline.take("stamp", np.array([row]))[0]) - stamp
            cameras.append(
                CameraImage(
                    name=sensor.name,
                    image=_picture(timeline, row),
                    intrinsics=np.asarray(matrix, np.float64),
                    from_ego=np.linalg.inv(to_world @ to_own_ego) @ to_matrix(ego),
                    model=sensor.camera.model,
                    distortion=np.zeros(0) if distortion is None else np.asarray(distortion, np.float64),
                    offset_ns=offset,
                )
            )
        elif sensor.kind == "points" and {"x", "y", "z"} <= {item.name for item in sensor.fields} and not is_radar(sensor):
            cloud = timeline.value(row)
            assert isinstance(cloud, np.ndarray)
            xyz = np.stack([cloud["x"], cloud["y"], cloud["z"]], -1).astype(np.float64)
            clouds.append(move(chain(sensor.frame, from_world, to_world, to_own_ego), xyz[np.isfinite(xyz).all(-1)]))
        elif sensor.kind == "table" and {"centre", "size", "rotation"} <= {item.name for item in sensor.fields}:
            table = timeline.value(row)
            assert isinstance(table, Mapping)
            boxes = boxes_of(sensor, table, chain(sensor.frame, from_world, to_world, to_own_ego))
    return Scene(
        title=f"{packed.drives[drive].name}   frame {frame - int(packed.frame_starts[drive])}",
        stamp_ns=stamp,
        cameras=in_ring_order(cameras),
        points=np.concatenate(clouds) if clouds else np.zeros((0, 3)),
        boxes=boxes,
        path=_path(packed, drive, stamp, from_world),
    )


def _ego_at(packed: PackedSet, drive: int, frame: int) -> tuple[int, Float]:
    """Return the frame's stamp and the ego pose then: the reference's own, else the ego timeline's, else the origin."""
    reference = packed.timeline(packed.schema.reference)
    rows = np.array([frame])
    stamp = int(reference.take("stamp", rows)[0])
    if reference.sensor.has(EGO_TO_WORLD):
        return stamp, np.asarray(reference.take(EGO_TO_WORLD, rows)[0], np.float64)
    track = _track(packed, drive)
    if track is None:
        return stamp, np.array([0.0, 0, 0, 1, 0, 0, 0])
    return stamp, interpolate(*track, np.array([stamp]))[0]


def _track(packed: PackedSet, drive: int) -> tuple[NDArray[np.int64], Float] | None:
    """Return stamps and poses of the ego in one drive, from the densest timeline that has them."""
    best: tuple[NDArray[np.int64], Float] | None = None
    for sensor in packed.schema.sensors:
        if sensor.has(EGO_TO_WORLD) and (sensor.codec is None or sensor.name == packed.schema.reference):
            timeline = packed.timeline(sensor.name)
            rows = np.arange(int(timeline.starts[drive]), int(timeline.starts[drive + 1]))
            if len(rows) > (0 if best is None else len(best[0])):
                best = np.asarray(timeline.stamps(drive)), np.asarray(timeline.take(EGO_TO_WORLD, rows), np.float64)
    return best


def _path(packed: PackedSet, drive: int, stamp: int, from_world: Float) -> Path:
    track = _track(packed, drive)
    if track is None:
        return Path(seconds=np.zeros(0), position=np.zeros((0, 3)))
    stamps, poses = track
    at = stamp + np.arange(-PAST_NS, FUTURE_NS + 1, SECOND // 4)
    at = at[(at >= stamps[0]) & (at <= stamps[-1])]
    position = move(from_world, interpolate(stamps, poses, at)[:, :3]) if len(at) else np.zeros((0, 3))
    return Path(seconds=(at - stamp) / SECOND, position=position)


def _picture(timeline: Timeline, row: int) -> NDArray[np.uint8]:
    """Return RGB of an image as it is stored: the orientation tag is not applied, as intrinsics do not know it.

    Raw pixels of unstated size have no picture to show: a grey sheet stands for it, on which points and boxes still lie.
    """
    sensor = timeline.sensor
    if sensor.codec == "raw":
        return _levels(read_raw(timeline, row)) if states_size(sensor) else np.full((900, 1600, 3), 70, np.uint8)
    data = timeline.value(row)
    if isinstance(data, np.ndarray):  # a video frame
        return data
    assert isinstance(data, bytes)
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if len(data) else None
    if image is None:
        raise DecodeError(
            f"cannot draw an image of sensor {sensor.name!r}: {len(data)} bytes of codec {sensor.codec!r} do not decode; "
            "run `headway verify`, or export the frame to look at the bytes"
        )
    return np.asarray(image[..., ::-1], np.uint8)


def _levels(pixels: NDArray[Any]) -> NDArray[np.uint8]:  # Any: what raw images hold
    """Return RGB of raw pixels: bytes as they are, depths and longer ones brightest at their largest; bayer stays a mosaic."""
    if pixels.dtype != np.uint8:
        finite = np.nan_to_num(pixels.astype(np.float64), posinf=0.0, neginf=0.0)
        pixels = np.clip(finite * 255 / max(float(finite.max(initial=0.0)), 1e-9), 0, 255).astype(np.uint8)
    return np.repeat(pixels[..., None], 3, 2) if pixels.ndim == 2 else pixels
