"""Peers against headway: pack once, try every setting, then measure the best ones in interleaved rounds.

Every run is a fresh process. A round runs each peer once, so that slow drifts of the machine touch all alike; a run during which
others used more of the machine than `QUIET_CORES` is marked and, up to twice, repeated. Rows are medians of the quiet runs, and
ratios compare medians of this call only: numbers of different calls or machines are never put beside each other.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..formats import UsageError
from .machine import QUIET_CORES
from .peer_environment import environment_of
from .peer_process import Figures, run_in
from .peers.contract import Peer, Setting
from .peers.registry import PEERS, load_peer

__all__ = ["PeerBench", "PeerRow", "PeerStore", "known_peers"]

_PACK_LIMIT_S = 900.0
_RUN_LIMIT_S = 60.0
_REPEATS = 2
_TUNING_SHARE = 0.55
"""Of a time limit: what the search for settings may take before the rest of the peers go with what was tried."""


@dataclass(slots=True)
class PeerRow:
    """What is known of one peer on one workload."""

    peer: str
    cannot: str = ""
    """Why there are no figures: it cannot do the workload, did not install, or failed."""
    setting: Setting = field(default_factory=dict)
    tried: list[tuple[Setting, Figures]] = field(default_factory=list)
    runs: list[Figures] = field(default_factory=list)
    pack_s: float | None = None
    bytes_on_disk: int = 0
    note: str = ""

    def quiet(self) -> list[Figures]:
        """Return the runs that count: the quiet ones, or all where none was."""
        return [run for run in self.runs if run["foreign_cores"] < QUIET_CORES] or self.runs

    def median(self, name: str) -> float | None:
        """Return the median of a figure over the runs that count."""
        runs = self.quiet()
        return statistics.median(run[name] for run in runs) if runs else None

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        rates = [run["samples_per_s"] for run in self.quiet()]
        names = ("first_batch_s", "process_to_first_batch_s", "cpu_s_per_1000", "cores", "system_share", "anon_mib", "pss_mib")
        return {
            "peer": self.peer,
            "cannot": self.cannot or None,
            "setting": self.setting,
            "samples_per_s": self.median("samples_per_s"),
            "spread": max(rates) / min(rates) if rates else None,
            "runs": len(self.runs),
            "quiet_runs": sum(run["foreign_cores"] < QUIET_CORES for run in self.runs),
            **{name: self.median(name) for name in names},
            "pack_s": self.pack_s,
            "bytes_on_disk": self.bytes_on_disk,
            "note": self.note,
            "tried": [{"setting": setting, "samples_per_s": figures.get("samples_per_s")} for setting, figures in self.tried],
        }


def known_peers(names: Sequence[str]) -> list[Peer]:
    """Return peers by name.

    Raises:
        UsageError: one is unknown; the message names those there are.
    """
    if unknown := sorted(set(names) - set(PEERS)):
        raise UsageError(f"unknown peers {unknown}: there are {', '.join(PEERS)}")
    return [load_peer(name) for name in names]


class PeerStore:
    """One workload with the environments and packed files of peers, made when first asked for and kept in the cache."""

    def __init__(self, workload: str, data: Path, cache: Path, *, say: Callable[[str], None] = lambda _: None) -> None:
        self.workload, self.data, self._cache, self._say = workload, data, cache, say

    def python(self, peer: Peer) -> Path:
        """Return the Python of the peer's environment."""
        return environment_of(peer, self._cache / "environments", say=self._say)

    def packed(self, peer: Peer) -> Path:
        """Return where the peer's files are: they belong to the data; peers that read the same files share them."""
        return self._cache / "packed" / f"{self.data.resolve().name}-{self.workload}" / (peer.packs_like or peer.name)

    def pack(self, peer: Peer) -> tuple[float, int]:
        """Pack for the peer unless that was done; return the seconds it took and the bytes on disk."""
        packed = self.packed(peer)
        done = packed.with_name(packed.name + ".packed")
        if not done.exists():
            self._say(f"packing {self.workload} for {peer.name}")
            figures = self.run(peer, {"do": "pack"}, limit_s=_PACK_LIMIT_S)
            if "error" in figures:
                raise UsageError(f"packing failed: {figures['error']}")
            done.write_text(json.dumps(figures))
        size = sum(path.stat().st_size for path in packed.rglob("*") if path.is_file())
        return float(json.loads(done.read_text())["pack_s"]), size

    def read(self, peer: Peer) -> None:
        """Read all that was packed for the peer: the first setting that is tried must not be the only one to wait for a disk."""
        from .limits import read_whole

        for path in self.packed(peer).rglob("*"):
            if path.is_file():
                read_whole(path)

    def run(self, peer: Peer, task: Mapping[str, Any], *, limit_s: float, module: str = "measure_one") -> dict[str, Any]:
        """Run one task of a peer in its own process."""
        packed = self.packed(peer)
        task = {"peer": peer.name, "workload": self.workload, "data": str(self.data), "packed": str(packed), **task}
        return run_in(self.python(peer), module, task, packed.with_name(packed.name + ".log"), limit_s=limit_s)


