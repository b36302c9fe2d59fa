"""L: no flipped bit, truncation or mix-up of files is ever read as good data; the set id depends on content alone."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.formats import CorruptShard, Manifest, PackedSet, PackOptions, SetError, convert_set, open_set, pack, verify_set
from tests.formats.ramp import ramp_spec


@pytest.fixture(scope="module", params=["arrow", "tar"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of one shard of a few kilobytes."""
    location = tmp_path_factory.mktemp("small") / "set"
    sensors = ("KEY", "BOX", "ego")
    pack(
        ramp_spec(drives=1, frames=2, image_bytes=40),
        location,
        PackOptions(format=request.param, workers=1, sensors=sensors),
    )
    return location


def read_all(packed: PackedSet) -> str:
    """Read everything a reader can read, as a digest."""
    digest = hashlib.sha256()
    for sensor in packed.schema.sensors:
        timeline = packed.timeline(sensor.name)
        rows = np.arange(len(timeline))
        for column in ("stamp", *(column.name for column in sensor.columns)):
            digest.update(timeline.take(column, rows).tobytes())
        digest.update(packed.own(sensor.name, np.arange(len(packed))).tobytes())
        digest.update(packed.frame_stamps(np.arange(len(packed))).tobytes())
        for frame in range(len(packed)):
            digest.update(repr(packed.filed(sensor.name, frame)).encode())
        if sensor.codec is not None:
            for row in rows.tolist():
                digest.update(timeline.payload(row))
    return digest.hexdigest()


def flips(path: Path, step: int, bits: Sequence[int] | None = None) -> Iterator[int]:
    """Flip one bit after the other in a file, each undone before the next; yields the byte. `bits` of each, or one in turn."""
    handle = os.open(path, os.O_RDWR)
    try:
        for at in range(0, os.fstat(handle).st_size, step):
            for bit in bits or (at % 8,):
                (value,) = os.pread(handle, 1, at)
                os.pwrite(handle, bytes([value ^ (1 << bit)]), at)
                yield at
                os.pwrite(handle, bytes([value]), at)
    finally:
        os.close(handle)


def check_flips(location: Path, step: int, every_bit: bool, verify_every: int) -> int:
    """Return how many flips were made; each one raises CorruptShard or changes nothing that is read."""
    manifest = open_set(location).manifest
    with open_set(location) as packed:
        wanted = read_all(packed)
    count = raised = 0
    for path in sorted(location.iterdir()):
        if path.suffix not in (".arrow", ".tar", ".sums"):
            continue
        for _ in flips(path, 1 if path.suffix == ".sums" else step, range(8) if every_bit else None):
            count += 1
            try:
                with PackedSet(location, manifest) as packed:
                    assert read_all(packed) == wanted
            except CorruptShard:
                raised += 1
            if count % verify_every == 0:
                report = verify_set(location)
                assert not report.ok
                assert report.errors
    assert verify_set(location).ok
    assert raised
    return count


@pytest.mark.slow
def test_no_flipped_bit_is_read_as_good_data(small: Path) -> None:
    assert check_flips(small, 23, every_bit=False, verify_every=29) > 300


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_no_flipped_bit_at_all_is_read_as_good_data(small: Path) -> None:
    assert check_flips(small, 1, every_bit=True, verify_every=50) > 50_000


