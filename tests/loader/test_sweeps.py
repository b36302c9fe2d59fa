"""Multi-sweep clouds against brute force: one point at a time, with inverted 4 × 4 matrices in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.formats import Column, Sensor, UsageError
from headway.formats.pose import interpolate, to_matrix
from headway.loader.sweeps import Sweep, Sweeps, combine_sweeps, deskew, sweep_columns
from headway.loader.view import View

from .memory_set import POSES, XYZ, MemorySet, lidar

EPOCH = 1_700_000_000 * 10**9
TIMED = (*XYZ, Column(name="t", dtype="int64", unit="ns"))
RADAR = (*XYZ, *(Column(name=name, dtype="float32", unit="m/s") for name in ("vx", "vy", "vx_comp", "vy_comp")))


def sensor_of(frame: str = "sensor", fields: tuple[Column, ...] = XYZ, *, deskewed: bool = False) -> Sensor:
    """Return a points sensor."""
    return Sensor(
        name="LIDAR", kind="points", codec="points-raw", columns=POSES, fields=fields, deskewed=deskewed,
        frame=frame,  # type: ignore[arg-type]  # one of the frames, as a parameter
    )  # fmt: skip


def random_sweep(rng: np.random.Generator, sensor: Sensor, stamp_ns: int, points: int = 7) -> Sweep:
    """Return a sweep near the ego, somewhere on a map whose origin is kilometres away."""
    cloud = np.zeros(points, sensor.record_dtype)
    for field in sensor.fields:
        cloud[field.name] = rng.integers(0, 10**8, points) if field.name == "t" else rng.normal(size=points) * 3
    mount, world = rng.normal(size=7), rng.normal(size=7)
    world[:3] = world[:3] * 20 + [4e5, 5e6, 100]
    return Sweep(points=cloud, stamp_ns=stamp_ns, sensor_to_ego=mount, ego_to_world=world)


def slow_to_key(sensor: Sensor, sweep: Sweep, key: Sweep, point: NDArray[Any]) -> NDArray[Any]:
    """Move one homogeneous point through the world."""
    if sensor.frame == "world":
        return point
    mounts = [np.eye(4) if sensor.frame == "ego" else to_matrix(each.sensor_to_ego) for each in (sweep, key)]
    world = to_matrix(sweep.ego_to_world) @ mounts[0] @ point
    return np.asarray(np.linalg.inv(mounts[1]) @ np.linalg.inv(to_matrix(key.ego_to_world)) @ world)


@given(st.integers(0, 10_000), st.sampled_from(["sensor", "ego"]), st.floats(0, 4), st.booleans())
def test_clouds_are_those_of_brute_force(seed: int, frame: str, radius: float, drop_key: bool) -> None:
    rng, sensor = np.random.default_rng(seed), sensor_of(frame)
    key = random_sweep(rng, sensor, EPOCH)
    extra = [random_sweep(rng, sensor, EPOCH - 50_000_000 * lag, points=lag) for lag in (1, 2, 3)]
    for each in extra:  # neighbours in space, too: a car is not 20 m on after 50 ms
        each.ego_to_world[:3] = key.ego_to_world[:3] + rng.normal(size=3)
    options = Sweeps("LIDAR", drop_self_m=radius, drop_self_key=drop_key)
    cloud = combine_sweeps(sensor, options, key=key, extra=extra)
    expected = []
    for sweep in (key, *extra):
        for point in sweep.points:
            place = np.array([point["x"], point["y"], point["z"], 1], np.float64)
            seen = place if frame == "sensor" else np.linalg.inv(to_matrix(sweep.sensor_to_ego)) @ place
            on_self = abs(seen[0]) < radius and abs(seen[1]) < radius
            if on_self and (drop_key or sweep is not key):
                continue
            moved = place if sweep is key else slow_to_key(sensor, sweep, key, place)
            expected.append([*moved[:3], point["intensity"], (EPOCH - sweep.stamp_ns) / 1e9])
    assert cloud.dtype == np.float32
    assert cloud.shape == (len(expected), 5)
    # float64 through coordinates of 5e6 m keeps about a nanometre times a few operations; float32 of 10 m a micrometre.
    assert not len(expected) or np.abs(cloud - np.array(expected)).max() < 1e-5


def test_world_points_stay_where_they_are() -> None:
    rng, sensor = np.random.default_rng(0), sensor_of("world")
    key, old = random_sweep(rng, sensor, EPOCH), random_sweep(rng, sensor, EPOCH - 1)
    cloud = combine_sweeps(sensor, Sweeps("LIDAR", drop_self_m=0), key=key, extra=[old])
    assert np.array_equal(cloud[:, 0], np.concatenate([key.points["x"], old.points["x"]]))


def test_the_key_sweep_is_bit_exact() -> None:
    rng, sensor = np.random.default_rng(1), sensor_of()
    key = random_sweep(rng, sensor, EPOCH)
    cloud = combine_sweeps(sensor, Sweeps("LIDAR", time_column=False), key=key, extra=[])
    assert cloud.tobytes() == np.stack([key.points[name] for name in ("x", "y", "z", "intensity")], -1).tobytes()


def test_time_lags_keep_their_digits_at_epoch_scale() -> None:
    """open-mmlab/mmdetection3d#296: stamps cast to float32 give neighbouring sweeps equal times."""
    rng, sensor = np.random.default_rng(2), sensor_of()
    key = random_sweep(rng, sensor, EPOCH)
    extra = [random_sweep(rng, sensor, EPOCH - lag) for lag in (50_000_000, 100_000_123)]
    cloud = combine_sweeps(sensor, Sweeps("LIDAR", drop_self_m=0), key=key, extra=extra)
    assert sorted(set(cloud[:, -1].tolist())) == [0, np.float32(0.05), np.float32(0.100000123)]


