"""What the bench itself costs: `bench node` beside a bare loop over the same batches, in interleaved rounds.

`python -m headway.bench.own_cost SET` prints both rates and what the bench takes. The bare loop asks for no statistics, keeps no
order, and nobody looks at its memory meanwhile. The border is 2 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..loader.dataloader import DataLoader
from ..loader.dataset import open_dataset
from ..loader.images import Images
from ..loader.options import LoaderOptions
from ..loader.topology import Topology
from ..tools.console import report, say
from .machine import NoiseMeter
from .node import NodeBench, NodeOptions
from .result import Result, write_result

__all__ = ["bare_loop", "main", "measure_own_cost"]

_WARM_SHARE = 0.25
_MARK = "BARE "


def bare_loop(task: dict[str, Any]) -> float:
    """Return the samples/s of a loop that only counts."""
    look = [Images(task["cameras"], size=tuple(task["image"]), dtype="float32")] if task["cameras"] else []
    loader = DataLoader(
        open_dataset(task["set"], images=look),
        batch_size=task["batch_size"],
        shuffle=True,
        drop_last=True,
        options=LoaderOptions(seed=task["seed"], memory_bytes=task["memory_bytes"]),
        topology=Topology(rank=0, size=1, local_rank=0, local_size=1),
    )
    end, warm = time.monotonic() + task["seconds"], time.monotonic() + task["seconds"] * _WARM_SHARE
    begin, batches = 0.0, 0
    while True:
        for batch in loader:
            del batch
            now = time.monotonic()
            if now >= end:
                return batches * float(task["batch_size"]) / (now - begin)
            if begin:
                batches += 1
            elif now >= warm:
                begin = now


def measure_own_cost(location: Path, *, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Return a row a round: samples/s of the bare loop and of `bench node`, which run one after the other, in turns first."""
    bench, options = NodeBench(location), NodeOptions(seconds=seconds)
    task = {**bench.task(options, 0)}
    rows = []
    for number in range(rounds):
        rates = {}
        for what in ("bare", "bench") if number % 2 else ("bench", "bare"):
            if what == "bench":
                rates[what] = bench.run(options)[0]["samples_per_s"]
            else:
                command = [sys.executable, "-m", "headway.bench.own_cost", "--bare", json.dumps(task)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rates[what] = float(done.stdout.rpartition(_MARK)[2])
        rows.append({"bare_samples_per_s": rates["bare"], "bench_samples_per_s": rates["bench"]})
        report(f"round {number + 1} of {rounds}: {rates['bare']:,.1f} bare, {rates['bench']:,.1f} under the bench")
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("location", metavar="SET", type=Path, nargs="?")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    if given.bare:
        print(f"{_MARK}{bare_loop(json.loads(given.bare))}", flush=True)
        return
    if given.location is None:
        parser.error("give SET")
    started = time.monotonic()
    with NoiseMeter() as meter:
        rows = measure_own_cost(given.location, rounds=given.rounds, seconds=given.seconds)
    bare, bench = (statistics.median(row[f"{name}_samples_per_s"] for row in rows) for name in ("bare", "bench"))
    share = 1 - statistics.median(row["bench_samples_per_s"] / row["bare_samples_per_s"] for row in rows)
    summary = {"bare_samples_per_s": bare, "bench_samples_per_s": bench, "bench_takes": share}
    say(f"{bare:,.1f} samples/s bare, {bench:,.1f} under the bench: it takes {share:.1%} (median of {len(rows)} pairs)")
    if given.json:
        conditions = {"set": str(given.location), "rounds": given.rounds, "seconds": given.seconds}
        wall = time.monotonic() - started
        write_result(
            Result(bench="own-cost", rows=rows, conditions=conditions, summary=summary, wall_s=wall, noise=meter.noise),
            given.json,
        )


if __name__ == "__main__":
    main()