class PeerBench:
    """One comparison on one workload; `say` is told each step."""

    def __init__(
        self,
        workload: str,
        data: Path,
        cache: Path,
        *,
        seconds: float = 4.0,
        limit_s: float | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.seconds, self._say = seconds, say
        self._store = PeerStore(workload, data, cache, say=say)
        self._started, self._limit_s = time.monotonic(), limit_s

    def prepare(self, names: Sequence[str]) -> list[PeerRow]:
        """Install and pack what is missing; a peer for which that fails becomes a row that says why."""
        rows = []
        for peer in known_peers(names):
            row = PeerRow(peer.name, cannot=peer.cannot.get(self._store.workload, ""), note=peer.note)
            rows.append(row)
            if row.cannot:
                continue
            try:
                row.pack_s, row.bytes_on_disk = self._store.pack(peer)
            except UsageError as error:
                row.cannot = str(error)
        return rows

    def run(self, names: Sequence[str], *, rounds: int = 3) -> list[PeerRow]:
        """Measure peers; one that fails becomes a row that says why.

        With a time limit, rounds end early, whole, and those that got none say so.
        """
        rows = self.prepare(names)
        self._started = time.monotonic()  # a limit is for measuring: installing and packing are done once
        for row in rows:
            if not row.cannot:
                self._tune(row)
        before = self._spent()
        for number in range(rounds):
            if number and self._spent() + (self._spent() - before) / number > 1:
                self._say(f"the time limit ends the rounds after {number}")
                break
            for row in rows:
                if row.cannot or (not row.runs and self._spent() > 1):
                    continue
                self._say(f"round {number + 1} of {rounds}: {row.peer}")
                self._measure(row)
        for row in rows:
            if not row.runs and not row.cannot:
                row.cannot = "not measured: the time limit was reached before its turn"
        return rows

    def _spent(self) -> float:
        """Return the share of the time limit that is over."""
        return 0.0 if self._limit_s is None else (time.monotonic() - self._started) / self._limit_s

    def _tune(self, row: PeerRow) -> None:
        peer = load_peer(row.peer)
        settings = peer.settings(self._store.workload)
        row.setting = settings[0]
        self._store.read(peer)
        if len(settings) == 1:
            return
        for setting in settings:
            if self._spent() > _TUNING_SHARE:
                self._say(f"{peer.name}: the time limit ends the search after {len(row.tried)} of {len(settings)} settings")
                break
            figures = self._one(peer, setting, seconds=min(self.seconds, 1.5))
            self._say(f"{peer.name} {setting}: {figures.get('samples_per_s', 0):,.0f} samples/s {figures.get('error', '')}")
            row.tried.append((setting, figures))
        worked = [(figures["samples_per_s"], setting) for setting, figures in row.tried if "samples_per_s" in figures]
        if worked:
            row.setting = max(worked, key=lambda pair: pair[0])[1]
        elif row.tried:
            row.cannot = f"every setting failed: {row.tried[0][1].get('error', '')}"

    def _measure(self, row: PeerRow) -> None:
        peer = load_peer(row.peer)
        for _ in range(1 + _REPEATS):
            figures = self._one(peer, row.setting, seconds=self.seconds)
            if "error" in figures:
                self._say(f"{peer.name}: {figures['error']}")
                break
            row.runs.append(figures)
            if figures["foreign_cores"] < QUIET_CORES or self._spent() > _TUNING_SHARE:
                break
        if not row.runs:
            row.cannot = f"failed after it had been tuned: {figures['error']}"

    def _one(self, peer: Peer, setting: Setting, *, seconds: float) -> dict[str, Any]:
        task = {"do": "measure", "setting": setting, "seconds": seconds}
        return self._store.run(peer, task, limit_s=_RUN_LIMIT_S + 3 * seconds)
