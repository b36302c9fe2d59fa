"""Two real ranks under torchrun and gloo: equal steps, the plan's batches, and a resume on one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway import DataLoader, LoaderOptions, Window
from headway.loader.plan import Plan
from headway.loader.shuffled import Shuffled

PROGRAM = """
import json, os, sys
import torch, torch.distributed as dist
import headway
from headway import DataLoader, LoaderOptions, Window

dist.init_process_group("gloo")
dataset = headway.open(sys.argv[1], windows=[Window("note"), Window("LIDAR")])
loader = DataLoader(dataset, 2, True, options=LoaderOptions(seed=3))
ids, states = [], []
for batch in loader:
    count = torch.tensor([int(batch["valid"].sum())])
    dist.all_reduce(count)  # hangs when ranks differ in steps
    ids.append(batch["id"].tolist())
    states.append(batch["state"])
said = {"rank": dist.get_rank(), "ids": ids, "states": states, "length": len(loader)}
os.write(1, (json.dumps(said) + "\\n").encode())  # one write: unbuffered, print makes two, and ranks share a pipe
dist.barrier()
os._exit(0)  # gloo's threads abort some ends after all work is done
"""


@pytest.mark.slow
def test_two_ranks_get_the_plans_batches_in_equal_steps(drives_set: Path, tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program), str(drives_set)]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    ranks = sorted((json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")), key=lambda each: each["rank"])
    dataset = headway.open(drives_set, windows=[Window("note"), Window("LIDAR")])
    plan = Plan(dataset.view.info, Shuffled(), seed=3, epoch=0, segments=[(4, 0)])
    assert [each["length"] for each in ranks] == [plan.steps] * 2
    both = [one + other for one, other in zip(ranks[0]["ids"], ranks[1]["ids"], strict=True)]
    assert both == [plan.step(step).items.tolist() for step in range(plan.steps)]
    assert ranks[0]["states"] == ranks[1]["states"]
    alone = DataLoader(dataset, 4, True, options=LoaderOptions(seed=3))
    alone.load_state_dict(ranks[1]["states"][2])
    assert [batch["id"].tolist() for batch in alone] == both[3:]
