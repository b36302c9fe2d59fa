"""Where a process stands among the ranks: explicit, torch.distributed, environment, alone; and the cores it gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.formats import UsageError
from headway.loader.cores import decode_threads
from headway.loader.topology import Topology
from headway.loader.topology_detect import detect_topology

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_nothing_means_a_single_process() -> None:
    found = detect_topology({})
    assert (found.rank, found.size, found.local_size, found.source) == (0, 1, 1, "single process")


def test_torchrun_says_rank_and_node() -> None:
    found = detect_topology(TORCHRUN)
    assert (found.rank, found.size, found.local_rank, found.local_size) == (3, 8, 1, 2)


@pytest.mark.parametrize("change", [{"RANK": "8"}, {"RANK": "-1"}, {"WORLD_SIZE": "0"}, {"RANK": "one"}])
def test_impossible_environments_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="RANK"):
        detect_topology(TORCHRUN | change)


def test_a_contradiction_lists_what_was_seen(tmp_path: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert detect_topology({}).source == "torch.distributed"
        with pytest.raises(UsageError, match=r"torch\.distributed says rank 0 of 1; .*rank 3 of 8"):
            detect_topology(TORCHRUN)
    finally:
        dist.destroy_process_group()


def test_a_rank_outside_its_size_is_refused() -> None:
    with pytest.raises(UsageError, match="rank"):
        Topology(rank=2, size=2)


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(2, 1, 2), (2, 2, 1), (1, 2, 1), (4, 1, 3), (16, 2, 7), (96, 8, 11)])
def test_threads_leave_the_trainer_a_core_where_there_are_enough(cores: int, ranks: int, threads: int) -> None:
    assert decode_threads(ranks, cores) == threads