@pytest.fixture(scope="module", params=["arrow", "tar"])
def middling(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of one shard of 64 KiB and a little more, most of it images."""
    location = tmp_path_factory.mktemp("middling") / "set"
    options = PackOptions(format=request.param, workers=1, sensors=("KEY", "CAM"))
    pack(ramp_spec(drives=1, frames=2, image_bytes=9_000), location, options)
    (shard,) = open_set(location).manifest.shards
    assert 1 << 16 <= shard.data.bytes < 1 << 17
    return location


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_of_a_bigger_shard_is_read_as_good_data(middling: Path, bit: int) -> None:
    """All eight together flip each of half a million bits."""
    manifest = open_set(middling).manifest
    with open_set(middling) as packed:
        wanted = read_all(packed)
    raised = 0
    (shard,) = manifest.shards
    for name in shard.file_names():
        for _ in flips(middling / name, 1, [bit]):
            try:
                with PackedSet(middling, manifest) as packed:
                    assert read_all(packed) == wanted
            except CorruptShard:
                raised += 1
    assert verify_set(middling).ok
    assert raised > 1 << 16


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_no_truncation_of_a_bigger_shard_passes(middling: Path) -> None:
    check_truncations(middling, 1)


def check_truncations(location: Path, step: int) -> None:
    manifest = open_set(location).manifest
    for path in sorted(location.iterdir()):
        if path.suffix not in (".arrow", ".tar", ".sums"):
            continue
        data = path.read_bytes()
        for size in [*range(0, len(data), step), len(data) + 1, len(data) + 4096]:
            path.write_bytes((data + bytes(4096))[:size])
            with pytest.raises(CorruptShard), PackedSet(location, manifest) as packed:
                read_all(packed)
        path.write_bytes(data)
    assert verify_set(location).ok


def test_no_truncation_or_appended_byte_passes(small: Path) -> None:
    check_truncations(small, 97)


@pytest.mark.full
def test_no_truncation_at_any_length_passes(small: Path) -> None:
    check_truncations(small, 1)


@pytest.mark.slow
def test_no_damage_to_the_manifest_passes(small: Path) -> None:
    path = small / "manifest.json"
    data = path.read_bytes()
    for _ in flips(path, 1):
        with pytest.raises(SetError):
            Manifest.decode(path.read_bytes())
    for size in range(len(data)):
        with pytest.raises(SetError):
            Manifest.decode(data[:size])
    with pytest.raises(SetError):
        Manifest.decode(data + b" ")


def _others(tmp_path: Path) -> tuple[Path, Path]:
    """Two sets of equal shape and different content."""
    for seed in (0, 1):
        pack(ramp_spec(seed=seed), tmp_path / str(seed), PackOptions(workers=1, shard_bytes=20_000))
    return tmp_path / "0", tmp_path / "1"


def _refused(location: Path) -> None:
    with pytest.raises(CorruptShard), open_set(location) as packed:
        read_all(packed)
    assert not verify_set(location).ok


def test_mixed_up_files_are_refused(tmp_path: Path) -> None:
    left, right = _others(tmp_path)
    shards = [open_set(place).manifest.shards for place in (left, right)]
    other = tmp_path / "other"

    # Two shards of one set under each other's names.
    shutil.copytree(left, other)
    for suffix in ("arrow", "sums"):
        a, b = (other / f"{shard.name}.{suffix}" for shard in shards[0][:2])
        content = a.read_bytes(), b.read_bytes()
        a.write_bytes(content[1])
        b.write_bytes(content[0])
    _refused(other)
    shutil.rmtree(other)

    # A shard of an older build under the name of the new one, padded to its size.
    shutil.copytree(left, other)
    name, old = shards[0][0].data_name, (right / shards[1][0].data_name).read_bytes()
    (other / name).write_bytes(old.ljust(shards[0][0].data.bytes, b"\0")[: shards[0][0].data.bytes])
    _refused(other)
    shutil.rmtree(other)

    # The manifest of another set.
    shutil.copytree(left, other)
    shutil.copy(right / "manifest.json", other / "manifest.json")
    _refused(other)
    shutil.rmtree(other)

    # A shard renamed in upper case.
    shutil.copytree(left, other)
    (other / name).rename(other / name.upper())
    with pytest.raises(CorruptShard, match="missing"):
        open_set(other)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drives=st.integers(1, 3),
    frames=st.integers(1, 4),
    shard_bytes=st.integers(1_000, 60_000),
    kinds=st.sampled_from([("arrow", "tar"), ("tar", "arrow")]),
)
def test_the_set_id_depends_on_content_alone(
    drives: int, frames: int, shard_bytes: int, kinds: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("id")
    first, second = kinds
    options = PackOptions(format="tar" if first == "tar" else "arrow", shard_bytes=shard_bytes, workers=1)
    packed = pack(ramp_spec(drives=drives, frames=frames), place / "a", options).manifest
    whole = pack(ramp_spec(drives=drives, frames=frames), place / "b", PackOptions(workers=1)).manifest
    converted = convert_set(place / "a", place / "c", format="tar" if second == "tar" else "arrow")
    assert packed.set_id == whole.set_id == converted.set_id
    with open_set(place / "a") as a, open_set(place / "c") as c:
        assert read_all(a) == read_all(c)
    changed = pack(ramp_spec(drives=drives, frames=frames, seed=1), place / "d", options).manifest
    assert changed.set_id != packed.set_id
