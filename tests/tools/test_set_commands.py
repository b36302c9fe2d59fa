"""`headway verify`, `convert`, `merge`, `repair` on real sets, damaged for real."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from headway.formats import CorruptShard
from headway.formats.packed_set import open_set
from headway.tools._mend import mend_set

from .conftest import Runner

pytestmark = pytest.mark.slow


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture
def damaged(tiny_set: Path, tmp_path: Path) -> Path:
    """A copy of the tiny set with one flipped bit in a payload's shard and its chunk sums missing."""
    target = tmp_path / "damaged"
    shutil.copytree(tiny_set, target)
    (shard,) = target.glob("*.arrow")
    _flip(shard, shard.stat().st_size // 2)
    next(target.glob("*.sums")).unlink()
    return target


def test_an_intact_set_verifies(run: Runner, tiny_set: Path) -> None:
    done = run("headway", "verify", tiny_set, "--json")
    assert done.code == 0
    facts = json.loads(done.out)
    assert facts["ok"] is True
    assert facts["errors"] == []
    assert run("headway", "verify", tiny_set, "--quick").code == 0


def test_damage_is_named(run: Runner, damaged: Path) -> None:
    done = run("headway", "verify", damaged)
    assert done.code == 4
    assert ".arrow" in done.out
    assert "intact" not in done.out


def test_repair_takes_only_what_is_damaged_from_a_copy(run: Runner, tiny_set: Path, damaged: Path) -> None:
    done = run("headway", "repair", damaged, "--from", tiny_set)
    assert done.code == 0
    assert done.err.count("replaced") == 2
    assert run("headway", "verify", damaged).code == 0
    assert list(mend_set(damaged, tiny_set)) == []


def test_repair_never_takes_damaged_bytes(run: Runner, tiny_set: Path, damaged: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_set, other)
    (shard,) = other.glob("*.arrow")
    _flip(shard, 100)
    before = next(damaged.glob("*.arrow")).read_bytes()
    with pytest.raises(CorruptShard, match="name another copy"):
        list(mend_set(damaged, other))
    assert next(damaged.glob("*.arrow")).read_bytes() == before
    assert run("headway", "repair", damaged, "--from", other).code == 4


def test_without_a_copy_losses_are_listed(run: Runner, tiny_set: Path, tmp_path: Path) -> None:
    target = tmp_path / "damaged"
    shutil.copytree(tiny_set, target)
    with open_set(target) as packed:
        refs = packed.timeline("LIDAR_TOP").refs(np.array([20]))
        _flip(next(target.glob("*.arrow")), int(refs.offset[0]) + 50)
    done = run("headway", "repair", target)
    assert done.code == 7
    assert "lost" in done.err
    assert "LIDAR_TOP" in done.err
    assert run("headway", "verify", target).code == 0


def test_a_damaged_manifest_is_replaced(run: Runner, tiny_set: Path, damaged: Path) -> None:
    _flip(damaged / "manifest.json", 40)
    assert run("headway", "repair", damaged, "--from", tiny_set).code == 0
    assert (damaged / "manifest.json").read_bytes() == (tiny_set / "manifest.json").read_bytes()


def test_converting_there_and_back_keeps_the_set_id(run: Runner, tiny_set: Path, tmp_path: Path) -> None:
    there = run("headway", "convert", tiny_set, tmp_path / "tar", "--format", "tar")
    back = run("headway", "convert", tmp_path / "tar", tmp_path / "arrow", "--format", "arrow")
    assert (there.code, back.code) == (0, 0)
    ids = [
        json.loads(run("headway", "show", where, "--json").out)["set_id"]
        for where in (tiny_set, tmp_path / "tar", tmp_path / "arrow")
    ]
    assert len(set(ids)) == 1


def test_merging_a_set_with_itself_is_refused(run: Runner, tiny_set: Path, tmp_path: Path) -> None:
    done = run("headway", "merge", tiny_set, tiny_set, tmp_path / "both")
    assert done.code == 2
    assert "synthetic-0000" in done.err
    assert not (tmp_path / "both").exists()
