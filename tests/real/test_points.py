"""Real sweeps under the points codecs: bit for bit, within the stated error, and as small as promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.bench.points import measure_points, read_sweep
from headway.formats.errors import SourceError
from headway.formats.points import decode_points, encode_points
from headway.formats.schema import Column, Sensor

pytestmark = pytest.mark.real

FULL_PRECISION = "nuscenes/samples/LIDAR_TOP/n015-2018-07-24-11-22-45+0800__LIDAR_TOP__1532402927647951.pcd.bin"
ROUNDED = (
    "kitti/training/velodyne/000000.bin",
    "kitti/training/velodyne/000001.bin",
    "kitti_raw/2011_09_26/drive_unknown_sync/velodyne_points/data/0000000000.bin",
)


def lidar(columns: int, codec: Any) -> Sensor:  # Any: a Literal of schema.py
    names = ("x", "y", "z", "intensity", "ring")[:columns]
    fields = tuple(Column(name=name, dtype="float32", unit="m" if name in "xyz" else "") for name in names)
    return Sensor(name="LIDAR_TOP", kind="points", codec=codec, fields=fields)


@pytest.mark.parametrize(("file", "floor"), [(FULL_PRECISION, 2.0), *((file, 1.9) for file in ROUNDED)])
def test_lossless_is_exact_and_small(real_data: Path, file: str, floor: float) -> None:
    sweep = read_sweep(real_data / file)
    sensor = lidar(sweep.shape[1], "points-lossless")
    payload = encode_points(sweep.view(sensor.record_dtype)[:, 0], sensor)
    assert decode_points(payload, sensor).tobytes() == (real_data / file).read_bytes()
    assert sweep.nbytes >= floor * len(payload)


@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize("file", [FULL_PRECISION, ROUNDED[0]])
def test_quantised_is_four_times_smaller_within_half_a_step(real_data: Path, file: str, step: int) -> None:
    sweep = read_sweep(real_data / file)
    sensor = lidar(sweep.shape[1], "points-quantised")
    payload = encode_points(sweep.view(sensor.record_dtype)[:, 0], sensor, precision_mm=step)
    decoded = decode_points(payload, sensor).view(np.float32).reshape(sweep.shape)
    assert float(np.abs(decoded[:, :3].astype(np.float64) - sweep[:, :3]).max()) <= step / 2000 + 1e-5
    assert np.array_equal(decoded[:, 3:], sweep[:, 3:])
    assert sweep.nbytes >= 4 * len(payload)


def test_nan_and_infinity_of_a_broken_sweep_survive_or_are_refused(real_data: Path) -> None:
    sweep = read_sweep(real_data / "pointcloud_odd/nuscenes_nan_inf_4000pts.pcd.bin")
    sensor = lidar(5, "points-lossless")
    records = sweep.view(sensor.record_dtype)[:, 0]
    assert decode_points(encode_points(records, sensor), sensor).tobytes() == sweep.tobytes()
    bad = int((~np.isfinite(sweep[:, :3])).any(1).sum())
    assert bad > 0
    with pytest.raises(SourceError, match=f"{bad} of 4000"):
        encode_points(records, lidar(5, "points-quantised"))
    kept = decode_points(encode_points(records, lidar(5, "points-quantised"), drop_nan=True), lidar(5, "points-quantised"))
    assert len(kept) == 4000 - bad


def test_the_bench_reports_each_codec(real_data: Path) -> None:
    rows = list(measure_points("sweep", read_sweep(real_data / FULL_PRECISION), repeats=1))
    assert {"points-raw", "points-lossless", "points-quantised 1 mm", "zstd-3 interleaved"} <= {str(row["codec"]) for row in rows}
