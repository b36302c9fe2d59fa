"""Ranks of real gloo groups, one group after another: each resumes where the one before it stopped.

Run as `python -m tests.laws.gloo_rank JOB`; JOB is a JSON file of test_real_ranks.py. Ranks are forks of this process, so that
torch is imported once. In each group every rank resumes a state, plans its share and gathers what all ranks planned, step by
step; rank 0 writes the gathered global batches and the state it ended with.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headway.loader.shuffled import Shuffled
from headway.loader.state import State
from tests.laws.plans import view_of


def main(job_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    state, batches = job["state"], []
    for number, (ranks, accumulation, steps) in enumerate(job["groups"]):
        group = {"items": job["items"], "state": state, "ranks": ranks, "accumulation": accumulation, "steps": steps}
        run_group(f"{job_path}.{number}", group)
        done = json.loads(Path(f"{job_path}.{number}.done").read_text())
        batches += done["batches"]
        state = done["state"]
    Path(f"{job_path}.done").write_text(json.dumps({"batches": batches, "state": state}))


def run_group(name: str, group: dict[str, Any]) -> None:  # Any: JSON
    children = []
    for rank in range(group["ranks"]):
        child = os.fork()
        if not child:
            try:
                run_rank(name, group, rank)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise SystemExit(f"ranks of group {name!r} ended with {codes}")


def run_rank(name: str, group: dict[str, Any], rank: int) -> None:  # Any: JSON
    ranks, accumulation = group["ranks"], group["accumulation"]
    dist.init_process_group("gloo", init_method=f"file://{name}.store", rank=rank, world_size=ranks)
    view, sampler = view_of(group["items"]), Shuffled(block_items=5, span_blocks=3)
    batch_size = group["state"]["segments"][-1][0]
    state = State.from_json(group["state"]).resume(
        view, sampler, seed=7, batch_size=batch_size, ranks=ranks, accumulation=accumulation
    )
    plan = state.plan(view, sampler)
    share = batch_size // ranks
    steps = min(group["steps"], plan.steps - plan.first_step)
    mine = torch.from_numpy(plan.look_ahead(plan.first_step, steps, rank * share, (rank + 1) * share).items)
    batches = []
    for row in mine:
        parts = [torch.empty(share, dtype=torch.int64) for _ in range(ranks)]
        dist.all_gather(parts, row.contiguous())
        batches.append(torch.cat(parts).tolist())
        for micro in range(accumulation):
            state = state.after(
                plan, step=plan.first_step + len(batches) - 1, micro=micro, ranks=ranks, accumulation=accumulation
            )
    if rank == 0:
        Path(f"{name}.done").write_text(json.dumps({"batches": batches, "state": state.to_json()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
