"""The scene of one sample of a batch: what training sees, by the matrices that came with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, Schema, Sensor
from .scene import SECOND, CameraImage, Path, Scene, boxes_of, chain, in_ring_order, is_radar, move, no_boxes

__all__ = ["scene_from_batch"]

Float = NDArray[np.float64]
_NOWHERE: Float = np.eye(4)


def scene_from_batch(batch: Mapping[str, Any], sample: int, schema: Schema) -> Scene:  # Any: see loader.batch
    """Take sample `sample` out of a batch of a set with `schema`: what training sees, crop and scale included."""
    stamp = int(batch["stamp"][sample])
    reference = batch.get(schema.reference, {})
    moment = _Moment(stamp=stamp, sample=sample)
    ego = moment.take(reference, EGO_TO_WORLD)
    if ego is None:
        found = (moment.take(entry, EGO_TO_WORLD) for entry in batch.values() if isinstance(entry, dict) and "points" in entry)
        ego = next((pose for pose in found if pose is not None), np.eye(4))
    cameras: list[CameraImage] = []
    clouds, boxes, path = [], no_boxes(), Path(seconds=np.zeros(0), position=np.zeros((0, 3)))
    for name, entry in batch.items():
        if not isinstance(entry, dict) or name == "state":
            continue
        sensor = schema.by_name.get(name)
        if "image" in entry and INTRINSICS in entry:
            cameras += _batch_cameras(entry, moment, ego, schema)
        elif "points" in entry and sensor is not None and _placed(sensor, entry) and moment.has(entry):
            offsets = np.asarray(entry["offsets"])
            at = sample * (len(offsets) // len(batch["stamp"])) + moment.step(entry)
            columns = [entry["columns"].index(axis) for axis in "xyz"]
            xyz = np.asarray(entry["points"])[offsets[at] : offsets[at + 1], columns].astype(np.float64)
            clouds.append(move(_batch_chain(sensor, entry, moment, ego), xyz[np.isfinite(xyz).all(-1)]))
        elif {"centre", "count"} <= set(entry) and sensor is not None and moment.has(entry):
            count = int(entry["count"][sample, moment.step(entry)])
            table = {field.name: entry[field.name][sample][moment.step(entry)][:count] for field in sensor.fields}
            boxes = boxes_of(sensor, table, _batch_chain(sensor, entry, moment, ego))
        elif {"position", "yaw", "stamp"} <= set(entry):
            there = np.asarray(entry["mask"][sample])
            seconds = (np.asarray(entry["stamp"][sample])[there] - stamp) / SECOND
            path = Path(seconds=seconds, position=np.asarray(entry["position"][sample], np.float64)[there])
    return Scene(
        title=f"{batch['drive'][sample]}   frame {int(batch['frame'][sample])}",
        stamp_ns=stamp,
        cameras=in_ring_order(cameras),
        points=np.concatenate(clouds) if clouds else np.zeros((0, 3)),
        boxes=boxes,
        path=path,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """One sample of a batch; of a window of several payloads, the one nearest the reference stamp."""

    stamp: int
    sample: int

    def step(self, entry: Mapping[str, Any]) -> int:
        stamps = np.asarray(entry["stamp"][self.sample])
        away = np.abs(stamps - self.stamp)
        return int(np.argmin(away.reshape(len(stamps), -1).min(1)))

    def has(self, entry: Mapping[str, Any]) -> bool:
        return bool(entry["mask"][self.sample, self.step(entry)])

    def take(self, entry: Mapping[str, Any], name: str, *place: int) -> Float | None:
        at = (self.sample, self.step(entry), *place)
        return np.asarray(entry[name][at], np.float64) if name in entry and entry["mask"][at] else None


def _batch_cameras(entry: Mapping[str, Any], moment: _Moment, ego: Float, schema: Schema) -> list[CameraImage]:
    cameras = []
    step = moment.step(entry)
    for place, name in enumerate(entry["sensors"]):
        at = (moment.sample, step, place)
        if not entry["mask"][at]:
            continue
        image = np.asarray(entry["image"][at].float() if entry["image"].is_floating_point() else entry["image"][at])
        image = image if image.shape[-1] == 3 else np.moveaxis(image, 0, -1)
        if image.dtype != np.uint8:  # normalised for training: stretched back to what a screen can show
            low, high = float(image.min()), float(image.max())
            image = ((image - low) * (255 / max(high - low, 1e-6))).astype(np.uint8)
        own, mount = moment.take(entry, EGO_TO_WORLD, place), moment.take(entry, SENSOR_TO_EGO, place)
        to_world = (ego if own is None else own) @ (_NOWHERE if mount is None else mount)
        camera = schema.by_name[name].camera
        cameras.append(
            CameraImage(
                name=name,
                image=np.ascontiguousarray(image),
                intrinsics=np.asarray(entry[INTRINSICS][at], np.float64),
                from_ego=np.linalg.inv(to_world) @ ego,
                model="pinhole" if camera is None else camera.model,
                distortion=np.asarray(entry["distortion"][at], np.float64) if "distortion" in entry else np.zeros(0),
                offset_ns=int(entry["stamp"][at]) - moment.stamp,
            )
        )
    return cameras


def _placed(sensor: Sensor, entry: Mapping[str, Any]) -> bool:
    """Say whether a batch tells where these points are: combined sweeps come without the matrices of each."""
    return not is_radar(sensor) and (sensor.frame != "sensor" or SENSOR_TO_EGO in entry)


def _batch_chain(sensor: Sensor, entry: Mapping[str, Any], moment: _Moment, ego: Float) -> Float:
    own, mount = moment.take(entry, EGO_TO_WORLD), moment.take(entry, SENSOR_TO_EGO)
    from_world = np.asarray(np.linalg.inv(ego), np.float64)
    return chain(sensor.frame, from_world, ego if own is None else own, _NOWHERE if mount is None else mount)
