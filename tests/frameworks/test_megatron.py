"""Megatron-core's groups: peers of a model-parallel group get identical batches, data ranks get the plan's."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Ranks, needs

needs("megatron.core")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(1300)]


@pytest.fixture(scope="module")
def ranks(frames_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Four ranks, split along each axis in turn: starting them takes longer than all else."""
    ranks = Ranks(program="megatron_ranks", set_path=frames_set, out=tmp_path_factory.mktemp("megatron"))
    ranks.start(ranks=4)
    return ranks


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "context"])
def test_peers_get_identical_batches(ranks: Ranks, axis: str) -> None:
    """mosaicml/streaming#725: how the model is split leaves the global order alone."""
    received = {rank: [entry for entry in ranks.entries(axis, rank) if "ids" in entry] for rank in range(4)}
    assert all(ranks.facts(axis, rank)["is_ours"] for rank in range(4))
    places = {rank: ranks.facts(axis, rank)["topology"] for rank in range(4)}
    assert {(place["rank"], place["size"], place[axis]["rank"], place[axis]["size"]) for place in places.values()} == {
        (data, 2, peer, 2) for data in range(2) for peer in range(2)
    }
    by_data: dict[int, list[int]] = {}
    for rank, place in places.items():
        by_data.setdefault(place["rank"], []).append(rank)
    for one, other in by_data.values():
        assert received[one] == received[other]
    halves = [[entry["ids"] for entry in received[by_data[data][0]]] for data in range(2)]
    assert [one + other for one, other in zip(*halves, strict=True)] == ranks.planned(4)
