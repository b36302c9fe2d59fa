"""Several LiDAR (or radar) sweeps as one cloud: moved to the key sweep's frame by poses, timed, and de-skewed.

The recipe of multi-sweep detectors as pure float64 numpy: the reference that GPU kernels are compared with. Every sweep
moves by its own pose; what it leaves out (points on the ego itself, sweeps that are missing) is said by options and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ..formats import Sensor, UsageError
from ..formats.pose import compose, interpolate, invert, to_matrix
from .window import OnGap, Window

__all__ = ["Sweep", "Sweeps", "combine_sweeps", "deskew", "far_from_sensor", "sweep_columns", "sweep_motion"]

Float = NDArray[np.float64]

TIME_COLUMN: Final = "dt"
# Velocity columns turn with the cloud: radar's measured and ego-compensated ones. z may be absent.
_VELOCITIES: Final = (("vx", "vy", "vz"), ("vx_comp", "vy_comp", "vz_comp"))


@dataclass(frozen=True, slots=True)
class Sweeps:
    """A LiDAR window delivered as one point cloud per item, in the key sweep's frame.

    >>> Sweeps("LIDAR_TOP", past=10, choose=9).window.length
    10
    """

    sensor: str = "LIDAR_TOP"
    """A points sensor with columns `sensor_to_ego` and `ego_to_world`."""
    _: KW_ONLY
    past: int = 9
    """Sweeps before the key sweep, in the sensor's own payloads."""
    future: int = 0
    """Sweeps after it."""
    stride: int = 1
    """1: every sweep; 2: every other one …"""
    choose: Literal["all"] | int = "all"
    """n: a random n of them, drawn anew for each item (BEVFusion trains with past=10, choose=9)."""
    on_gap: OnGap = "mask"
    """Sweeps before the drive began: mask: the cloud has fewer sweeps; pad: the nearest sweep repeated; drop: no such item."""
    drop_self_m: float = 1.0
    """Points of the extra sweeps with |x| and |y| below this, in the sweep's own sensor frame, are on the ego and left out
    (a square, as in every published recipe). 0 keeps them."""
    drop_self_key: bool = False
    """Do the same to the key sweep."""
    time_column: bool = True
    """Add a last column "dt": key sweep's stamp − sweep's stamp, seconds (0 for the key sweep, positive for past ones)."""
    deskew: bool = False
    """Move each point by the ego motion between its own time (a field `t`, ns from the sweep's stamp) and its sweep's stamp."""
    name: str | None = None
    """Name of the batch field. None: the sensor's name."""

    def __post_init__(self) -> None:
        what = f"sweeps of {self.sensor!r}"
        for field in ("past", "future", "stride"):
            if not isinstance(getattr(self, field), int):
                raise UsageError(f"{what}: {field}={getattr(self, field)!r} must be a count of sweeps")
        is_number = isinstance(self.drop_self_m, int | float) and not isinstance(self.drop_self_m, bool)
        if not is_number or not 0 <= self.drop_self_m < 1000:
            raise UsageError(f"{what}: drop_self_m={self.drop_self_m!r} must be metres from 0 (off) to 1000")
        _ = self.window  # checks the rest

    @property
    def window(self) -> Window:
        """The window that reads the sweeps."""
        return Window(
            self.sensor,
            past=self.past,
            future=self.future,
            stride=self.stride,
            choose=self.choose,
            on_gap=self.on_gap,
            name=self.name,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the sweeps as plain data, for the view id."""
        return {"kind": "sweeps", **{field: getattr(self, field) for field in self.__dataclass_fields__ if field != "_"}}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep:
    """One sweep as it is stored, with where and when it was taken."""

    points: NDArray[Any]  # Any: structured (N,), the sensor's record dtype
    """Structured (N,) with at least x, y, z, in the frame that the sensor declares."""
    stamp_ns: int
    sensor_to_ego: Float
    """(7,)"""
    ego_to_world: Float
    """(7,), at the sweep's own stamp."""


def sweep_columns(sensor: Sensor, options: Sweeps) -> list[str]:
    """Return the names of the columns that `combine_sweeps` gives."""
    names = [field.name for field in sensor.fields]
    if any(name not in names for name in ("x", "y", "z")) or any(field.shape for field in sensor.fields):
        raise UsageError(f"sweeps of {sensor.name!r}: points need scalar fields x, y and z; it has: {', '.join(names)}")
    if options.time_column and TIME_COLUMN in names:
        raise UsageError(f"sweeps of {sensor.name!r}: its points have a field {TIME_COLUMN!r} already; use time_column=False")
    if options.deskew and "t" not in names:
        raise UsageError(f"sweeps of {sensor.name!r}: deskew needs a per-point field 't' (ns from the stamp); there is none")
    if options.deskew and sensor.deskewed:
        raise UsageError(f"sweeps of {sensor.name!r}: the schema says that its points are de-skewed; use deskew=False")
    return names + [TIME_COLUMN] * options.time_column


def combine_sweeps(
    sensor: Sensor,
    options: Sweeps,
    *,
    key: Sweep,
    extra: Sequence[Sweep],
    ego_stamps: NDArray[np.int64] | None = None,
    ego_poses: Float | None = None,
) -> NDArray[np.float32]:
    """Return one cloud (ΣN, C), float32: the key sweep, then `extra` in the order given, all in the key sweep's frame.

    Columns are `sweep_columns`. Coordinates are moved in float64 and rounded once. De-skewing needs the drive's ego poses
    (`ego_stamps` (m,) ascending, `ego_poses` (m, 7)) over the sweeps' time.
    """
    columns = sweep_columns(sensor, options)
    clouds = []
    for sweep in (key, *extra):
        is_key = sweep is key
        points = sweep.points
        xyz = _xyz(points)
        if options.drop_self_m > 0 and (options.drop_self_key or not is_key):
            keep = far_from_sensor(_in_sensor_frame(sensor, sweep, xyz), options.drop_self_m)
            points, xyz = points[keep], xyz[keep]
        if options.deskew:
            if ego_stamps is None or ego_poses is None:
                raise UsageError(f"sweeps of {sensor.name!r}: deskew needs the ego poses of the drive")
            xyz = deskew(sensor, sweep, xyz=xyz, times_ns=points["t"], ego_stamps=ego_stamps, ego_poses=ego_poses)
        motion = None if is_key else to_matrix(sweep_motion(sensor, sweep, key))
        if motion is not None:
            xyz = xyz @ motion[:3, :3].T + motion[:3, 3]
        cloud = np.empty((len(points), len(columns)), np.float32)
        for place, name in enumerate(columns):
            if name in ("x", "y", "z"):
                cloud[:, place] = xyz[:, "xyz".index(name)]
            elif name == TIME_COLUMN and options.time_column and place == len(columns) - 1:
                # In integers first: a float32 of epoch nanoseconds is off by minutes.
                cloud[:, place] = (key.stamp_ns - sweep.stamp_ns) * 1e-9
            else:
                cloud[:, place] = points[name]
        if motion is not None:
            _turn_velocities(cloud, columns, points, motion[:3, :3])
        clouds.append(cloud)
    return np.concatenate(clouds)


def sweep_motion(sensor: Sensor, sweep: Sweep, key: Sweep) -> Float:
    """Return the pose (7,) that takes points of `sweep` to the frame of the points of `key`."""
    if sensor.frame == "world":
        return np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    to_world, key_to_world = sweep.ego_to_world, key.ego_to_world
    if sensor.frame != "ego":
        to_world, key_to_world = compose(to_world, sweep.sensor_to_ego), compose(key_to_world, key.sensor_to_ego)
    return compose(invert(key_to_world), to_world)


def far_from_sensor(xyz: Float, radius_m: float) -> NDArray[np.bool_]:
    """Return which points (N, 3), sensor frame, are outside the square |x| < r, |y| < r."""
    return np.asarray((np.abs(xyz[:, 0]) >= radius_m) | (np.abs(xyz[:, 1]) >= radius_m))


def deskew(
    sensor: Sensor, sweep: Sweep, *, xyz: Float, times_ns: NDArray[Any], ego_stamps: NDArray[np.int64], ego_poses: Float
) -> Float:
    """Return points (N, 3) as seen from where the sensor was at the sweep's stamp; each was seen at stamp + `times_ns`.

    The ego pose is interpolated once per distinct time (all lasers of a firing share one), and clamped to the timeline.
    """
    if sensor.frame == "world" or not len(xyz):
        return xyz
    times, firing = np.unique(np.asarray(times_ns, np.int64), return_inverse=True)
    at = interpolate(ego_stamps, ego_poses, sweep.stamp_ns + times)
    centre = interpolate(ego_stamps, ego_poses, np.array([sweep.stamp_ns], np.int64))
    motion = compose(invert(centre), at)
    if sensor.frame != "ego":
        mount = np.asarray(sweep.sensor_to_ego, np.float64)[None]
        motion = compose(invert(mount), compose(motion, mount))
    matrices = to_matrix(motion)[firing.reshape(-1)]
    return np.asarray(np.einsum("nij,nj->ni", matrices[:, :3, :3], xyz) + matrices[:, :3, 3])


def _xyz(points: NDArray[Any]) -> Float:
    return np.stack([points["x"], points["y"], points["z"]], -1).astype(np.float64)


def _in_sensor_frame(sensor: Sensor, sweep: Sweep, xyz: Float) -> Float:
    if sensor.frame not in ("ego", "world"):
        return xyz
    pose = sweep.sensor_to_ego if sensor.frame == "ego" else compose(sweep.ego_to_world, sweep.sensor_to_ego)
    matrix = to_matrix(invert(pose))
    return np.asarray(xyz @ matrix[:3, :3].T + matrix[:3, 3])


def _turn_velocities(cloud: NDArray[np.float32], columns: list[str], points: NDArray[Any], rotation: Float) -> None:
    for names in _VELOCITIES:
        if names[0] not in columns or names[1] not in columns:
            continue
        present = [name for name in names if name in columns]
        velocity = np.zeros((len(points), 3))
        for axis, name in enumerate(present):
            velocity[:, axis] = points[name]
        turned = velocity @ rotation.T
        for axis, name in enumerate(present):
            cloud[:, columns.index(name)] = turned[:, axis]
