"""JAX: global arrays from two processes' batches; what JAX would cut to 32 bits stays numpy."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Ranks, free_port, needs

needs("jax")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(1300)]


def test_two_processes_make_global_arrays(frames_set: Path, tmp_path: Path) -> None:
    ranks = Ranks(program="jax_ranks", set_path=frames_set, out=tmp_path)
    ranks.start("--port", str(free_port()))
    plan = ranks.planned(4)
    assert ranks.steps("first") == plan
    for rank in range(2):
        for number, (entry, items) in enumerate(zip(ranks.entries("first", rank), plan, strict=True), 1):
            assert entry["loaded"] == number  # by the loader itself
            assert entry["is_global"]
            assert entry["shape"] == [4, 1]
            assert entry["there"] == sum(item >= 0 for item in items)
