"""The power goes at any moment of a packing: what the disk then holds is the old set, the new one, or none.

strace records what a packer asks of the file system. Every prefix of the record is played onto an empty disk three ways: all of
it reached the disk; names did, but data only as far as files were synced; of the names only those whose directory was synced
later, and the very last.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.formats import NotASet, PackOptions, ShardKind, open_set, pack, verify_set
from tests.formats.ramp import ramp_spec

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")]

PROGRAM = """
import sys
from headway.formats import PackOptions, pack
from tests.formats.ramp import ramp_spec
pack(ramp_spec(drives=2, seed=1), sys.argv[1], PackOptions(format=sys.argv[2], workers=1, shard_bytes=9_000, overwrite=True))
"""
CALLS = "openat,write,writev,pwrite64,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir"
LINE = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (\d+)")
PATH = re.compile(r'(?:<([^>]*)>, )?"([^"]*)"')


@dataclass
class Inode:
    """A file, whatever its name."""

    size: int = 0
    synced: int = 0
    """How much of it is sure to be on the disk."""
    content: bytes = b""
    """Of a file that was there before; a new one holds what its final name holds in the end."""


@dataclass(frozen=True)
class Step:
    """What the packer asked for: "create", "rename", "remove" names; "write" to a file; "sync" a file or a directory."""

    what: str
    name: str
    to: str = ""
    count: int = 0


def record(place: Path, kind: ShardKind, log: Path) -> list[Step]:
    """Pack into `place` and return what happened below it, by names relative to it."""
    command = ["strace", "-f", "-y", "-s", "4096", "-o", str(log), "-e", f"trace={CALLS}"]
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, str(place), kind], capture_output=True, text=True, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    return list(steps(place, log.read_text().splitlines()))


def steps(place: Path, lines: list[str]) -> Iterator[Step]:
    """Parse strace's lines; calls that failed, and those elsewhere, are left out."""
    for line in lines:
        found = LINE.match(line)
        if found is None or str(place) not in line:
            continue
        call, arguments, answer = found[1], found[2], int(found[3])
        file = re.match(r"\d+<([^>]*)>", arguments)
        names = (
            [str(Path(base or "/", path)) for base, path in PATH.findall(arguments)] if file is None or "unlink" in call else []
        )
        names = [name.removeprefix(str(place)).lstrip("/") for name in names]
        own = file[1].removeprefix(str(place)).lstrip("/") if file else ""
        if call == "openat" and "O_CREAT" in arguments:
            yield Step("create", names[0])
        elif call in ("write", "writev", "pwrite64"):
            yield Step("write", own, count=answer)
        elif call in ("fsync", "fdatasync"):
            yield Step("sync", own)
        elif call.startswith("rename"):
            yield Step("rename", names[0], to=names[1])
        elif call.startswith(("unlink", "rmdir")):
            yield Step("remove", names[0])


class Disk:
    """Files before and after a packing, by name, and the record of it."""

    def __init__(self, before: dict[str, bytes], after: dict[str, bytes], log: list[Step]) -> None:
        self.before, self.after, self.log = before, after, log

    def states(self) -> Iterator[dict[str, bytes]]:
        """Yield every different state that a loss of power may leave, staging left out."""
        seen = set()
        for end in range(len(self.log) + 1):
            for data_lost, names_lost in ((False, False), (True, False), (True, True)):
                state = self.state(end, data_lost=data_lost, names_lost=names_lost)
                key = frozenset((name, hash(content)) for name, content in state.items())
                if key not in seen:
                    seen.add(key)
                    yield state

    def state(self, end: int, *, data_lost: bool, names_lost: bool) -> dict[str, bytes]:
        """Return the files that a loss of power after `end` steps leaves."""
        names = {name: Inode(len(data), len(data), data) for name, data in self.before.items()}
        live = dict(names)  # as the packer sees them, whatever reaches the disk
        for at, step in enumerate(self.log[:end]):
            file = live.get(step.name)
            if step.what == "write" and file is not None:
                file.size += step.count
            elif step.what == "sync" and file is not None:
                file.synced = file.size
            elif step.what in ("create", "rename", "remove"):
                directory = str(Path(step.to or step.name).parent)
                kept = not names_lost or at == end - 1 or self._synced_later(directory, at, end)
                for each in (live, names) if kept else (live,):
                    if step.what == "create" and step.name not in each:
                        each[step.name] = live[step.name] if each is names else Inode()
                    elif step.what == "rename":
                        each[step.to] = live[step.to] if each is names else each.pop(step.name)
                        each.pop(step.name, None)
                    elif step.what == "remove":
                        each.pop(step.name, None)
        return {
            name: (file.content or self.after.get(name, b""))[: file.synced if data_lost else file.size]
            for name, file in names.items()
            if not name.startswith(".packing")
        }

    def _synced_later(self, directory: str, at: int, end: int) -> bool:
        return any(step.what == "sync" and str(Path(step.name)) == directory for step in self.log[at:end])


def files(place: Path) -> dict[str, bytes]:
    """Content of each file below a directory."""
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kind", ["arrow", "tar"])
@pytest.mark.parametrize("old", [False, True], ids=["fresh", "over an old set"])
def test_a_loss_of_power_leaves_a_whole_set_or_none(kind: ShardKind, old: bool, tmp_path: Path) -> None:
    place = tmp_path / "set"
    allowed = set()
    if old:
        allowed.add(pack(ramp_spec(drives=2), place, PackOptions(format=kind, workers=1, shard_bytes=9_000)).manifest.set_id)
    before = files(place)
    log = record(place, kind, tmp_path / "log")
    allowed.add(open_set(place).set_id)
    assert len(open_set(place).manifest.shards) > 3
    found = dict.fromkeys(allowed, 0)
    incomplete = 0
    for number, state in enumerate(Disk(before, files(place), log).states()):
        disk = tmp_path / "disk"
        for name, content in state.items():
            path = disk / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if "manifest.json" in state:
            assert verify_set(disk).ok, f"state {number}"
            found[open_set(disk).set_id] += 1
        else:
            incomplete += 1
            with pytest.raises(NotASet):
                open_set(disk)
        shutil.rmtree(disk, ignore_errors=True)
    assert all(found.values()), found
    assert old == (incomplete == 0)
