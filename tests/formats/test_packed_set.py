"""A set gives back what its source gave, by global rows, frames and filing."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headway.formats import PackedSet, PackOptions, UsageError, open_set, pack
from headway.formats.shard_column import take_rows
from tests.formats.ramp import SCHEMA, Ramp, equal_payloads, ramp_spec


@pytest.fixture(scope="module", params=["arrow", "tar"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    """The ramp in three or more shards of either kind."""
    location = tmp_path_factory.mktemp("ramp") / "set"
    pack(ramp_spec(), location, PackOptions(format=request.param, shard_bytes=30_000, workers=1))
    return open_set(location)


def test_every_payload_and_column_comes_back(packed: PackedSet) -> None:
    ramp = Ramp()
    assert [drive.name for drive in packed.drives] == [listing.name for listing in ramp.listings]
    assert len(packed.manifest.shards) > 2
    for at, drive in enumerate(packed.drives):
        source = ramp.open_drive(drive.name)
        for sensor in SCHEMA.sensors:
            timeline = packed.timeline(sensor.name)
            start, stop = int(timeline.starts[at]), int(timeline.starts[at + 1])
            wanted = source.timelines.get(sensor.name)
            if wanted is None:
                assert start == stop
                continue
            assert np.array_equal(timeline.stamps(at), wanted.stamps)
            rows = np.arange(start, stop)
            for column in sensor.columns:
                assert np.array_equal(timeline.take(column.name, rows), wanted.columns[column.name])
            if wanted.read is not None:
                for row in range(stop - start):
                    assert equal_payloads(timeline.value(start + row), wanted.read(row))


def test_places_found_once_serve_every_column(packed: PackedSet) -> None:
    rng = np.random.default_rng(3)
    for sensor in SCHEMA.sensors:
        timeline = packed.timeline(sensor.name)
        for rows in (rng.integers(0, len(timeline), 50), np.empty(0, np.int64)) if len(timeline) else ():
            places = timeline.places(rows)
            for column in sensor.columns:
                out = np.empty((len(rows), *column.shape), column.numpy_dtype)
                take_rows([timeline.column(column.name)], places, [out])
                assert np.array_equal(out, timeline.take(column.name, rows))
            with pytest.raises(UsageError, match="out of range"):
                timeline.places(np.array([len(timeline)]))


def test_own_and_filed_rows_follow_the_rule(packed: PackedSet) -> None:
    ramp = Ramp()
    frames = np.arange(len(packed))
    for sensor in SCHEMA.sensors:
        timeline, own = packed.timeline(sensor.name), packed.own(sensor.name, frames)
        covered = [row for frame in frames.tolist() for row in packed.filed(sensor.name, frame)]
        assert covered == list(range(len(timeline)))
        for at, drive in enumerate(packed.drives):
            wanted = ramp.open_drive(drive.name).timelines.get(sensor.name)
            here = own[packed.frame_starts[at] : packed.frame_starts[at + 1]]
            if wanted is not None and wanted.own is not None:
                assert np.array_equal(here - timeline.starts[at], wanted.own)
            for frame, row in enumerate(here.tolist()):
                assert row == -1 or row in packed.filed(sensor.name, int(packed.frame_starts[at]) + frame)


def test_rows_may_be_taken_in_any_order_and_repeatedly(packed: PackedSet) -> None:
    timeline = packed.timeline("ego")
    rows = np.random.default_rng(0).integers(0, len(timeline), 500)
    every = timeline.take("ego_to_world", np.arange(len(timeline)))
    assert np.array_equal(timeline.take("ego_to_world", rows), every[rows])
    out = np.empty((500, 7))
    assert timeline.take("ego_to_world", rows, out=out) is out
    assert np.array_equal(out, every[rows])


def test_refs_point_at_the_payload_bytes(packed: PackedSet) -> None:
    timeline = packed.timeline("CAM")
    refs = timeline.refs(np.arange(len(timeline)))
    for row in range(len(timeline)):
        offset, length = int(refs.offset[row]), int(refs.length[row])
        assert packed.shard_bytes(int(refs.shard[row]))[offset : offset + length] == timeline.payload(row)


def test_payloads_are_read_only(packed: PackedSet) -> None:
    assert packed.timeline("CAM").payload(0).readonly
    assert not packed.timeline("CAM").stamps(0).flags.writeable


def test_out_of_range_rows_and_frames_are_refused(packed: PackedSet) -> None:
    timeline = packed.timeline("CAM")
    for bad in (-1, len(timeline)):
        with pytest.raises(UsageError, match="out of range"):
            timeline.payload(bad)
        with pytest.raises(UsageError, match="out of range"):
            timeline.take("stamp", np.array([0, bad]))
    with pytest.raises(UsageError, match="out of range"):
        packed.own("CAM", np.array([len(packed)]))


def test_attachments_come_back_and_equal_ones_are_stored_once(packed: PackedSet) -> None:
    assert packed.attachment("drive-1", "map.bin") == b"one map for all drives"
    assert packed.attachment("drive-1", "log.txt") == b"log of drive-1"
    assert len(list((Path(packed.location) / "attachments").iterdir())) == 1 + len(packed.drives)


def test_a_pickled_set_reopens(packed: PackedSet) -> None:
    again = pickle.loads(pickle.dumps(packed))  # noqa: S301  our own bytes
    assert again.set_id == packed.set_id
    assert again.timeline("CAM").payload(3) == packed.timeline("CAM").payload(3)


def test_a_pinned_digest_must_match(packed: PackedSet) -> None:
    assert open_set(packed.location, expect_digest=packed.manifest.digest).set_id == packed.set_id
    with pytest.raises(ValueError, match="not the set that was pinned"):
        open_set(packed.location, expect_digest="0" * 64)


def test_the_set_id_does_not_depend_on_shards(packed: PackedSet, tmp_path: Path) -> None:
    for number, options in enumerate((PackOptions(workers=1), PackOptions(format="tar", shard_bytes=5_000, workers=1))):
        assert pack(ramp_spec(), tmp_path / str(number), options).manifest.set_id == packed.set_id


@pytest.mark.slow
def test_more_shards_than_descriptors_can_be_open(tmp_path: Path) -> None:
    """A process with 40 descriptors reads a set of more shards."""
    pack(ramp_spec(drives=1, frames=45), tmp_path / "set", PackOptions(shard_bytes=2_000, workers=1))
    script = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\nfrom headway.formats import open_set\n"
        "packed = open_set(sys.argv[1])\ntimeline = packed.timeline('CAM')\n"
        "views = [timeline.payload(row) for row in range(len(timeline))]\nassert len(packed.manifest.shards) > 40\n"
        "packed.close()\nassert all(len(view) >= 0 for view in views)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "set")], check=True, timeout=60)
