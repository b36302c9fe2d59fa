"""DeepSpeed ZeRO-2: a killed run goes on from the client state of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Ranks, needs

needs("deepspeed")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(1300)]


def test_a_killed_run_goes_on_from_the_client_state(frames_set: Path, tmp_path: Path) -> None:
    ranks = Ranks(program="deepspeed_train", set_path=frames_set, out=tmp_path)
    ranks.start("--kill-after", "3", restarts=1)
    plan = ranks.planned(4)
    assert ranks.steps("first") == plan[:3]
    assert ranks.steps("second") == plan[3:]
    facts = ranks.facts("second", 1)
    assert (facts["stage"], facts["size"], facts["is_ours"]) == (2, 2, True)
