"""Ray Train: workers find their ranks, and a failed run is retried by Ray from the state in the last batch reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Ranks, needs

needs("ray")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(1300)]


def test_rays_retry_goes_on_exactly(frames_set: Path, tmp_path: Path) -> None:
    ranks = Ranks(program="ray_train", set_path=frames_set, out=tmp_path)
    ranks.start("--kill-after", "3", torchrun=False)
    plan = ranks.planned(4)
    assert ranks.steps("first") == plan[:3]
    assert ranks.steps("second") == plan[3:]
    facts = ranks.facts("second", 1)
    assert (facts["size"], facts["length"], facts["is_ours"]) == (2, len(plan), True)
