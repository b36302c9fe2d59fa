"""A chunk of a column is compared when a row in it is first taken: not before, and never too late."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.formats import CorruptShard, PackOptions, kernel, open_set, pack
from headway.formats.integrity import CHUNK, ChunkedFile, MappedFile, chunk_sums
from headway.formats.shard_column import take_later, take_rows
from tests.formats.ramp import ramp_spec

POSE = "ego_to_world"
WIDTH = 7 * 8


@pytest.fixture(params=["native", "numpy"])
def path_taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the native core, and without."""
    if request.param == "numpy":
        monkeypatch.setattr(kernel, "available", lambda: False)
    elif not kernel.available():
        pytest.skip("the native core is not built")
    return str(request.param)


@pytest.fixture(scope="module")
def poses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set whose poses fill several chunks of its one shard."""
    location = tmp_path_factory.mktemp("touch") / "set"
    pack(ramp_spec(drives=1, frames=800), location, PackOptions(format="tar", workers=1, sensors=("KEY", "ego")))
    return location


@contextmanager
def flipped(path: Path, at: int) -> Iterator[None]:
    """Flip a bit of byte `at`."""
    handle = os.open(path, os.O_RDWR)
    (value,) = os.pread(handle, 1, at)
    try:
        os.pwrite(handle, bytes([value ^ (1 << at % 8)]), at)
        yield
    finally:
        os.pwrite(handle, bytes([value]), at)
        os.close(handle)


def rows_by_chunk(location: Path) -> tuple[Path, NDArray[np.int64], NDArray[np.int64]]:
    """Return the index file, and the first and last chunk of each row of the poses."""
    with open_set(location) as packed:
        part = packed.timeline("ego").column(POSE).part(0)
        assert part.file is not None
        begin = part.values.__array_interface__["data"][0] - part.file.mapped.address
        starts = begin + np.arange(len(part.values)) * WIDTH
        return location / packed.manifest.shards[0].index_name, starts // CHUNK, (starts + WIDTH - 1) // CHUNK


def test_a_flipped_bit_is_found_by_the_rows_of_its_chunk_alone(poses: Path, path_taken: str) -> None:
    file, first, last = rows_by_chunk(poses)
    with open_set(poses) as packed:
        wanted = packed.timeline("ego").take(POSE, np.arange(len(first)))
    chunks = np.unique(first).tolist()
    assert len(chunks) >= 5
    for chunk in chunks[1:-1]:  # those without anything of another column, or of the metadata
        inside = (first == chunk) | (last == chunk)
        with flipped(file, chunk * CHUNK + 37 * chunk % CHUNK), open_set(poses) as packed:
            ego = packed.timeline("ego")
            others = np.flatnonzero(~inside)
            assert np.array_equal(ego.take(POSE, others), wanted[others])
            for row in np.flatnonzero(inside)[[0, 1, -2, -1]].tolist():
                with pytest.raises(CorruptShard, match=rf"{file.name}.*chunk {chunk} "):
                    ego.take(POSE, np.array([others[0], row]))
            assert np.array_equal(ego.take(POSE, others), wanted[others])


def test_a_flipped_bit_anywhere_in_the_file_changes_no_value_that_is_read(poses: Path, path_taken: str) -> None:
    file, _, last = rows_by_chunk(poses)
    with open_set(poses) as packed:
        wanted = packed.timeline("ego").take(POSE, np.arange(len(last)))
        stamps = packed.timeline("ego").stamps(0).copy()
        frames = packed.frame_stamps(np.arange(len(packed)))
    raised = 0
    for at in range(0, file.stat().st_size, 4999):
        with flipped(file, at), open_set(poses) as packed:
            try:
                assert np.array_equal(packed.timeline("ego").take(POSE, np.arange(len(last))), wanted)
                assert np.array_equal(packed.timeline("ego").stamps(0), stamps)
                assert np.array_equal(packed.frame_stamps(np.arange(len(packed))), frames)
            except CorruptShard:
                raised += 1
    assert raised > 50


@pytest.mark.parametrize("at", [[3], [3, 900, 901, 5], []])
def test_rows_fill_memory_of_any_shape(poses: Path, path_taken: str, at: list[int]) -> None:
    with open_set(poses) as packed:
        ego = packed.timeline("ego")
        out = np.empty((len(at), 1, 7))
        take_rows([ego.column(POSE)], ego.places(np.array(at, np.int64)), [out])
        assert np.array_equal(out[:, 0], ego.take(POSE, np.array(at, np.int64)))


def test_one_row_costs_no_look_at_the_others(poses: Path, path_taken: str) -> None:
    with open_set(poses) as packed:
        column = packed.timeline("ego").column(POSE)
        file = column.part(0).file
        assert file is not None
        before = int(file.good.sum())
        packed.timeline("ego").take(POSE, np.array([len(packed.timeline("ego")) // 2]))
        assert int(file.good.sum()) - before <= 2


@pytest.mark.skipif(not kernel.available(), reason="the native core is not built")
def test_rows_taken_later_say_which_chunk_is_damaged(poses: Path) -> None:
    file, first, _ = rows_by_chunk(poses)
    chunk = int(first[len(first) // 2])
    with flipped(file, chunk * CHUNK + 5), open_set(poses) as packed:
        ego = packed.timeline("ego")
        column = ego.column(POSE)
        places = ego.places(np.arange(len(first)))
        column.open(places.shard)
        with pytest.raises(CorruptShard, match=f"chunk {chunk} "):
            take_later([column], places, [column.empty(len(first))]).wait(30)


def test_threads_that_touch_a_column_at_once_read_the_same(poses: Path, path_taken: str) -> None:
    rows = np.random.default_rng(1).permutation(len(rows_by_chunk(poses)[1]))
    with open_set(poses) as packed:
        wanted = packed.timeline("ego").take(POSE, rows)
    with open_set(poses) as packed, ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda part: packed.timeline("ego").take(POSE, part), np.array_split(rows, 16)))
    assert np.array_equal(np.concatenate(found), wanted)


@given(chunks=st.integers(1, 5), width=st.integers(1, 2 * CHUNK + 5), seed=st.integers(0, 99))
def test_the_chunks_of_each_stretch_are_compared(
    tmp_path_factory: pytest.TempPathFactory, chunks: int, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    size = max(width, chunks * CHUNK - int(rng.integers(0, CHUNK)))
    data = bytes(size)
    path = tmp_path_factory.getbasetemp() / "stretches"
    path.write_bytes(data)
    file = ChunkedFile(MappedFile(path, size), chunk_sums(data))
    starts = rng.integers(0, size - width + 1, 3)
    file.touch_each(starts, width)
    expected = np.zeros(len(file.good), np.bool_)
    for start in starts.tolist():
        expected[start // CHUNK : (start + width - 1) // CHUNK + 1] = True
    assert np.array_equal(file.good, expected)
