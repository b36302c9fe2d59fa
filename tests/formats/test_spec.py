"""SPEC.md is enough to read a set: a reader written from it finds what headway finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.formats import PackOptions, ShardKind, merge_sets, open_set, pack
from tests.formats.ramp import ramp_spec
from tests.formats.spec_reader import SpecSet


def agree(location: Path) -> None:
    """Compare both readers on everything."""
    spec = SpecSet(location)
    with open_set(location) as packed:
        assert spec.set_id() == packed.set_id
        for at, drive in enumerate(spec.manifest["drives"]):
            frames = np.arange(packed.frame_starts[at], packed.frame_starts[at + 1])
            for number, sensor in enumerate(packed.schema.sensors):
                timeline = packed.timeline(sensor.name)
                start = int(timeline.starts[at])
                own = packed.own(sensor.name, frames)
                assert spec.own(drive, number) == np.where(own < 0, -1, own - start).tolist()
                for row, (stamp, columns, payload) in enumerate(spec.rows(drive, number), start):
                    assert stamp == timeline.take("stamp", np.array([row]))[0]
                    for name, value in columns.items():
                        assert np.array_equal(timeline.take(name, np.array([row]))[0], value)
                    if payload is not None:
                        assert payload == timeline.payload(row)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrow", "tar"])
def test_the_independent_reader_agrees(kind: ShardKind, tmp_path: Path) -> None:
    pack(ramp_spec(frames=2), tmp_path / "set", PackOptions(format=kind, shard_bytes=15_000, workers=1))
    agree(tmp_path / "set")


@pytest.mark.slow
def test_the_independent_reader_agrees_on_merged_sets(tmp_path: Path) -> None:
    pack(ramp_spec(drives=2, frames=2), tmp_path / "a", PackOptions(workers=1))
    pack(ramp_spec(drives=3, frames=2, skip=2), tmp_path / "b", PackOptions(workers=1, format="tar"))
    merge_sets([tmp_path / "b", tmp_path / "a"], tmp_path / "set")
    agree(tmp_path / "set")
