"""How long a resume takes, and whether it is exact: states at 1 %, 50 % and 99 % of an epoch, each restored in a new process.

The next batches after the restore are compared, ids and bytes of the stamps, with those of a loader that never stopped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..formats import WorkerDied
from ..loader.dataloader import DataLoader
from ..loader.dataset import open_dataset
from ..loader.images import Images
from ..loader.options import LoaderOptions
from ..loader.plan import Plan
from ..loader.shuffled import Shuffled
from ..loader.state import State

__all__ = ["measure_resume", "measure_startup"]

MARK = "RESUMED "


def measure_resume(
    location: Path, *, batch_size: int, cameras: str, batches: int = 100, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Return a row for each of three places in the epoch: seconds to the first batch, state bytes, exactness."""
    rows = []
    info = open_dataset(location).view.info
    start = State.start(info, Shuffled(), seed=1, epoch=0, batch_size=batch_size)
    plan = start.plan(info, Shuffled())
    for share in (0.01, 0.5, 0.99):
        step = min(int(plan.steps * share), plan.steps - 1)
        state = start.after(plan, step=step - 1).to_json() if step else start.to_json()
        say(f"resuming at step {step:,} of {plan.steps:,}")
        wanted = _planned(plan, step, batches)
        task = {"set": str(location), "batch_size": batch_size, "cameras": cameras, "state": state, "batches": len(wanted)}
        found = _child(task)
        rows.append(
            {
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


def measure_startup(
    location: Path, *, batch_size: int, cameras: str, threads: tuple[int | None, ...] = (None, 0, 1, 4)
) -> list[dict[str, Any]]:
    """Return a row for each number of decode threads: seconds from the constructor to the first batch."""
    rows = []
    for count in threads:
        task = {"set": str(location), "batch_size": batch_size, "cameras": cameras, "state": None, "batches": 1, "threads": count}
        found = _child(task)
        rows.append(
            {"threads": count, "first_batch_s": found["first_batch_s"], "process_s": found["process_s"], "items": found["items"]}
        )
    return rows


def _planned(plan: Plan, step: int, batches: int) -> list[list[int]]:
    last = min(step + batches, plan.steps)
    return [plan.step(number, 0, plan.batch_size).items.tolist() for number in range(step, last)]


def _child(task: dict[str, Any]) -> dict[str, Any]:
    started = time.time()
    command = [sys.executable, "-m", "headway.bench.resume", json.dumps(task | {"started": started})]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    lines = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        raise WorkerDied(
            f"bench resume: the process ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
        )
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> None:
    """Restore, stream, and print what came."""
    task = json.loads(sys.argv[1])
    look = [Images(task["cameras"], size=(256, 704), dtype="float32")] if task["cameras"] else []
    dataset = open_dataset(task["set"], images=look)
    begin = time.monotonic()
    loader = DataLoader(
        dataset, batch_size=task["batch_size"], shuffle=True, num_workers=task.get("threads"), options=LoaderOptions(seed=1)
    )
    if task["state"] is not None:
        loader.load_state_dict(task["state"])
    ids: list[list[int]] = []
    first_batch_s = process_s = 0.0
    for batch in loader:
        if not ids:
            first_batch_s, process_s = time.monotonic() - begin, time.time() - task["started"]
        ids.append(batch["id"].tolist())
        if len(ids) == task["batches"]:
            break
    print(
        MARK + json.dumps({"first_batch_s": first_batch_s, "process_s": process_s, "ids": ids, "items": len(dataset)}), flush=True
    )


if __name__ == "__main__":
    main()
