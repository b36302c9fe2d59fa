"""Weighted draws: frequencies as asked, exact integers, tables on disk, weights that change between epochs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from headway.formats import SetError, StateError, UsageError
from headway.loader.plan import Plan
from headway.loader.state import State
from headway.loader.weighted import Weighted, WeightJournal
from headway.loader.weights import WeightTable, class_balanced
from tests.laws.plans import view_of


def drawn(sampler: Weighted, items: int, *, epoch: int = 0, batch_size: int = 50) -> list[int]:
    plan = Plan(view_of(items), sampler, seed=1, epoch=epoch, segments=[(batch_size, 0)])
    found = plan.look_ahead(0, plan.steps).items.ravel()
    return [int(item) for item in found if item >= 0]


def test_items_come_as_often_as_their_weights_say() -> None:
    weights = np.array([1, 0, 3, 2, 10])
    counts = np.bincount(drawn(Weighted(table=WeightTable.of(weights), epoch_items=50_000), 5), minlength=5)
    assert counts[1] == 0
    assert chisquare(counts[weights > 0], 50_000 * weights[weights > 0] / 16).pvalue > 1e-3


def test_the_position_of_a_draw_does_not_depend_on_the_batch_size() -> None:
    sampler = Weighted(table=WeightTable.of(np.arange(1, 30)), epoch_items=200)
    assert drawn(sampler, 29, batch_size=7) == drawn(sampler, 29, batch_size=50)


def test_a_repeat_is_another_occurrence() -> None:
    plan = Plan(view_of(2), Weighted(table=WeightTable.of([1, 1]), epoch_items=40), seed=0, epoch=0, segments=[(8, 0)])
    ahead = plan.look_ahead(0, plan.steps)
    assert ahead.occurrence.ravel().tolist() == list(range(40))


def test_float_weights_become_integers_that_keep_their_proportions() -> None:
    table = WeightTable.of([0.1, 0.0, 0.3, 1e-30])
    weights = np.diff(table.cumulative, prepend=0)
    assert weights[1] == 0
    assert weights[3] == 1  # never 0, or the item would never come
    assert weights[2] / weights[0] == pytest.approx(3, rel=1e-8)


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [0.0, float("nan")], [float("inf")], [[1, 2]], ["a"], [2**62, 2**62]])
def test_what_is_no_weights_is_refused(weights: list[object]) -> None:
    with pytest.raises(UsageError, match="cannot"):
        WeightTable.of(weights)  # type: ignore[arg-type]  # wrong on purpose


def test_a_saved_table_is_mapped_and_the_same(tmp_path: Path) -> None:
    table = WeightTable.of([5, 1, 2])
    opened = WeightTable.open(table.save(tmp_path / "w.npy"))
    assert isinstance(opened.cumulative, np.memmap)
    assert opened.digest == table.digest
    assert [path.name for path in tmp_path.iterdir()] == ["w.npy"]
    (tmp_path / "bad.npy").write_bytes(b"not a table")
    with pytest.raises(SetError, match=r"bad\.npy"):
        WeightTable.open(tmp_path / "bad.npy")
    np.save(tmp_path / "falling.npy", np.array([3, 2], "<i8"))
    with pytest.raises(UsageError, match="falls"):
        WeightTable.open(tmp_path / "falling.npy")


def test_a_table_for_another_view_is_refused() -> None:
    with pytest.raises(UsageError, match="5 items, the weight table 2"):
        Plan(view_of(5), Weighted(table=WeightTable.of([1, 1])), seed=0, epoch=0, segments=[(8, 0)])


def test_class_balanced_weights_draw_every_class_equally_often() -> None:
    # Class 0 in all 100 items, class 1 in 10 of them, class 2 in one.
    items = np.concatenate([np.arange(100), np.arange(10), [3, 3]])
    classes = np.concatenate([np.zeros(100), np.ones(10), [2, 2]]).astype(int)
    weights = class_balanced(items, classes, count=101)
    assert weights[100] == 0
    assert weights.sum() == pytest.approx(3)  # one for each class
    assert weights[3] == pytest.approx(1 / 100 + 1 / 10 + 1)
    assert class_balanced(items, classes, count=101, background=1.0)[100] == pytest.approx(3 / 100)
    assert class_balanced(items, classes, count=100, power=0.0)[3] == pytest.approx(3)
    with pytest.raises(UsageError, match="items 0 to 99"):
        class_balanced(items, classes, count=50)
    with pytest.raises(UsageError, match="no item holds any"):
        class_balanced([], [], count=50)


def test_weights_change_between_epochs_through_the_journal(tmp_path: Path) -> None:
    journal = WeightJournal(tmp_path / "weights")
    with pytest.raises(SetError, match="holds no weights"):
        journal.sampler()
    with pytest.raises(UsageError, match="expected epoch 0"):
        journal.append(2, WeightTable.of([1, 1]))
    journal.append(0, WeightTable.of([1, 0]))
    before = journal.sampler(epoch_items=20)
    journal.append(3, WeightTable.of([0, 1]))
    with pytest.raises(UsageError, match="expected epoch 4"):
        journal.append(3, WeightTable.of([1, 1]))
    sampler = WeightJournal(tmp_path / "weights").sampler(epoch_items=20)
    assert set(drawn(sampler, 2, epoch=2)) == {0}
    assert set(drawn(sampler, 2, epoch=3)) == {1}
    # A state of an epoch before the change resumes with the longer journal; one of a later epoch needs it.
    view = view_of(2)
    early, late = (State.start(view, sampler, seed=1, epoch=epoch, batch_size=4) for epoch in (2, 3))
    assert early.resume(view, before, seed=1, batch_size=4) == early
    assert early.next_epoch(view, sampler) == late
    with pytest.raises(StateError, match=r"sampler\.weights"):
        late.resume(view, before, seed=1, batch_size=4)


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    journal = WeightJournal(tmp_path)
    journal.append(0, WeightTable.of([1, 2]))
    table = next(tmp_path.glob("*.npy"))
    np.save(table, np.array([1, 4], "<i8"))
    with pytest.raises(SetError, match="SHA-256"):
        journal.sampler()
    (tmp_path / "journal.jsonl").write_text("{}\n")
    with pytest.raises(SetError, match="expected epoch, table, digest"):
        journal.sampler()
