"""A hashed file is what was written, by its own count and sums, however it is cut; what the system refuses reaches the writer."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.formats import hashed_writer
from headway.formats.hashed_writer import HashedWriter
from headway.formats.integrity import CHUNK, chunk_sums

sizes = st.lists(st.one_of(st.integers(0, 200), st.integers(CHUNK - 2, CHUNK + 2), st.integers(0, 3 * CHUNK)), max_size=8)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files take every path that big ones take."""
    for name, value in (
        ("_ALONE", 2 * CHUNK),
        ("_BATCH", CHUNK),
        ("_IN_FLIGHT", CHUNK),
        ("_EARLY", 2 * CHUNK),
        ("_MOST_VIEWS", 3),
    ):
        monkeypatch.setattr(hashed_writer, name, value)


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True])
@settings(max_examples=40)
@given(cuts=sizes)
def test_sums_do_not_depend_on_how_the_file_is_cut(behind: bool, cuts: list[int]) -> None:
    data = bytes(range(251)) * (sum(cuts) // 251 + 1)
    with tempfile.TemporaryDirectory() as folder:
        with HashedWriter(Path(folder, "file"), sums=True, behind=behind) as out:
            at = 0
            for size in cuts:
                at += out.write(data[at : at + size])
        whole = data[: sum(cuts)]
        assert out.sums == chunk_sums(whole)
        assert out.sha256 == hashlib.sha256(whole).hexdigest()
        assert Path(folder, "file").read_bytes() == whole


def test_many_small_pieces(tmp_path: Path) -> None:
    pieces = [bytes((k % 256,)) * (k % 7) for k in range(60_000)]
    with HashedWriter(tmp_path / "file", behind=True) as out:
        for piece in pieces:
            out.write(piece)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


@pytest.fixture
def file_limit() -> Iterator[int]:
    """No file may grow beyond so many bytes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = 10 * CHUNK
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("behind", [False, True])
def test_a_refused_write_is_raised_and_leaves_no_file_and_no_thread(tmp_path: Path, file_limit: int, behind: bool) -> None:
    threads = threading.active_count()
    with pytest.raises(OSError, match="File too large"):
        _write(tmp_path / "file", 2 * file_limit // CHUNK, behind=behind)
    assert not list(tmp_path.iterdir())
    assert threading.active_count() == threads


@pytest.mark.parametrize("behind", [False, True])
def test_a_refused_sync_is_raised_and_leaves_no_file_and_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    threads = threading.active_count()
    monkeypatch.setattr(os, "fsync", refuse)
    out = HashedWriter(tmp_path / "file", behind=behind)
    for _ in range(10):
        out.write(bytes(CHUNK))
    with pytest.raises(OSError, match="Input/output error"):
        out.close()
    out.discard()
    assert not list(tmp_path.iterdir())
    assert threading.active_count() == threads


def test_a_bounded_number_of_bytes_waits_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, written, most, work = os.writev, 0, 0, bytes(4 << 20)

    def put_slowly(descriptor: int, views: list[memoryview]) -> int:
        nonlocal written, most
        hashlib.sha256(work)  # takes longer than handing a chunk over, and lets the caller run
        most = max(most, out.bytes - written)
        done = put(descriptor, views)
        written += done
        return done

    monkeypatch.setattr(os, "writev", put_slowly)
    with HashedWriter(tmp_path / "file", behind=True) as out:
        for _ in range(40):
            out.write(bytes(CHUNK))
    # Behind: what may wait and the batch that reached that bound; beside it the one that waits to be handed over.
    assert CHUNK < most <= hashed_writer._IN_FLIGHT + 2 * CHUNK
    assert (tmp_path / "file").stat().st_size == 40 * CHUNK


def test_discarding_half_way_leaves_nothing(tmp_path: Path) -> None:
    out = HashedWriter(tmp_path / "file", behind=True)
    for _ in range(20):
        out.write(bytes(CHUNK))
    out.discard()
    assert not list(tmp_path.iterdir())


def _write(path: Path, chunks: int, *, behind: bool) -> None:
    with HashedWriter(path, behind=behind) as out:
        for _ in range(chunks):
            out.write(bytes(CHUNK))
