"""One rank of a real gloo group: resume a state, plan this rank's share, gather what all ranks planned, step by step.

Run as `python gloo_rank.py JOB RANK`; JOB is a JSON file of test_real_ranks.py. Rank 0 writes the gathered global batches and
the state it ended with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from headway.loader.shuffled import Shuffled
from headway.loader.state import State
from tests.laws.plans import view_of


def main(job_path: str, rank_text: str) -> None:
    job, rank = json.loads(Path(job_path).read_text()), int(rank_text)
    ranks, accumulation = job["ranks"], job["accumulation"]
    dist.init_process_group("gloo", init_method=f"file://{job_path}.store", rank=rank, world_size=ranks)
    view, sampler = view_of(job["items"]), Shuffled(block_items=5, span_blocks=3)
    batch_size = job["state"]["segments"][-1][0]
    state = State.from_json(job["state"]).resume(
        view, sampler, seed=7, batch_size=batch_size, ranks=ranks, accumulation=accumulation
    )
    plan = state.plan(view, sampler)
    share = batch_size // ranks
    steps = min(job["steps"], plan.steps - plan.first_step)
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
        Path(f"{job_path}.done").write_text(json.dumps({"batches": batches, "state": state.to_json()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
