"""Transformers' Trainer: `get_train_dataloader` gives our loader, and `ignore_data_skip` leaves the position to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import Ranks, needs

needs("transformers")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(1300)]


def test_a_killed_train_goes_on_from_the_state_in_its_checkpoint(frames_set: Path, tmp_path: Path) -> None:
    ranks = Ranks(program="transformers_train", set_path=frames_set, out=tmp_path)
    ranks.start("--kill-after", "3", "--epochs", "2", restarts=1)
    first, second = ranks.planned(4), ranks.planned(4, epoch=1)
    assert ranks.steps("first") == first[:3]
    assert ranks.steps("second") == first[3:] + second
    assert ranks.facts("second", 1) == {"is_ours": True, "size": 2, "length": len(first)}
