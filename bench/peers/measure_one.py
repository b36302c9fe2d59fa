"""One measurement of one peer in a fresh process: `python -m peers.measure_one '<JSON>'` prints one line of JSON.

First batch, then a warm-up, then a window of fixed length. The consumer does nothing with a batch. CPU time is that of the
process and everything below it; the parent samples memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .contract import Run
from .registry import load_peer
from .samples import BATCH, check, one_thread

__all__ = ["main", "measure", "tree_cpu_s"]

MARK = "MEASURED "
_WARM_SHARE = 0.4  # of the window: enough for worker start-up to fade on every peer (bench/README.md)


def tree_cpu_s(pid: int) -> tuple[float, float]:
    """Return (total, system) CPU seconds of a process and all below it, ended children included."""
    import psutil

    total = system = 0.0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return 0.0, 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
        system += times.system + times.children_system
    return total, system


def busy_s() -> float:
    """Return the busy seconds of the whole machine since boot, stolen time included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(v) for v in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    )
    return float(user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Run one task: {peer, workload, data, packed, setting, seconds, started} → figures."""
    one_thread()
    peer = load_peer(task["peer"])
    run = Run(task["workload"], Path(task["data"]), Path(task["packed"]))
    imported = time.time()
    epoch = peer.open(run, **task["setting"])
    batches = epoch()
    first = next(batches)
    first_at = time.time()
    check(run.workload, first)
    del first
    warm_until = time.monotonic() + task["seconds"] * _WARM_SHARE
    samples, start, cpu, busy = 0, 0.0, (0.0, 0.0), 0.0
    while True:
        batch = next(batches, None)
        if batch is None:
            batches = epoch()
            continue
        now = time.monotonic()
        if start:
            samples += BATCH[run.workload]
            if now - start >= task["seconds"]:
                break
        elif now >= warm_until:
            cpu, busy, start = tree_cpu_s(os.getpid()), busy_s(), time.monotonic()
        del batch
    wall = now - start
    used = tuple(after - before for before, after in zip(cpu, tree_cpu_s(os.getpid()), strict=True))
    return {
        "samples_per_s": samples / wall,
        "first_batch_s": first_at - imported,
        "process_to_first_batch_s": first_at - task["started"],
        "cpu_s_per_1000": used[0] / samples * 1000,
        "cores": used[0] / wall,
        "system_share": used[1] / max(used[0], 1e-9),
        "foreign_cores": max(0.0, busy_s() - busy - used[0]) / wall,
    }


def main() -> None:
    """Do what the JSON argument says: measure, or pack."""
    task = json.loads(sys.argv[1])
    if task["do"] == "pack":
        peer = load_peer(task["peer"])
        peer.imports()
        start, cpu = time.monotonic(), tree_cpu_s(os.getpid())[0]
        peer.pack(Run(task["workload"], Path(task["data"]), Path(task["packed"])))
        figures: dict[str, Any] = {"pack_s": time.monotonic() - start, "pack_cpu_s": tree_cpu_s(os.getpid())[0] - cpu}
    else:
        figures = measure(task)
    print(MARK + json.dumps(figures), flush=True)
    os._exit(0)  # some peers' workers and threads outlive them; the figures are out


if __name__ == "__main__":
    main()
