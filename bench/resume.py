"""How long a resume takes, and whether it is exact: states at 1 %, 50 % and 99 % of an epoch, each restored in a new process.

The next batches after the restore are compared, ids and bytes of the stamps, with those of a loader that never stopped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..loader.dataloader import DataLoader
from ..loader.dataset import open_dataset
from ..loader.images import Images
from ..loader.options import LoaderOptions
from ..loader.plan import Plan
from ..loader.sampler import ViewInfo
from ..loader.shuffled import Shuffled
from ..loader.state import State
from .peer_process import run_module

__all__ = ["first_batches", "measure_resume"]

MARK = "RESUMED "


def measure_resume(
    location: Path,
    *,
    batch_size: int,
    cameras: str,
    batches: int = 100,
    shares: Sequence[float] = (0.01, 0.5, 0.99),
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Return a row for each place in the epoch: seconds to the first batch, state bytes, exactness into the next epoch."""
    rows = []
    info = open_dataset(location).view.info
    start = State.start(info, Shuffled(), seed=1, epoch=0, batch_size=batch_size)
    plan = start.plan(info, Shuffled())
    for share in shares:
        step = min(int(plan.steps * share), plan.steps - 1)
        state = start.after(plan, step=step - 1).to_json() if step else start.to_json()
        say(f"resuming at step {step:,} of {plan.steps:,}")
        wanted = _planned(info, plan, step, batches)
        task = {"set": str(location), "batch_size": batch_size, "cameras": cameras, "state": state, "batches": len(wanted)}
        found = first_batches(task)
        rows.append(
            {
                "peer": "headway",
                "share": share,
                "step": step,
                "first_batch_s": found["first_batch_s"],
                "process_s": found["process_s"],
                "state_bytes": len(json.dumps(state)),
                "batches_compared": len(wanted),
                "exact": found["ids"] == wanted,
            }
        )
    return rows


def first_batches(task: dict[str, Any]) -> dict[str, Any]:
    """Run `main` in a new process with this task and return what it printed."""
    return run_module("bench.resume", task | {"started": time.time()}, MARK, what="bench resume", limit_s=300)


def _planned(info: ViewInfo, plan: Plan, step: int, batches: int) -> list[list[int]]:
    """Return the items of the next batches, going on with the next epochs."""
    wanted: list[list[int]] = []
    epoch = 0
    while len(wanted) < batches:
        if step == plan.steps:
            step, epoch = 0, epoch + 1
            plan = State.start(info, Shuffled(), seed=1, epoch=epoch, batch_size=plan.batch_size).plan(info, Shuffled())
        wanted.append(plan.step(step, 0, plan.batch_size).items.tolist())
        step += 1
    return wanted


def main() -> None:
    """Restore, stream, and print what came."""
    task = json.loads(sys.argv[1])
    look = [Images(task["cameras"], size=(256, 704), dtype="float32")] if task["cameras"] else []
    begin = time.monotonic()
    dataset = open_dataset(task["set"], images=look)
    opened = time.monotonic()
    loader = DataLoader(
        dataset, batch_size=task["batch_size"], shuffle=True, num_workers=task.get("threads"), options=LoaderOptions(seed=1)
    )
    if task["state"] is not None:
        loader.load_state_dict(task["state"])
    ids: list[list[int]] = []
    first_batch_s = process_s = 0.0
    while len(ids) < task["batches"]:
        for batch in loader:
            if not ids:
                first_batch_s, process_s = time.monotonic() - begin, time.time() - task["started"]
            ids.append(batch["id"].tolist())
            if len(ids) == task["batches"]:
                break
    times = {"open_s": opened - begin, "first_batch_s": first_batch_s, "process_s": process_s}
    print(MARK + json.dumps({**times, "ids": ids, "items": len(dataset)}), flush=True)


if __name__ == "__main__":
    main()
