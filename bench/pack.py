"""Pack rate of headway beside other writers and a plain copy of the same bytes, interleaved in one run.

All start from one workload as `make-data` writes it, in the page cache; each writes to its own directory on one disk, and its
time ends when `sync` has returned. Rounds follow each other with every contender in each, so that a slow minute hits all.
What the others leave out, headway does: it hashes each payload, each shard twice, walks each JPEG, and syncs.
"""

from __future__ import annotations

import importlib.util
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ..formats import UsageError
from ..formats.adapters import SourceSpec
from ..formats.pack_options import PackOptions
from ..formats.packer import pack
from .peer_environment import environment_of
from .peer_process import run_in
from .peers.registry import load_peer
from .peers.samples import FileSamples, Stored
from .result import Value
from .workload_source import SPEC_KIND

__all__ = ["PackTime", "contenders", "measure_pack", "payload_bytes", "summarise"]

_TAR, _COPY = "webdataset TarWriter", "cp -r"
_PEERS: Final = {_TAR: ("webdataset", "webdataset"), "MosaicML MDSWriter": ("mosaicml-streaming", "streaming")}
"""Row → peer, and the module that holds its writer."""
_PEER_LIMIT_S: Final = 900.0

Writer = Callable[[Path], tuple[float, float]]
"""Writes everything into an empty place; returns the seconds it took, and those of CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTime:
    """One contender in one round."""

    name: str
    wall_s: float
    """From an empty directory until the bytes are on disk."""
    cpu_s: float
    """Of this process and the ones it started."""
    bytes: int
    """Written, as the directory holds them."""


def contenders(
    data: Path, scratch: Path, environments: Path, *, say: Callable[[str], None]
) -> tuple[dict[str, Writer], dict[str, str]]:
    """Return a writer per name, and why there is none of a peer that cannot be installed.

    The files for `cp` are laid out under `scratch` first, one a payload. Peers write in a process of their own, in this
    environment where they are installed here, else in theirs under `environments`; the time of its start does not count.
    """
    stored = Stored(data)
    files = scratch / "files"
    if not files.exists():
        FileSamples.write(stored, files)
    found: dict[str, Writer] = {}
    found["headway arrow"] = _headway(data, "arrow", None)
    found["headway tar"] = _headway(data, "tar", None)
    found["headway arrow, 1 worker"] = _headway(data, "arrow", 1)
    absent = {}
    for name, (peer, module) in _PEERS.items():
        try:
            here = importlib.util.find_spec(module) is not None
            python = Path(sys.executable) if here else environment_of(load_peer(peer), environments, say=say)
        except UsageError as error:
            absent[name] = str(error)
        else:
            found[name] = _peer(peer, stored.name, data, python, scratch / "peer.log")
    found[_COPY] = _timed(lambda place: _run("cp", "-r", str(files), str(place)))
    return found, absent


def measure_pack(writers: Mapping[str, Writer], scratch: Path, *, rounds: int) -> Iterator[PackTime]:
    """Yield each contender's time, round after round; `scratch` decides which disk is written."""
    for number in range(rounds):
        names = list(writers)
        names = names[number % len(names) :] + names[: number % len(names)]
        for name in names:
            place = scratch / "out"
            shutil.rmtree(place, ignore_errors=True)
            _run("sync", "-f", str(scratch))
            wall, cpu = writers[name](place)
            sync_s, sync_cpu_s = _timed(lambda place: _run("sync", "-f", str(place)))(scratch)
            size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
            yield PackTime(name=name, wall_s=wall + sync_s, cpu_s=cpu + sync_cpu_s, bytes=size)
        shutil.rmtree(scratch / "out", ignore_errors=True)


def summarise(times: Sequence[PackTime], payload_bytes: int) -> list[dict[str, Value]]:
    """Return one row a contender: medians over the rounds, and how many times as fast as TarWriter and cp it is."""
    names = list(dict.fromkeys(time.name for time in times))
    wall = {name: statistics.median(time.wall_s for time in times if time.name == name) for name in names}
    cpu = {name: statistics.median(time.cpu_s for time in times if time.name == name) for name in names}
    return [
        {
            "writer": name,
            "mb_s": round(payload_bytes / wall[name] / 1e6, 1),
            "wall_s": round(wall[name], 3),
            "cpu_s": round(cpu[name], 3),
            "bytes": next(time.bytes for time in times if time.name == name),
            "times_tarwriter": round(wall[_TAR] / wall[name], 2) if _TAR in wall else None,
            "times_cp": round(wall[_COPY] / wall[name], 2),
            "times_tarwriter_cpu": round(cpu[_TAR] / cpu[name], 2) if _TAR in cpu else None,
            "rounds_s": [round(time.wall_s, 3) for time in times if time.name == name],
        }
        for name in names
    ]


def payload_bytes(data: Path) -> int:
    """Return the bytes of all payloads of a workload's samples: what each contender stores."""
    stored = Stored(data)
    total = 0
    for index in range(len(stored)):
        for value in stored[index].values():
            total += len(value) if isinstance(value, bytes) else getattr(value, "nbytes", 8)
    return total


def _headway(data: Path, kind: Literal["arrow", "tar"], workers: int | None) -> Writer:
    spec = SourceSpec(kind=SPEC_KIND, path=str(data))
    # Shards small enough that every worker gets some of a workload of a few hundred megabytes.
    options = PackOptions(format=kind, workers=workers, shard_bytes=64_000_000)

    def write(place: Path) -> None:
        pack(spec, place, options)

    return _timed(write)


def _peer(peer: str, workload: str, data: Path, python: Path, log: Path) -> Writer:
    def write(place: Path) -> tuple[float, float]:
        task = {"do": "pack", "peer": peer, "workload": workload, "data": str(data), "packed": str(place)}
        figures = run_in(python, "measure_one", task, log, limit_s=_PEER_LIMIT_S)
        if "error" in figures:
            raise UsageError(f"{peer} cannot write {str(data)!r}: {figures['error']}")
        return figures["pack_s"], figures["pack_cpu_s"]

    return write


def _timed(write: Callable[[Path], None]) -> Writer:
    def timed(place: Path) -> tuple[float, float]:
        started, cpu = time.monotonic(), _cpu_s()
        write(place)
        return time.monotonic() - started, _cpu_s() - cpu

    return timed


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
