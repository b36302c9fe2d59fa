"""Real processes under gloo: 4, then 2, then 1 rank, each resuming where the others stopped, give one order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.loader.plan import Plan
from headway.loader.shuffled import Shuffled
from headway.loader.state import State
from tests.laws.plans import view_of

ITEMS, BATCH = 203, 8
ROOT = Path(__file__).parents[2]


def run_ranks(job: Path, *, ranks: int, accumulation: int, state: dict[str, Any], steps: int) -> dict[str, Any]:  # Any: JSON
    """Run `ranks` processes for some steps from a state; return the gathered batches and the state they ended with."""
    job.write_text(json.dumps({"ranks": ranks, "accumulation": accumulation, "items": ITEMS, "state": state, "steps": steps}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.laws.gloo_rank", str(job)]
    processes = [
        subprocess.Popen([*command, str(rank)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=90)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()
    done: dict[str, Any] = json.loads(Path(f"{job}.done").read_text())
    return done


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_that_change_at_every_resume_give_one_order(tmp_path: Path) -> None:
    view, sampler = view_of(ITEMS), Shuffled(block_items=5, span_blocks=3)
    plan = Plan(view, sampler, seed=7, epoch=0, segments=[(BATCH, 0)])
    state: dict[str, Any] = dict(State.start(view, sampler, seed=7, epoch=0, batch_size=BATCH).to_json())  # Any: JSON
    batches: list[list[int]] = []
    for number, (ranks, accumulation, steps) in enumerate([(4, 1, 9), (2, 2, 8), (1, 4, 10**6)]):
        done = run_ranks(tmp_path / f"job-{number}", ranks=ranks, accumulation=accumulation, state=state, steps=steps)
        batches += done["batches"]
        state = done["state"]
    assert batches == plan.look_ahead(0, plan.steps).items.tolist()
    assert state["epoch"] == 1
    assert state["segments"] == [[BATCH, 0]]
