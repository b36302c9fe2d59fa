"""A peer's fresh process, in its own environment: started, watched, read, and nothing of it left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..formats import WorkerDied
from .peer_environment import peer_path
from .peers.measure_one import MARK

__all__ = ["Figures", "end_group", "error_line", "figures_in", "run_in", "run_module", "watch"]

Figures = dict[str, float]
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Died|Exit|Interrupt): ")
"""An exception's own line; notes may follow it."""


def run_in(python: Path, module: str, task: Mapping[str, Any], log: Path, *, limit_s: float) -> dict[str, Any]:
    """Run `peers.<module>` with a task; return its figures and peak memory, or {"error": why} where it gave none."""
    # headway's rows run in this process's environment, others' in theirs alone.
    here = [os.environ["PYTHONPATH"]] if python == Path(sys.executable) and "PYTHONPATH" in os.environ else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(peer_path()), *here]),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    command = [str(python), "-m", f"peers.{module}", json.dumps({**task, "started": time.time()})]
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w+", encoding="utf-8", errors="replace") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        memory = watch(process, limit_s)
        sink.seek(0)
        output = sink.read()
    found = figures_in(output, MARK)
    if found is not None:
        return {**found, **memory}
    if process.returncode == -signal.SIGKILL and memory["wall_s"] >= limit_s:
        return {"error": f"gave no figures within {limit_s:.0f} s"}
    return {"error": f"ended with {process.returncode}: {error_line(output)}"}


def run_module(name: str, task: Mapping[str, Any], mark: str, *, what: str, limit_s: float) -> dict[str, Any]:
    """Run `headway.<name>` with a task in a new process of this environment and return what it printed behind `mark`.

    Raises:
        WorkerDied: it printed nothing of the kind; says what it ended with.
    """
    command = [sys.executable, "-m", f"headway.{name}", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    found = figures_in(done.stdout, mark)
    if found is None:
        raise WorkerDied(f"{what}: the process ended with {done.returncode}: {error_line(done.stderr)}")
    return found


def figures_in(output: str, mark: str) -> dict[str, Any] | None:
    """Return what a process printed as JSON behind `mark`, the last time it did; None: it never did."""
    lines = [line.removeprefix(mark) for line in output.splitlines() if line.startswith(mark)]
    found: dict[str, Any] | None = json.loads(lines[-1]) if lines else None
    return found


def error_line(output: str) -> str:
    """Return the line of a process's output that says what went wrong: its exception's, or the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    raised = [line for line in output.splitlines() if _RAISED.match(line)]
    return [*(lines[-1:] or ["no output"]), *raised][-1][:300]


def watch(process: subprocess.Popen[Any], limit_s: float) -> Figures:
    """Sample the memory of a process group until it ends or its time is over; leave none of it behind."""
    peak: Figures = {"pss_mib": 0.0, "anon_mib": 0.0}
    started = time.monotonic()
    try:
        while process.poll() is None and time.monotonic() - started < limit_s:
            for name, value in _memory_mib(process.pid).items():
                peak[name] = max(peak[name], value)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SAMPLE_S)
    finally:
        end_group(process)  # workers may outlive the process that started them
    return {**peak, "wall_s": time.monotonic() - started}


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that began a session of its own, and all in that."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


_SAMPLE_S = 0.5
"""Between looks at memory: reading a rank's page tables takes about 2 ms, which must not show in what is measured."""


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
