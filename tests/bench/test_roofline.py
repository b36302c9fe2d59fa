"""The roof is the slowest stage, and the table from it to the measured rate adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.bench.limits import Limit
from headway.bench.make_data import make_data
from headway.bench.roofline import explain, roofline
from headway.bench.workload_source import SPEC_KIND
from headway.bench.workloads import workload
from headway.formats.adapters import SourceSpec
from headway.formats.packed_set import open_set
from headway.formats.packer import pack


def _limit(what: str, unit: str, per_core: float) -> Limit:
    return Limit(what=what, unit=unit, per_core=per_core, spread=1.0)


LIMITS = [
    _limit("decode 160 × 90 JPEG, whole", "images", 999.0),
    _limit("160 × 90 JPEG → 704 × 256 float32, native", "images", 400.0),
    _limit("decode lidar (points-raw)", "points", 1e6),
    _limit("gather sample.trajectory", "rows", 1e6),
    _limit("memcpy", "bytes", 1e10),
    _limit("read a shard from page cache", "bytes", 5e9),
]


def test_the_slowest_stage_is_the_roof_and_the_gap_is_explained(tmp_path: Path) -> None:
    data = make_data(workload("W1", samples=4, cameras=2, image=(90, 160), points=50), tmp_path / "data").directory
    pack(SourceSpec(kind=SPEC_KIND, path=str(data)), str(tmp_path / "set"))
    with open_set(tmp_path / "set") as packed:
        stages = roofline(packed, LIMITS, cores=2.0)
    assert stages[0].what == "decode"
    assert stages[0].samples_per_s == pytest.approx(400.0)  # 400 a core × 2 cores ÷ 2 cameras
    assert {stage.what for stage in stages} == {
        "decode", "points of lidar", "gather sample.trajectory", "write batches", "read from page cache",
    }  # fmt: skip
    written = next(stage for stage in stages if stage.what == "write batches").cost
    assert written > 2 * 3 * 4 * 256 * 704
    table = explain(stages, samples_per_s=300.0, cores_used=1.8, cores=2.0)
    adding = [row for row in table if row["adds"]]
    assert sum(row["core_ms_a_sample"] for row in adding) == pytest.approx(2.0 / 300 * 1e3)
    assert explain(stages, samples_per_s=0.0, cores_used=0.0, cores=2.0)[-1]["stage"] == stages[-1].what
