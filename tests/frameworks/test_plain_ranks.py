"""torchrun alone, DDP and FSDP2: the plan's batches, and a killed run that goes on on as many ranks or on fewer."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Ranks, free_port

pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(1300)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_killed_run_goes_on_exactly(frames_set: Path, tmp_path: Path, kind: str) -> None:
    """huggingface/accelerate#3952: no batch twice, none lost."""
    ranks = Ranks(program="plain", set_path=frames_set, out=tmp_path)
    ranks.start("--kind", kind, "--kill-after", "3", restarts=1)
    plan = ranks.planned(4)
    assert ranks.steps("first") == plan[:3]
    assert ranks.steps("second") == plan[3:]
    assert ranks.facts("second", 1) == {"rank": 1, "size": 2, "length": len(plan), "is_ours": True}


def test_four_ranks_become_two_in_the_middle_of_an_epoch(frames_set: Path, tmp_path: Path) -> None:
    """The global batch stays, so the same batches come in the same order; then it halves, and each item still comes once."""
    ranks = Ranks(program="plain", set_path=frames_set, out=tmp_path)
    ranks.start("--kill-after", "1", ranks=4, killed=True)
    ranks.start("--called", "second", "--resume", "--batch-size", "4", "--kill-after", "1", killed=True)
    plan = ranks.planned(8)
    assert ranks.steps("first", 4) + ranks.steps("second") == plan[:2]
    ranks.start("--called", "third", "--resume", "--batch-size", "2")
    rest = [item for step in ranks.steps("third") for item in step]
    done = [item for step in plan[:2] for item in step]
    assert sorted(item for item in rest + done if item >= 0) == list(range(30))


def test_torchrun_goes_on_with_two_of_four_ranks_when_a_node_dies(frames_set: Path, tmp_path: Path) -> None:
    """Elastic: one of two agents is killed; the other one's restart finds two ranks, and loses and repeats nothing."""
    ranks = Ranks(program="plain", set_path=frames_set, out=tmp_path)
    ranks.start_elastic(free_port(), "--kind", "elastic")
    plan = ranks.planned(8)
    runs = {path.name.rpartition("-")[0] for path in tmp_path.glob("restart*.jsonl")}
    before = next(run for run in sorted(runs) if run.endswith("-4"))
    after = next(run for run in sorted(runs) if run.endswith("-2"))
    survivors = [[entry["ids"] for entry in ranks.entries(before, rank) if "ids" in entry] for rank in range(4)]
    received = [[item for ids in parts for item in ids] for parts in zip(*survivors, strict=False)]
    assert received[:2] == plan[:2]
    assert ranks.steps(after) == plan[2:]
