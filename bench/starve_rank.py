"""One rank of `bench starve`: streams a set from a store through the node cache, a step at a stated pace, and notes every wait.

`python -m headway.bench.starve_rank '<JSON>'` prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ..formats.packed_set import open_set
from ..formats.range_cache import CacheOptions
from ..loader.dataloader import DataLoader
from ..loader.dataset import Dataset
from ..loader.images import Images
from ..loader.options import LoaderOptions
from ..loader.topology import Topology

__all__ = ["MARK", "main", "stream"]

MARK = "STARVE "


def stream(task: dict[str, Any]) -> dict[str, Any]:  # Any: plain JSON data
    """Stream `epochs` epochs, or for `seconds`, and return the figures of this rank."""
    started = time.monotonic()
    packed = open_set(task["set"], cache=CacheOptions(limit_bytes=task["cache_bytes"], directory=task["cache"]))
    assert packed.remote is not None
    looks = [Images(task["cameras"], size=tuple(task["image"]), dtype="float32")]
    loader = DataLoader(
        Dataset(packed, images=looks),
        batch_size=task["batch_size"],
        shuffle=True,
        drop_last=True,
        options=LoaderOptions(seed=task["seed"], memory_bytes=task["memory_bytes"]),
        topology=Topology(rank=task["rank"], size=task["ranks"], local_rank=task["rank"], local_size=task["ranks"]),
    )
    reader, payloads = packed.remote.reader, packed.remote.payloads
    steps: list[tuple[int, float, float, float]] = []  # (epoch, when asked, wait, headway)
    received: list[int] = []
    first_batch_s, step_s = 0.0, task["step_s"]
    end = started + task["seconds"]
    for epoch in range(task["epochs"]):
        received.append(reader.traffic.bytes)
        batches = iter(loader)
        while time.monotonic() < end:
            asked = time.monotonic()
            batch = next(batches, None)
            got = time.monotonic()
            if batch is None:
                break
            first_batch_s = first_batch_s or got - started
            del batch
            stats = loader.stats()
            ahead = stats["headway_s"] + stats.get("encoded_steps", 0.0) * stats["step_s"]
            steps.append((epoch, asked - started, got - asked, ahead))
            time.sleep(max(0.0, step_s - (time.monotonic() - got)))
        del batches
    received.append(reader.traffic.bytes)
    packed.close()
    return {
        "rank": task["rank"],
        "first_batch_s": first_batch_s,
        "steps": [[epoch, round(asked, 4), round(wait, 5), round(ahead, 3)] for epoch, asked, wait, ahead in steps],
        "received_bytes": received,
        "requests": reader.traffic.requests,
        "hedged": reader.traffic.hedged,
        "hedge_wins": reader.traffic.hedge_wins,
        "retried": reader.traffic.retried,
        "mended": payloads.mended,
        "cache_hits": payloads.hits,
        "cache_misses": payloads.misses,
        "waits": {name: round(value, 3) for name, value in loader.stats().items() if name.startswith("waited_") and value},
    }


def main() -> None:
    """Run the task of the JSON argument and print its figures."""
    print(MARK + json.dumps(stream(json.loads(sys.argv[1]))), flush=True)


if __name__ == "__main__":
    main()
