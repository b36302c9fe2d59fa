"""The pack bench: every writer writes, a peer in a process of its own; one that fails or is not there says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.bench import pack
from headway.bench.make_data import make_data
from headway.bench.workloads import workload
from headway.formats import UsageError

PEER = ("torch", "torch")  # needs nothing beside what every environment holds


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    load = replace(workload("W1", samples=4, points=300), distinct_images=3)
    return make_data(load, tmp_path_factory.mktemp("load")).directory


@pytest.mark.slow
def test_each_writer_has_a_row_with_what_it_wrote(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "_PEERS", {pack._TAR: PEER})
    writers, absent = pack.contenders(data, tmp_path, tmp_path / "environments", say=print)
    rows = pack.summarise(list(pack.measure_pack(writers, tmp_path, rounds=1)), pack.payload_bytes(data))
    assert not absent
    assert [row["writer"] for row in rows] == list(writers)
    for row in rows:
        assert all(row[figure] for figure in ("wall_s", "bytes", "times_tarwriter", "times_cp"))


def test_a_peer_that_cannot_be_installed_says_why(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Path:
        raise UsageError("cannot install torch: no network")

    monkeypatch.setattr(pack, "_PEERS", {pack._TAR: ("torch", "no_such_module")})
    monkeypatch.setattr(pack, "environment_of", refuse)
    writers, absent = pack.contenders(data, tmp_path, tmp_path / "environments", say=print)
    assert absent == {pack._TAR: "cannot install torch: no network"}
    assert pack._TAR not in writers


@pytest.mark.slow
def test_a_peer_that_fails_is_named(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "_PEERS", {pack._TAR: PEER})
    writers, _ = pack.contenders(data, tmp_path, tmp_path / "environments", say=print)
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UsageError, match="torch cannot write"):
        writers[pack._TAR](tmp_path / "taken" / "place")
