"""What control groups allow is found in both versions, at any depth, and the tightest bound counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.formats.control_group import cpu_quota, memory_bound, own_group
from headway.formats.cores import core_share, usable_cores


@pytest.fixture
def below(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Let this process lie two groups below the root, in both versions."""
    listing = tmp_path / "own"
    listing.write_text("7:memory:/pod/job\n4:cpu,cpuacct:/pod/job\n1:name=systemd:/other\n0::/pod/job\n")
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *more: read(listing if str(path) == "/proc/self/cgroup" else path, *more))
    return "pod/job"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_version_2(tmp_path: Path, below: str) -> None:
    root = tmp_path / "cgroup"
    write(root / "cgroup.controllers", "cpuset cpu io memory\n")
    write(root / below / "memory.max", "max\n")
    write(root / below / "cpu.max", "max 100000\n")
    assert (memory_bound(root), cpu_quota(root)) == (None, None)
    write(root / "pod" / "memory.max", f"{3 << 30}\n")
    write(root / "pod" / "cpu.max", "150000 100000\n")
    assert (memory_bound(root), cpu_quota(root)) == (3 << 30, 1.5)
    write(root / below / "memory.max", f"{1 << 30}\n")
    write(root / below / "cpu.max", "25000 50000\n")
    assert (memory_bound(root), cpu_quota(root)) == (1 << 30, 0.5)
    assert (core_share(root), usable_cores(root)) == (0.5, 1)


def test_version_1(tmp_path: Path, below: str) -> None:
    root = tmp_path / "cgroup"
    write(root / "memory" / below / "memory.limit_in_bytes", f"{2 << 30}\n")
    write(root / "memory" / "memory.limit_in_bytes", f"{(1 << 63) - 4096}\n")
    write(root / "cpu" / below / "cpu.cfs_quota_us", "-1\n")
    write(root / "cpu" / below / "cpu.cfs_period_us", "100000\n")
    assert (memory_bound(root), cpu_quota(root)) == (2 << 30, None)
    write(root / "cpu" / "pod" / "cpu.cfs_quota_us", "75000\n")
    write(root / "cpu" / "pod" / "cpu.cfs_period_us", "100000\n")
    assert cpu_quota(root) == 0.75


def test_a_container_that_sees_its_own_group_as_the_root(tmp_path: Path, below: str) -> None:
    write(tmp_path / "cgroup" / "cgroup.controllers", "memory\n")
    write(tmp_path / "cgroup" / "memory.max", "4096\n")
    assert memory_bound(tmp_path / "cgroup") == 4096
    assert own_group("cpu", tmp_path / "cgroup") is None


def test_without_groups_affinity_decides(tmp_path: Path) -> None:
    assert (memory_bound(tmp_path), cpu_quota(tmp_path)) == (None, None)
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))
