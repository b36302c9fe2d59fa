"""Files of a run directory: one JSON line a rank and half a second, of the steps since the line before.

`<name>-rank<n>.jsonl` begins with a line that says who writes:

    {"headway_ledger": 1, "name": "train", "rank": 0, "ranks": 8, "local_rank": 0, "local_size": 8, "node": 0, "nodes": 1,
     "host": "…", "pid": 77, "cores": 16, "started_unix_s": …, "monotonic_ns": …}

Then, for steps `first`, `first` + 1, … of `epoch`, columns of whole nanoseconds (monotonic clock of that machine):

    {"epoch": 0, "first": 120, "asked_ns": […], "consumer_ns": […], "waited_ns": […], "waits_ns": {"decode": […]}, "ready": […],
     "total": {"steps", "samples", "bytes", "consumer_ns", "waits_ns": {stage: n}, "busy_ns": {stage: n}},
     "now": {"at_ns", "headway_s", "samples_per_s", "decode_threads", …}}

`consumer_ns` is what came before `asked_ns`; the waits of a step add up to its `waited_ns`. A step counts as what `len(loader)`
counts. Lines without steps are said while the consumer waits long ("waiting_s", and "waiting_for" a stage), or at an end. A line
is whole or, the last one after a kill, without its newline; readers pass over that one, and over what they do not know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..formats import UsageError

__all__ = ["LEDGER_VERSION", "RankFile", "file_name", "read_run"]

LEDGER_VERSION: Final = 1
_SUFFIX: Final = ".jsonl"
_OLD: Final = ".old.jsonl"
_HEADER_BYTES: Final = 1 << 16
_FILE_LIMIT: Final = 1 << 32

Line = dict[str, Any]  # Any: JSON


def file_name(name: str, rank: int, *, old: bool = False) -> str:
    """Return the name of a rank's file, or of the one put aside before it."""
    return f"{name}-rank{rank:05d}{_OLD if old else _SUFFIX}"


@dataclass(slots=True)
class RankFile:
    """What one rank wrote last, since its process began."""

    header: Line
    lines: list[Line] = field(default_factory=list)
    """In order."""
    modified_s: float = 0.0
    """Unix time of the last write."""
    file_bytes: int = 0

    @property
    def rank(self) -> int:
        """Data-parallel rank."""
        return int(self.header["rank"])

    @property
    def last(self) -> Line:
        """The last line that was written; empty when there is none."""
        return self.lines[-1] if self.lines else {}


def read_run(directory: str | os.PathLike[str], name: str | None = None, *, last_bytes: int | None = None) -> list[RankFile]:
    """Return what each rank's present process wrote, by loader and rank; with `name`, of that loader alone.

    Args:
        last_bytes: read about so much of each rank's end, which bounds what a look at a long run takes.

    Raises:
        UsageError: no such directory, or nothing of a run in it.
    """
    found = []
    for path in _paths(directory, name):
        current = _read(path, last_bytes)
        if current is None:
            continue
        left = None if last_bytes is None else last_bytes - current.file_bytes
        if left is None or left > 0:
            before = _read(path.with_name(path.name.removesuffix(_SUFFIX) + _OLD), left)
            if before is not None and _process(before.header) == _process(current.header):
                current.lines = before.lines + current.lines
        found.append(current)
    if not found:
        named = "" if name is None else f" of loader {name!r}"
        raise UsageError(
            f"no ledger{named} in {os.fspath(directory)!r}; ranks write one with LoaderOptions(telemetry=Telemetry(directory=…))"
        )
    return sorted(found, key=lambda each: (str(each.header.get("name")), each.rank))


def _paths(directory: str | os.PathLike[str], name: str | None) -> Iterator[Path]:
    folder = Path(directory)
    if not folder.is_dir():
        raise UsageError(f"no run directory {str(folder)!r}; give the one that Telemetry(directory=…) named")
    for path in sorted(folder.glob(f"*-rank*{_SUFFIX}")):
        if not path.name.endswith(_OLD) and (name is None or path.name.rpartition("-rank")[0] == name):
            yield path


def _process(header: Line) -> tuple[Any, ...]:  # Any: JSON
    return header.get("host"), header.get("pid"), header.get("monotonic_ns")


def _read(path: Path, last_bytes: int | None) -> RankFile | None:
    """Return a file's contents; None: not there, or not (yet) one of ours."""
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            if stat.st_size > _FILE_LIMIT:
                raise UsageError(f"cannot read {str(path)!r} as a ledger: {stat.st_size} bytes, more than {_FILE_LIMIT}")
            header = _parsed(file.readline(_HEADER_BYTES))
            if header is None or header.get("headway_ledger") != LEDGER_VERSION or not isinstance(header.get("rank"), int):
                return None
            if last_bytes is not None and stat.st_size - file.tell() > last_bytes:
                file.seek(-last_bytes, os.SEEK_END)
                file.readline()  # the rest of one that began before
            lines = [line for raw in file if (line := _parsed(raw)) is not None]
    except FileNotFoundError:
        return None
    return RankFile(header, lines, stat.st_mtime, stat.st_size)


def _parsed(raw: bytes) -> Line | None:
    if not raw.endswith(b"\n"):
        return None
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None
