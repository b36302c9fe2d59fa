"""What the bench itself costs: `bench node` beside a bare loop over the same batches, in interleaved rounds.

The bare loop asks for no statistics, keeps no order, and nobody looks at its memory meanwhile. The border is 2 %.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..formats import UsageError
from ..loader.dataloader import DataLoader
from ..loader.dataset import open_dataset
from ..loader.images import Images
from ..loader.options import LoaderOptions
from ..loader.topology import Topology
from .node import NodeBench, NodeOptions

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
                return batches * float(task["batch_size"]) / (now - begin) if begin else 0.0
            if begin:
                batches += 1
            elif now >= warm:
                begin = now


def measure_own_cost(
    location: Path, *, rounds: int, seconds: float, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Return a row a round: samples/s of the bare loop and of `bench node`, which run one after the other, in turns first."""
    bench, options = NodeBench(location), NodeOptions(seconds=seconds)
    task = bench.task(options, 0)
    rows = []
    for number in range(rounds):
        rates = {}
        for what in ("bare", "bench") if number % 2 else ("bench", "bare"):
            if what == "bench":
                rates[what] = bench.run(options)[0]["samples_per_s"]
            else:
                command = [sys.executable, "-m", "headway.bench.own_cost", json.dumps(task)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rates[what] = float(done.stdout.rpartition(_MARK)[2])
        if not all(rates.values()):
            raise UsageError(f"bench own-cost: {seconds:g} s gave no batch to count here; give --seconds more")
        rows.append({"bare_samples_per_s": rates["bare"], "bench_samples_per_s": rates["bench"]})
        say(f"round {number + 1} of {rounds}: {rates['bare']:,.1f} bare, {rates['bench']:,.1f} under the bench")
    return rows


def main() -> None:
    """Run the bare loop of the JSON argument and print its rate."""
    print(f"{_MARK}{bare_loop(json.loads(sys.argv[1]))}", flush=True)


if __name__ == "__main__":
    main()
