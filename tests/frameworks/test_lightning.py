"""Lightning: a checkpoint in the middle of an epoch, a killed run, and Lightning's own way of going on."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Ranks, needs

needs("lightning")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(1300)]


def test_a_killed_fit_goes_on_without_losing_or_repeating_a_sample(frames_set: Path, tmp_path: Path) -> None:
    """Lightning-AI/litData#775: the trainer hands the state back to the loader, which is iterated as it was given."""
    ranks = Ranks(program="lightning_fit", set_path=frames_set, out=tmp_path)
    ranks.start("--kill-after", "3", torchrun=False, killed=True)
    ranks.start("--called", "second", "--resume", "--epochs", "2", torchrun=False)
    first, second = ranks.planned(4), ranks.planned(4, epoch=1)
    assert ranks.steps("first") == first[:3]
    assert ranks.steps("second") == first[3:] + second
    for run in ("first", "second"):
        for rank in range(2):
            assert ranks.facts(run, rank) == {"is_ours": True, "size": 2, "length": len(first)}
