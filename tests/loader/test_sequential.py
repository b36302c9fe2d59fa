"""Sequential and evaluation orders: position m = items of earlier steps + step · B + slot."""

from __future__ import annotations

import numpy as np
import pytest

from headway.formats import UsageError
from headway.loader.plan import Plan, ViewInfo
from headway.loader.sampler import Sampler
from headway.loader.sequential import Evaluation, Sequential
from tests.laws.plans import view_of


@pytest.mark.parametrize("sampler", [Sequential(), Evaluation()])
def test_items_come_in_order_and_end_with_padding(sampler: Sampler) -> None:
    plan = Plan(view_of(10), sampler, seed=0, epoch=0, segments=[(4, 0)])
    assert plan.look_ahead(0, 3).items.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, -1, -1]]


def test_a_change_of_the_batch_size_goes_on_where_it_was() -> None:
    plan = Plan(view_of(10), Sequential(), seed=0, epoch=0, segments=[(4, 1), (3, 0)])
    assert plan.look_ahead(1, 2).items.tolist() == [[4, 5, 6], [7, 8, 9]]
    assert plan.steps == 3


def test_evaluation_drops_nothing() -> None:
    assert not Evaluation().drop_last
    assert Plan(view_of(10), Sequential(drop_last=True), seed=0, epoch=0, segments=[(4, 0)]).steps == 2


def test_one_step_is_a_row_of_the_look_ahead() -> None:
    plan = Plan(view_of(50), Sequential(), seed=0, epoch=0, segments=[(8, 2), (6, 0)])
    step = plan.step(3, 2, 5)
    assert step.items.tolist() == [24, 25, 26]
    assert step.slots.tolist() == [2, 3, 4]
    assert step.occurrence.tolist() == [0, 0, 0]
    assert plan.look_ahead(2, 0).items.shape == (0, 6)


def test_steps_of_earlier_batch_sizes_may_be_asked_for() -> None:
    plan = Plan(view_of(50), Sequential(), seed=0, epoch=0, segments=[(8, 2), (6, 0)])
    assert plan.look_ahead(1, 2, 0, 3).items.tolist() == [[8, 9, 10], [16, 17, 18]]
    with pytest.raises(UsageError, match="6 slots"):
        plan.look_ahead(1, 2, 0, 8)


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(UsageError, match="0 items"):
        Plan(ViewInfo(view_id="v", items=0, drive_starts=np.array([0, 0])), Sequential(), seed=0, epoch=0, segments=[(4, 0)])
    with pytest.raises(UsageError, match="batch size"):
        Plan(view_of(5), Sequential(), seed=0, epoch=0, segments=[])
    plan = Plan(view_of(5), Sequential(), seed=0, epoch=0, segments=[(4, 0)])
    with pytest.raises(UsageError, match="steps 0 to 2"):
        plan.step(2)
    with pytest.raises(UsageError, match="4 slots"):
        plan.step(0, 0, 5)