def test_velocities_turn_with_the_cloud_and_do_not_shift() -> None:
    sensor = sensor_of(fields=RADAR)
    points = np.zeros(1, sensor.record_dtype)
    points["vx"], points["vy_comp"] = 2, 3
    still = np.array([0, 0, 0, 1.0, 0, 0, 0])
    left = np.array([10, 0, 0, np.cos(np.pi / 4), 0, 0, np.sin(np.pi / 4)])
    key = Sweep(points=points[:0], stamp_ns=0, sensor_to_ego=still, ego_to_world=still)
    turned = Sweep(points=points, stamp_ns=0, sensor_to_ego=still, ego_to_world=left)
    cloud = combine_sweeps(sensor, Sweeps("LIDAR", drop_self_m=0, time_column=False), key=key, extra=[turned])
    names = sweep_columns(sensor, Sweeps("LIDAR", time_column=False))
    found = dict(zip(names, cloud[0].tolist(), strict=True))
    assert (found["x"], found["vx"], found["vy"]) == pytest.approx((10, 0, 2), abs=1e-6)
    assert (found["vx_comp"], found["vy_comp"]) == pytest.approx((-3, 0), abs=1e-6)


@given(st.integers(0, 10_000), st.sampled_from(["sensor", "ego"]))
def test_deskewed_points_are_those_of_brute_force(seed: int, frame: str) -> None:
    rng, sensor = np.random.default_rng(seed), sensor_of(frame, TIMED)
    stamps = EPOCH + np.array([0, 40, 90, 150]) * 1_000_000
    poses = rng.normal(size=(4, 7)) + np.array([4e5, 5e6, 0, 5, 0, 0, 0])
    sweep = random_sweep(rng, sensor, EPOCH + 20_000_000)
    xyz = np.stack([sweep.points[name] for name in "xyz"], -1).astype(np.float64)
    moved = deskew(sensor, sweep, xyz=xyz, times_ns=sweep.points["t"], ego_stamps=stamps, ego_poses=poses)
    mount = np.eye(4) if frame == "ego" else to_matrix(sweep.sensor_to_ego)
    at_stamp = to_matrix(interpolate(stamps, poses, np.array([sweep.stamp_ns])))[0] @ mount
    for point, time, found in zip(xyz, sweep.points["t"], moved, strict=True):
        seen_from = to_matrix(interpolate(stamps, poses, np.array([sweep.stamp_ns + time])))[0] @ mount
        expected = np.linalg.inv(at_stamp) @ seen_from @ [*point, 1]
        assert np.abs(found - expected[:3]).max() < 1e-6


