"""Slot-sticky order through the loader: slots follow drives, say where they begin anew, and how the ego moved in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headway
from headway import DataLoader, LoaderOptions, SlotSticky, Topology, Window
from headway.formats.pose import to_matrix
from tests.loader.drives import PERIOD_NS, pose_of


def loader(location: Path, batch_size: int = 3, rank: int = 0, ranks: int = 1, **more: Any) -> DataLoader:  # Any: sampler's own
    dataset = headway.open(location, windows=[Window("ego")])
    options = LoaderOptions(seed=2)
    return DataLoader(
        dataset,
        batch_size,
        sampler=SlotSticky(**more),
        options=options,
        num_workers=1,
        topology=Topology(rank=rank, size=ranks),
    )


@pytest.mark.parametrize("chunk_items", [None, 2])
def test_each_slot_goes_on_where_it_was_unless_it_says_otherwise(drives_set: Path, chunk_items: int | None) -> None:
    before: dict[int, tuple[str, int]] = {}
    firsts = moved = 0
    for batch in loader(drives_set, chunk_items=chunk_items):
        assert batch["slot"].tolist() == [0, 1, 2]
        for slot in range(3):
            if not batch["valid"][slot]:
                continue
            drive, frame = batch["drive"][slot], int(batch["frame"][slot])
            is_first = bool(batch["is_first"][slot])
            assert is_first == (before.get(slot) != (drive, frame - 1))
            firsts += is_first
            motion = batch["motion"]["pose"][slot].numpy()
            assert bool(batch["motion"]["mask"][slot]) == (not is_first)
            if is_first:
                assert np.array_equal(motion, np.eye(4))
            else:
                number, stamp = int(drive[-1]), int(batch["stamp"][slot])
                earlier, now = (to_matrix(pose_of(number, at)[None])[0] for at in (stamp - PERIOD_NS, stamp))
                np.testing.assert_allclose(motion, np.linalg.inv(now) @ earlier, atol=1e-9)
                # Straight ahead, so the previous frame lies behind: x is forward.
                assert motion[0, 3] == pytest.approx(-(5 + number) * PERIOD_NS * 1e-9)
                moved += 1
            before[slot] = drive, frame
    # 18 items; three drives cut into three slots, or chunks of two.
    assert firsts + moved == 18
    assert firsts <= 5 if chunk_items is None else firsts >= 7


def test_ranks_share_one_walk_and_a_resume_does_not_forget(drives_set: Path) -> None:
    whole = [(batch["id"].tolist(), batch["is_first"].tolist()) for batch in loader(drives_set)]
    begun = iter(loader(drives_set))
    for _ in range(2):
        state = json.loads(json.dumps(next(begun)["state"]))
    del begun
    rest: list[tuple[list[int], list[bool]]] = [([], []) for _ in whole[2:]]
    for rank in range(3):
        resumed = loader(drives_set, 1, rank, 3)
        resumed.load_state_dict(state)
        for number, batch in enumerate(resumed):
            rest[number][0].extend(batch["id"].tolist())
            rest[number][1].extend(batch["is_first"].tolist())
    assert rest == whole[2:]


def test_every_slot_begins_anew_after_a_change_of_the_batch_size(drives_set: Path) -> None:
    begun = iter(loader(drives_set))
    state = next(begun)["state"]
    del begun
    resumed = loader(drives_set, 2)
    with pytest.warns(UserWarning, match="another batch size"):
        resumed.load_state_dict(state)
    batches = list(resumed)
    assert batches[0]["is_first"].all()
    assert not batches[0]["motion"]["mask"].any()
    assert sorted(torch.cat([batch["id"][batch["valid"]] for batch in batches]).tolist() + begun_items(drives_set)) == list(
        range(18)
    )


def begun_items(location: Path) -> list[int]:
    first: list[int] = next(iter(loader(location)))["id"].tolist()
    return first
