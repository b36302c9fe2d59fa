"""Accelerate: `prepare` returns the loader itself, and a killed run goes on without `skip_first_batches`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Ranks, needs

needs("accelerate")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(1300)]


def test_a_killed_run_goes_on_from_the_state_in_the_batch(frames_set: Path, tmp_path: Path) -> None:
    ranks = Ranks(program="accelerate_train", set_path=frames_set, out=tmp_path)
    ranks.start("--kill-after", "3", restarts=1)
    plan = ranks.planned(4)
    assert ranks.steps("first") == plan[:3]
    assert ranks.steps("second") == plan[3:]
    assert ranks.facts("second", 1) == {"is_ours": True, "size": 2, "length": len(plan)}
