"""The recipe the engine follows for a packed set: plan → items → assembled batch, faults included, for one rank and epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from .assemble import Assembler
from .draft import Draws, Task
from .faults import FaultPolicy
from .located import Located
from .plan import Plan, Planned
from .sequence import sequence_entries

__all__ = ["Contents", "StepRecipe"]

Contents = dict[str, Any]  # Any: arrays, lists of text, and dicts of them; see Batch
B = TypeVar("B")

# Items planned and located in one go: from here on numpy's cost per call no longer shows. Also at most so many bytes: of an
# AV sample with six cameras some hundred, whose matrices are made in a few milliseconds.
_AHEAD_ITEMS: Final = 8192
_AHEAD_BYTES: Final = 2 << 20


class StepRecipe(Generic[B]):
    """Batches of one rank in one epoch; batch number n is micro-batch n mod k of step n div k.

    `deliver` makes what is handed over from a batch's arrays, in the thread that finished it.
    """

    def __init__(
        self,
        plan: Plan,
        assembler: Assembler,
        faults: FaultPolicy,
        *,
        batch_size: int,
        rank: int,
        accumulate: int,
        deliver: Callable[[Contents], B],
    ) -> None:
        self.plan, self.assembler, self.faults = plan, assembler, faults
        self._batch_size, self._accumulate, self.deliver = batch_size, accumulate, deliver
        self._first_slot = rank * batch_size * accumulate
        self.width, self.accumulate = batch_size * accumulate, accumulate
        """Slots of a rank; micro-batches a step."""
        self._ahead: _Ahead | None = None  # replaced whole: two threads that look up at once do so twice at worst
        self._grow = 1
        self.most_ahead = _AHEAD_ITEMS
        """Steps planned in one go; fewer where finding rows means fetching them."""

    def begin(self, step: int) -> _Begun[B]:
        """Look up the items of batch number `step` and their rows."""
        return self.begun(step, *self.place(step))

    def begun(self, step: int, planned: Planned, located: Located) -> _Begun[B]:
        """Begin a batch that was looked up before."""
        return _Begun(self, step, planned, located)

    def place(self, step: int) -> tuple[Planned, Located]:
        """Return the items of batch number `step`, and where they lie."""
        number, micro = divmod(step, self._accumulate)
        ahead = self._ahead
        if ahead is None or not ahead.first <= number < ahead.last:
            ahead = self._ahead = self._look_ahead(number)
        row, start = number - ahead.first, micro * self._batch_size
        chosen = slice(start, start + self._batch_size)
        run = ahead.planned
        planned = Planned(
            items=run.items[row, chosen],
            slots=run.slots[row, chosen],
            occurrence=run.occurrence[row, chosen],
            is_first=None if run.is_first is None else run.is_first[row, chosen],
            set_index=None if run.set_index is None else run.set_index[row, chosen],
        )
        begin = row * self._batch_size * self._accumulate + start
        return planned, ahead.located.part(begin, begin + self._batch_size)

    def items_of(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the items of this rank's batches `first` to `last`, exclusive, batch by batch (−1: padding)."""
        width = self._batch_size * self._accumulate
        begin, end = first // self._accumulate, -(-last // self._accumulate)
        planned = self.plan.look_ahead(begin, end - begin, self._first_slot, self._first_slot + width)
        start = first * self._batch_size - begin * width
        items: NDArray[np.int64] = planned.items.ravel()[start : start + (last - first) * self._batch_size]
        return items

    def _look_ahead(self, number: int) -> _Ahead:
        """Plan this rank's part of a run of steps, the first alone: it is waited for."""
        width = self._batch_size * self._accumulate
        steps = min(self._grow, self.most_ahead, self.plan.steps - number)
        planned = self.plan.look_ahead(number, steps, self._first_slot, self._first_slot + width)
        draws = Draws(seed=self.plan.seed, epoch=self.plan.epoch, occurrence=planned.occurrence.ravel())
        located = self.assembler.locate(np.ascontiguousarray(planned.items).ravel(), draws)
        item_bytes = 1 + located.ahead_bytes // max(1, planned.items.size)
        self._grow = max(1, min(self._grow * 4, _AHEAD_ITEMS // width, _AHEAD_BYTES // (width * item_bytes)))
        return _Ahead(first=number, last=number + steps, planned=planned, located=located)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    """A run of steps, planned and located together."""

    first: int
    last: int
    planned: Planned
    """Arrays (steps, slots of this rank)."""
    located: Located


class _Begun(Generic[B]):
    """One batch between plan and delivery; see `engine.Begun`."""

    def __init__(self, recipe: StepRecipe[B], number: int, planned: Planned, located: Located) -> None:
        self._recipe, self._number, self._planned = recipe, number, planned
        self._set_items(np.ascontiguousarray(planned.items), located)

    def _set_items(self, items: NDArray[np.int64], located: Located | None = None) -> None:
        plan = self._recipe.plan
        draws = Draws(seed=plan.seed, epoch=plan.epoch, occurrence=self._planned.occurrence)
        self._draft, self._prepared = self._recipe.assembler.begin(self._number, items, draws, located)
        self.__dict__.pop("sizes", None)

    @property
    def what(self) -> str:
        """Which batch this is, for messages."""
        return f"batch {self._number} of epoch {self._recipe.plan.epoch} (items {self._draft.items[:4].tolist()}…)"

    @cached_property
    def sizes(self) -> Sequence[int]:
        """Bytes of each piece of batch memory that the batch needs."""
        return [size for part in self._prepared for size in part.sizes]

    @property
    def changes(self) -> bool:
        """Whether samples failed, so that others take their places or none."""
        return bool(self._draft.failures)

    def tasks(self, memory: Sequence[NDArray[np.uint8]]) -> Sequence[Task]:
        """Return the work, given memory of `sizes`."""
        return self._recipe.assembler.tasks(self._draft, self._prepared, memory)

    def finish(self) -> B | None:
        """Return the batch, or None when samples failed and others take their places."""
        recipe, planned, draft = self._recipe, self._planned, self._draft
        if draft.failures:
            items, repeats = planned.items, planned.occurrence
            self._set_items(recipe.faults.decide(items, repeats, draft.items, draft.failures, step=self._number))
            return None
        contents = recipe.assembler.finish(draft)
        delivered = draft.items
        # Parts of the look-ahead that nobody else will look at again: the batch may have them.
        contents["id"], contents["slot"], contents["occurrence"] = planned.items, planned.slots, planned.occurrence
        contents["replaced"] = replaced = np.empty_like(delivered)
        contents["epoch"] = epochs = np.empty_like(delivered)
        replaced.fill(-1)
        epochs.fill(recipe.plan.epoch)
        contents["valid"] = valid = delivered >= 0
        passed = int(np.count_nonzero(valid))
        if delivered is not planned.items:
            np.copyto(replaced, delivered, where=(delivered != planned.items) & valid)
            passed = int(np.count_nonzero(planned.items >= 0))
        contents.update(sequence_entries(recipe.plan, recipe.assembler.view, planned))
        recipe.faults.passed(passed)
        return recipe.deliver(contents)
