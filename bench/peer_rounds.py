"""Peers against headway: pack once, try every setting, then measure the best ones in interleaved rounds.

Every run is a fresh process. A round runs each peer once, so that slow drifts of the machine touch all alike; a run during which
others used more of the machine than `QUIET_CORES` is marked and, up to twice, repeated. Rows are medians of the quiet runs, and
ratios compare medians of this call only: numbers of different calls or machines are never put beside each other.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..formats import UsageError
from .machine import QUIET_CORES
from .peer_environment import environment_of, peer_path
from .peers.contract import Peer, Setting
from .peers.measure_one import MARK
from .peers.registry import PEERS, load_peer

__all__ = ["PeerBench", "PeerRow", "watch"]

Figures = dict[str, float]
_PACK_LIMIT_S = 900.0
_RUN_LIMIT_S = 60.0
_REPEATS = 2


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
            "tried": [{"setting": setting, "samples_per_s": figures.get("samples_per_s")} for setting, figures in self.tried],
        }


class PeerBench:
    """One comparison on one workload; `say` is told each step."""

    def __init__(
        self, workload: str, data: Path, cache: Path, *, seconds: float = 4.0, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.workload, self.data, self.cache, self.seconds, self._say = workload, data, cache, seconds, say

    def run(self, names: Sequence[str], *, rounds: int = 3) -> list[PeerRow]:
        """Measure peers; one that fails becomes a row that says why."""
        if unknown := set(names) - set(PEERS):
            raise UsageError(f"unknown peers {sorted(unknown)}: there are {', '.join(PEERS)}")
        rows = [self._prepare(load_peer(name)) for name in names]
        for number in range(rounds):
            for row in rows:
                if not row.cannot:
                    self._say(f"round {number + 1} of {rounds}: {row.peer}")
                    self._measure(row)
        return rows

    def _prepare(self, peer: Peer) -> PeerRow:
        row = PeerRow(peer.name, cannot=peer.cannot.get(self.workload, ""))
        if row.cannot:
            return row
        try:
            python = environment_of(peer, self.cache / "environments", say=self._say)
            self._pack(peer, python, row)
        except UsageError as error:
            row.cannot = str(error)
            return row
        settings = peer.settings(self.workload)
        for setting in settings if len(settings) > 1 else []:
            figures = self._one(peer, python, setting, seconds=min(self.seconds, 2.5))
            self._say(f"{peer.name} {setting}: {figures.get('samples_per_s', 0):,.0f} samples/s {figures.get('error', '')}")
            row.tried.append((setting, figures))
        worked = [(figures["samples_per_s"], setting) for setting, figures in row.tried if "samples_per_s" in figures]
        if len(settings) == 1:
            row.setting = settings[0]
        elif worked:
            row.setting = max(worked, key=lambda pair: pair[0])[1]
        else:
            row.cannot = f"every setting failed: {row.tried[0][1].get('error', '')}"
        return row

    def _pack(self, peer: Peer, python: Path, row: PeerRow) -> None:
        packed = self._packed(peer)
        done = packed.with_name(packed.name + ".packed")
        if not done.exists():
            self._say(f"packing {self.workload} for {peer.name}")
            figures = self._child(python, {"do": "pack", "peer": peer.name}, packed, limit_s=_PACK_LIMIT_S)
            if "error" in figures:
                raise UsageError(f"packing failed: {figures['error']}")
            done.write_text(json.dumps(figures))
        row.pack_s = json.loads(done.read_text())["pack_s"]
        row.bytes_on_disk = sum(path.stat().st_size for path in packed.rglob("*") if path.is_file())

    def _measure(self, row: PeerRow) -> None:
        peer = load_peer(row.peer)
        python = environment_of(peer, self.cache / "environments", say=self._say)
        for _ in range(1 + _REPEATS):
            figures = self._one(peer, python, row.setting, seconds=self.seconds)
            if "error" in figures:
                self._say(f"{peer.name}: {figures['error']}")
                break
            row.runs.append(figures)
            if figures["foreign_cores"] < QUIET_CORES:
                break
        if not row.runs:
            row.cannot = f"failed after it had been tuned: {figures['error']}"

    def _one(self, peer: Peer, python: Path, setting: Setting, *, seconds: float) -> dict[str, Any]:
        task = {"do": "measure", "peer": peer.name, "setting": setting, "seconds": seconds}
        return self._child(python, task, self._packed(peer), limit_s=_RUN_LIMIT_S + 3 * seconds)

    def _packed(self, peer: Peer) -> Path:
        """Packed files belong to the data they were made from; peers that read the same files share them."""
        return self.cache / "packed" / f"{self.data.resolve().name}-{self.workload}" / (peer.packs_like or peer.name)

    def _child(self, python: Path, task: Mapping[str, Any], packed: Path, *, limit_s: float) -> dict[str, Any]:
        packed.parent.mkdir(parents=True, exist_ok=True)
        task = {**task, "workload": self.workload, "data": str(self.data), "packed": str(packed), "started": time.time()}
        log = packed.with_name(packed.name + ".log")
        environment = {
            **os.environ,
            "PYTHONPATH": str(peer_path()),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        with open(log, "w+", encoding="utf-8", errors="replace") as sink:
            process = subprocess.Popen(
                [str(python), "-m", "peers.measure_one", json.dumps(task)],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            memory = watch(process, limit_s)
            sink.seek(0)
            output = sink.read()
        lines = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)]
        if not lines:
            last = [line for line in output.splitlines() if line.strip()][-1:] or ["no output"]
            return {"error": f"ended with {process.returncode}: {last[0].strip()[:300]}"}
        return {**json.loads(lines[-1]), **memory}


def watch(process: subprocess.Popen[Any], limit_s: float) -> Figures:
    """Sample the memory of a process group until it ends or its time is over; leave none of it behind."""
    peak: Figures = {"pss_mib": 0.0, "anon_mib": 0.0}
    deadline = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < deadline:
        for name, value in _memory_mib(process.pid).items():
            peak[name] = max(peak[name], value)
        time.sleep(0.25)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # workers may outlive the process that started them
    process.wait()
    return peak


def _memory_mib(pid: int) -> Figures:
    """Return proportional and anonymous + shared memory of a process and all below it."""
    import psutil

    total = {"pss_mib": 0, "anon_mib": 0}
    try:
        pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return dict.fromkeys(total, 0.0)
    for each in pids:
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        values = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if rest.endswith("kB")}
        total["pss_mib"] += values.get("Pss", 0)
        total["anon_mib"] += values.get("Pss_Anon", 0) + values.get("Pss_Shmem", 0)
    return {name: value / 1024 for name, value in total.items()}
