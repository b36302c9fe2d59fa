"""A real DeviceMesh: data ranks by its names, and decoding once for each tensor-parallel pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Ranks

pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(1300)]


def test_one_peer_of_each_pair_loads_for_both(frames_set: Path, tmp_path: Path) -> None:
    ranks = Ranks(program="mesh_ranks", set_path=frames_set, out=tmp_path)
    ranks.start(ranks=4)
    received = [[entry for entry in ranks.entries("first", rank) if "ids" in entry] for rank in range(4)]
    facts = [ranks.facts("first", rank) for rank in range(4)]
    assert [(each["topology"]["rank"], each["topology"]["tensor"]["rank"]) for each in facts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert received[0] == received[1]
    assert received[2] == received[3]
    plan = ranks.planned(4)
    assert [one["ids"] + other["ids"] for one, other in zip(received[0], received[2], strict=True)] == plan
    assert [each["loaded"] for each in facts] == [len(plan), 0, len(plan), 0]
