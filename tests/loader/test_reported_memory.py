"""What people have reported of memory that processes share or map, each thread as a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway
from headway import DataLoader, LoaderOptions, Transforms
from headway.formats import Column, DriveListing, PackOptions, Schema, Sensor, SourceDrive, SourceTimeline, pack
from headway.formats.adapters import SourceSpec
from headway.loader.item_index import open_index
from tests.source_tree import ROOT

from . import transform_functions as functions
from .drives import write_drives

ATTACHING = """
import os, sys
import numpy as np
from headway.loader.arena import Arena, create_arena
file, size = create_arena(1 << 20)
arena = Arena(file, size)
block = np.frombuffer(arena.block(1 << 16), np.uint8)
block[:] = 7
for attached in range(10):
    child = os.fork()
    if child == 0:
        seen = np.frombuffer(Arena(os.dup(file), size)._whole, np.uint8)
        sys.exit(0 if seen[-1] == 0 and len(seen) == size else 1)  # an ordinary end, with all that runs then
    assert os.waitpid(child, 0)[1] == 0
block[:] = 9
assert int(block.sum()) == 9 << 16
print("mapped", flush=True)
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_processes_that_attach_and_end_take_nothing_along() -> None:
    """python/cpython#82300, python/cpython#104291: the end of one that had attached destroyed the segment of all."""
    done = run(ATTACHING)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mapped\n", "")


def test_what_processes_share_does_not_depend_on_dev_shm(drives_set: Path) -> None:
    """pytorch/pytorch#5040: with a small /dev/shm, batches ended in a bus error. None of it is used, and a budget holds."""
    before = os.statvfs("/dev/shm").f_bfree
    options = LoaderOptions(memory_bytes=8 << 20, transforms=Transforms(sample=functions.change_everything, processes=2))
    dataset = headway.open(drives_set, images=headway.Images("CAM_[BF]*", size=(48, 64)))
    batches = [batch["noise"].sum() for batch in DataLoader(dataset, 4, num_workers=2, options=options)]
    assert len(batches) == 5
    assert os.statvfs("/dev/shm").f_bfree == pytest.approx(before, abs=512)


def test_an_index_that_is_mapped_keeps_its_bytes_when_it_is_made_again(tmp_path: Path) -> None:
    """emfdavid/insitubatch#42: a cache file was cut under its reader, who then read zeros."""

    def select(start: int, stop: int) -> Any:  # Any: a mask
        return np.arange(start, stop) % 3 == 1

    items = open_index(tmp_path, "k" * 64, frames=3000, select=select)
    expected = items.copy()
    (file,) = (path for path in tmp_path.iterdir() if path.stat().st_size > 3000)
    file.unlink()
    again = open_index(tmp_path, "k" * 64, frames=3000, select=select)
    assert (items == expected).all()
    assert (again == expected).all()


@pytest.mark.slow
def test_sets_that_are_closed_leave_no_mapping_behind_a_kept_batch(tmp_path: Path) -> None:
    """apache/arrow#34423: what was kept of each file kept the whole file in memory."""
    made = write_drives(tmp_path / "made", drives=2, frames=3)
    for number in range(40):
        shutil.copytree(made, tmp_path / f"set-{number}")
    # In a process of its own: what other tests keep has no part in it. Threads of a dropped iterator end a moment later.
    done = subprocess.run([sys.executable, "-c", KEEPS_BATCHES, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 2


KEEPS_BATCHES = """
import gc, sys, time
from pathlib import Path
import headway
from headway import DataLoader, Window
kept = []
for number in range(40):
    dataset = headway.open(Path(sys.argv[1], f"set-{number}"), windows=[Window("LIDAR"), Window("ego")])
    kept.append(next(iter(DataLoader(dataset, 2, num_workers=1))))
    del dataset
gc.collect()
assert all(len(batch["id"]) == 2 for batch in kept)
for _ in range(200):
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/set-" in line}
    if len(sets := {Path(path).parent for path in mapped}) <= 2:
        break
    time.sleep(0.05)
print(len(sets))
"""


ROWS, ROW_BYTES = 96, 1 << 20


BLOB = Sensor(name="BLOB", kind="array", codec="array", fields=(Column(name="value", dtype="uint8"),))
SCHEMA = Schema(reference="BLOB", sensors=(BLOB,))


@dataclass(frozen=True)
class Big:
    """One drive of 96 arrays of 1 MiB."""

    kind: str = "big"
    licence: str = ""
    ignored: tuple[Any, ...] = ()
    schema: Schema = SCHEMA
    listings: tuple[DriveListing, ...] = (DriveListing(name="d", source_bytes=ROWS * ROW_BYTES, attributes={}),)

    def open_drive(self, name: str) -> SourceDrive:
        """Return the only drive."""
        rows = np.arange(ROWS, dtype=np.int64)
        noise = np.random.default_rng(0).integers(0, 255, ROW_BYTES, np.uint8)
        timeline = SourceTimeline(stamps=rows * 10**8, columns={}, read=lambda row: noise ^ np.uint8(row), origin=str)
        return SourceDrive(timelines={"BLOB": timeline})


def open_big(spec: SourceSpec) -> Big:
    """Open the source that a spec names."""
    return Big()


ITERATING = """
import sys
import headway
from headway import DataLoader, LoaderOptions, Window

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return max(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

dataset = headway.open(sys.argv[1], windows=[Window("BLOB")])
options = LoaderOptions(memory_bytes=16 << 20)
peaks = []
for epoch in range(3):
    for batch in DataLoader(dataset, 2, shuffle=True, num_workers=2, options=options):
        peaks.append(anonymous())
        del batch
print(max(peaks) - peaks[0], len(peaks))
"""


@pytest.mark.slow
def test_reading_on_takes_no_more_memory_than_was_given(tmp_path: Path) -> None:
    """apache/arrow#39808: memory grew with what had been read."""
    spec = SourceSpec(kind="tests.loader.test_reported_memory:open_big", path="")
    pack(spec, tmp_path / "set", PackOptions(workers=1, shard_bytes=32 << 20))
    done = run(ITERATING, str(tmp_path / "set"))
    assert done.returncode == 0, done.stderr
    grown_kib, batches = (int(word) for word in done.stdout.split())
    assert batches == 3 * ROWS // 2
    assert grown_kib < 48 << 10  # of 288 MiB read: the budget of 16 MiB, and what the allocator keeps of payloads
