"""Real processes under gloo: 4, then 2, then 1 rank, each resuming where the others stopped, give one order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.loader.plan import Plan
from headway.loader.shuffled import Shuffled
from headway.loader.state import State
from tests.laws.plans import view_of

ITEMS, BATCH = 203, 8
GROUPS = [(4, 1, 9), (2, 2, 8), (1, 4, 10**6)]
"""(ranks, accumulation, steps at most) of one group after another."""
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_that_change_at_every_resume_give_one_order(tmp_path: Path) -> None:
    view, sampler = view_of(ITEMS), Shuffled(block_items=5, span_blocks=3)
    plan = Plan(view, sampler, seed=7, epoch=0, segments=[(BATCH, 0)])
    start = State.start(view, sampler, seed=7, epoch=0, batch_size=BATCH).to_json()
    job = tmp_path / "job"
    job.write_text(json.dumps({"items": ITEMS, "state": start, "groups": GROUPS}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.laws.gloo_rank", str(job)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    done = json.loads(Path(f"{job}.done").read_text())
    assert done["batches"] == plan.look_ahead(0, plan.steps).items.tolist()
    assert done["state"]["epoch"] == 1
    assert done["state"]["segments"] == [[BATCH, 0]]
