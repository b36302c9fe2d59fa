"""Packing needs memory for the shards at hand, not for the source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.formats import PackOptions
from headway.formats.adapters import open_source
from headway.formats.pack_worker import ShardTask, pack_shard
from headway.formats.shard_plan import Piece
from tests.formats.ramp import ramp_spec
from tests.formats.test_packer import tree

PROGRAM = """
import json, os, sys
from pathlib import Path
from headway.formats import *
from tests.formats.ramp import ramp_spec

class Watch:
    # Largest anonymous memory of this process and the workers below it, read at every hundredth.
    def begin(self, stage, total):
        self.step, self.seen, self.most = total // 100, 0, 0
    def advance(self, amount):
        self.seen += amount
        if self.seen >= self.step:
            self.seen = 0
            self.most = max(self.most, sum(map(anonymous, [os.getpid(), *children()])))

def children():
    for task in Path("/proc/self/task").iterdir():
        yield from (int(pid) for pid in (task / "children").read_text().split())

def anonymous(pid):
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))

if __name__ == "__main__":
    place, drives, frames, workers, shard_bytes = sys.argv[1], *map(int, sys.argv[2:])
    watch = Watch()
    spec = ramp_spec(drives=drives, frames=frames, image_bytes=12_000)
    report = pack(spec, place, PackOptions(workers=workers, shard_bytes=shard_bytes), watch)
    print(json.dumps([report.manifest.frames, report.manifest.stored_bytes, watch.most]))
"""


def _pack(tmp_path: Path, drives: int, frames: int, *, workers: int, shard_bytes: int) -> tuple[int, int, int]:
    """Return frames, bytes stored, and the largest anonymous memory seen."""
    (tmp_path / "program.py").write_text(PROGRAM)
    place = tmp_path / f"set-{drives}-{workers}"
    command = [sys.executable, str(tmp_path / "program.py"), str(place), *map(str, (drives, frames, workers, shard_bytes))]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500, check=True)
    count, size, most = json.loads(done.stdout)
    return count, size, most


@pytest.mark.parametrize("hold_bytes", [0, 1, 5_000])
def test_what_waits_in_a_file_is_written_alike(hold_bytes: int, tmp_path: Path) -> None:
    pieces = tuple(Piece(drive=f"drive-{at}", index=0, of=1) for at in range(3))
    shards = []
    for hold in (1 << 20, hold_bytes):
        (tmp_path / str(hold)).mkdir()
        task = ShardTask(
            source=ramp_spec(),
            options=PackOptions(workers=1),
            staging=str(tmp_path / str(hold)),
            number=0,
            pieces=pieces,
            hold_bytes=hold,
            portion=open_source(ramp_spec()),
        )
        shards.append(pack_shard(task, lambda amount: None))
    assert shards[0] == shards[1]
    assert tree(tmp_path / str(1 << 20)) == tree(tmp_path / str(hold_bytes))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_source(tmp_path: Path) -> None:
    few = _pack(tmp_path, 2, 20, workers=1, shard_bytes=800_000)
    many = _pack(tmp_path, 9, 20, workers=1, shard_bytes=800_000)
    assert many[1] > 4 * few[1]
    assert many[2] < few[2] + (8 << 20)


@pytest.mark.full
@pytest.mark.timeout(1600)
def test_twenty_thousand_frames_are_packed_within_one_gibibyte(tmp_path: Path) -> None:
    frames, size, most = _pack(tmp_path, 40, 481, workers=2, shard_bytes=256_000_000)
    assert frames >= 20_000
    assert size > 3 * 256_000_000
    assert most < 1 << 30