def test_a_deskewed_wall_is_straight() -> None:
    """Drive 10 m/s past points fixed in the world, scanned over 0.1 s: de-skewed, they are where they are."""
    sensor = sensor_of(fields=TIMED)
    still = np.array([0, 0, 0, 1.0, 0, 0, 0])
    times = np.arange(0, 100_000_000, 10_000_000)
    points = np.zeros(len(times), sensor.record_dtype)
    points["t"], points["x"], points["y"] = times, 20 - 10 * times * 1e-9, 5
    ego_stamps = EPOCH + np.array([0, 200_000_000])
    ego_poses = np.array([still, still])
    ego_poses[1, 0] = 2
    key = Sweep(points=points, stamp_ns=EPOCH, sensor_to_ego=still, ego_to_world=still)
    options = Sweeps("LIDAR", deskew=True)
    cloud = combine_sweeps(sensor, options, key=key, extra=[], ego_stamps=ego_stamps, ego_poses=ego_poses)
    assert np.allclose(cloud[:, 0], 20, atol=1e-5)


def test_what_the_schema_cannot_give_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a per-point field 't'"):
        sweep_columns(sensor_of(), Sweeps("LIDAR", deskew=True))
    with pytest.raises(UsageError, match="says that its points are de-skewed"):
        sweep_columns(sensor_of(fields=TIMED, deskewed=True), Sweeps("LIDAR", deskew=True))
    with pytest.raises(UsageError, match="scalar fields x, y and z"):
        sweep_columns(sensor_of(fields=XYZ[1:]), Sweeps("LIDAR"))
    with pytest.raises(UsageError, match="have a field 'dt' already"):
        sweep_columns(sensor_of(fields=(*XYZ, Column(name="dt", dtype="float32"))), Sweeps("LIDAR"))
    with pytest.raises(UsageError, match="drop_self_m=-1"):
        Sweeps("LIDAR", drop_self_m=-1)
    with pytest.raises(UsageError, match="choose=12"):
        Sweeps("LIDAR", past=10, choose=12)


def test_nine_of_ten_sweeps_are_drawn_anew_for_every_item_epoch_and_occurrence() -> None:
    files = MemorySet([lidar()], [{"LIDAR_TOP": list(range(30))}])
    view = View(files, windows=[Sweeps(past=10, choose=9)])
    items = np.arange(10, 30)

    def drawn(**keys: int) -> NDArray[Any]:
        given_keys = {"seed": 0, "epoch": 0, "occurrence": 0} | keys
        return view.resolve(items, **given_keys)["LIDAR_TOP"].steps

    first = drawn()
    assert first.shape == (20, 10)
    assert (first[:, -1] == 0).all()
    assert (np.diff(first, axis=1) > 0).all()
    assert np.array_equal(first, drawn())
    for other in ({"seed": 1}, {"epoch": 1}, {"occurrence": 1}):
        assert not np.array_equal(first, drawn(**other))
    # Every one of the ten is left out now and then.
    left_out = [set(range(-10, 0)) - set(row[:-1].tolist()) for epoch in range(10) for row in drawn(epoch=epoch)]
    assert set.union(*left_out) == set(range(-10, 0))


def test_near_the_start_of_a_drive_all_existing_sweeps_are_taken() -> None:
    files = MemorySet([lidar()], [{"LIDAR_TOP": list(range(30))}])
    resolved = View(files, windows=[Sweeps(past=10, choose=9)]).resolve(np.arange(12), seed=0, epoch=0)["LIDAR_TOP"]
    assert resolved.valid.sum((1, 2)).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10]
    assert resolved.complete.tolist() == [False] * 9 + [True] * 3
