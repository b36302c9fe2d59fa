"""One rank of `bench node`: a real process that streams a set, does a stated amount of work a step, and notes what it saw.

`python -m headway.bench.node_rank '<JSON>'` prints one line of JSON. The order it received is compared with the plan's: a fast
loader that delivers something else is not fast.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from ..loader.dataloader import DataLoader
from ..loader.dataset import open_dataset
from ..loader.images import Images
from ..loader.options import LoaderOptions
from ..loader.plan import Plan
from ..loader.sampler import ViewInfo
from ..loader.shuffled import Shuffled
from ..loader.stall import STAGES
from ..loader.topology import Topology
from .consumer import Consumer, calibrate, paced
from .memory_limit import join_group

__all__ = ["MARK", "main", "run_rank"]

MARK = "RANK "
_WARM_SHARE = 0.25
_PARTS = 40


def run_rank(task: dict[str, Any]) -> dict[str, Any]:
    """Stream for `seconds` and return the figures of this rank."""
    started = time.monotonic()
    look = [Images(task["cameras"], size=tuple(task["image"]), dtype="float32")] if task["cameras"] else []
    dataset = open_dataset(task["set"], images=look)
    topology = Topology(rank=task["rank"], size=task["ranks"], local_rank=task["rank"], local_size=task["ranks"])
    options = LoaderOptions(seed=task["seed"], memory_bytes=task["memory_bytes"])
    loader = DataLoader(
        dataset,
        batch_size=task["batch_size"],
        shuffle=True,
        drop_last=True,
        num_workers=task["threads"],
        options=options,
        topology=topology,
    )
    if task.get("state"):
        loader.load_state_dict(task["state"])
    waits: list[float] = []
    headways: list[float] = []
    steps: list[float] = []
    seen: list[tuple[int, int, list[int]]] = []
    times: list[float] = []
    samples, first_batch_s, begin, cpu = 0, 0.0, 0.0, 0.0
    waited: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    consume = Consumer(iterations=task["iterations"], wait_s=0.0 if task["busy"] else task["consumer_ms"] / 1e3)
    end = time.monotonic() + task["seconds"]
    warm = time.monotonic() + task["seconds"] * _WARM_SHARE
    epoch, step = (task["state"]["epoch"], None) if task.get("state") else (0, 0)
    done = False
    while not done:
        for batch in loader:
            now = time.monotonic()
            if not first_batch_s:
                first_batch_s = now - started
            if step is not None:
                seen.append((epoch, step, batch["id"].tolist()))
                step += 1
            if begin:
                stats = loader.stats()
                waits.append(stats["last_wait_s"])
                headways.append(stats["headway_s"])
                times.append(now - begin)
                samples += int(batch["valid"].sum())
            elif now >= warm:
                begin, cpu, waited = now, time.process_time(), _waited(loader)
            before = time.monotonic()
            del batch
            consume()
            if begin:
                steps.append(time.monotonic() - before)
            if time.monotonic() >= end or (task["batches"] and len(seen) >= task["batches"]):
                done = True
                break
        else:
            epoch, step = epoch + 1, 0
    wall = time.monotonic() - begin if begin else 0.0
    cores = (time.process_time() - cpu) / wall if wall else 0.0
    by_stage = {stage: round(total - waited[stage], 6) for stage, total in _waited(loader).items() if total > waited[stage]}
    return {
        "rank": task["rank"],
        "samples_per_s": samples / wall if wall else 0.0,
        "first_batch_s": first_batch_s,
        "waited_share": sum(waits) / wall if wall else 0.0,
        "wait_p99_ms": _percentile(waits, 99) * 1e3,
        "headway_p5_s": _percentile(headways, 5),
        "headway_p50_s": _percentile(headways, 50),
        "step_p50_ms": _percentile(steps, 50) * 1e3,
        "step_p95_ms": _percentile(steps, 95) * 1e3,
        "cpu_cores": cores,
        "threads": loader.num_workers,
        "batches": len(seen),
        "order_is_the_plans": _is_planned(dataset.view.info, loader.global_batch_size, seen, topology, task),
        "waits_by_stage_s": by_stage if begin else {},
        "rates": _rates(times, task["batch_size"]),
        "waits_ms": [round(wait * 1e3, 3) for wait in waits[:2000]],
        "headways_s": [round(value, 4) for value in headways[:2000]],
    }


def _waited(loader: DataLoader) -> dict[str, float]:
    """Return the seconds waited so far by what the batch was in meanwhile."""
    stats = loader.stats()
    return {stage: stats[f"waited_{stage}_s"] for stage in STAGES}


def _rates(times: list[float], batch_size: int) -> list[float]:
    """Return samples/s in each of up to forty equal parts of the time, from when batches came."""
    if len(times) < 2:
        return []
    counts, edges = np.histogram(times, bins=min(_PARTS, len(times) // 2), range=(0.0, times[-1]))
    return [round(float(count) * batch_size / float(edges[1]), 2) for count in counts]


def _is_planned(
    view: ViewInfo, size: int, seen: list[tuple[int, int, list[int]]], topology: Topology, task: dict[str, Any]
) -> bool:
    """Compare what was received with a plan made anew."""
    first, last = topology.rank * task["batch_size"], (topology.rank + 1) * task["batch_size"]
    plans: dict[int, Plan] = {}
    for epoch, step, items in seen:
        if epoch not in plans:
            plans[epoch] = Plan(view, Shuffled(drop_last=True), seed=task["seed"], epoch=epoch, segments=[(size, 0)])
        if plans[epoch].step(step, first, last).items.tolist() != items:
            return False
    return True


def _percentile(values: list[float], share: float) -> float:
    return float(np.percentile(values, share)) if values else 0.0


def main() -> None:
    """Run the task of the JSON argument and print its figures."""
    task = json.loads(sys.argv[1])
    join_group(task.get("group", ""))
    found: dict[str, Any]
    match task.get("do"):
        case "calibrate":
            found = dict(zip(("iterations", "step_ms"), calibrate(task["step_ms"]), strict=True))
        case "pace":
            times = paced(task["iterations"], task["pause_s"], task["seconds"])
            found = dict(zip(("step_p50_ms", "step_p95_ms"), times, strict=True))
        case _:
            found = run_rank(task)
    print(MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
