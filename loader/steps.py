"""The recipe the engine follows for a packed set: plan → items → assembled batch, faults included, for one rank and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .assemble import Assembler, Draws
from .batch import Batch, to_tensors
from .draft import Task
from .faults import FaultPolicy
from .plan import Plan, Planned

__all__ = ["StepRecipe"]


class StepRecipe:
    """Batches of one rank in one epoch; batch number n is micro-batch n mod k of step n div k."""

    def __init__(
        self,
        plan: Plan,
        assembler: Assembler,
        faults: FaultPolicy,
        *,
        batch_size: int,
        rank: int,
        accumulate: int,
        pin: bool,
    ) -> None:
        self.plan, self.assembler, self.faults = plan, assembler, faults
        self._batch_size, self._accumulate, self.pin = batch_size, accumulate, pin
        self._first_slot = rank * batch_size * accumulate

    def begin(self, step: int) -> _Begun:
        """Look up the items of batch number `step` and their rows."""
        number, micro = divmod(step, self._accumulate)
        first = self._first_slot + micro * self._batch_size
        return _Begun(self, step, self.plan.step(number, first, first + self._batch_size))


class _Begun:
    """One batch between plan and delivery; see `engine.Begun`."""

    def __init__(self, recipe: StepRecipe, number: int, planned: Planned) -> None:
        self._recipe, self._number, self._planned = recipe, number, planned
        self._set_items(np.ascontiguousarray(planned.items))

    def _set_items(self, items: NDArray[np.int64]) -> None:
        plan = self._recipe.plan
        draws = Draws(seed=plan.seed, epoch=plan.epoch, occurrence=self._planned.occurrence)
        self._draft, self._prepared = self._recipe.assembler.begin(self._number, items, draws)
        self.__dict__.pop("sizes", None)

    @property
    def what(self) -> str:
        """Which batch this is, for messages."""
        return f"batch {self._number} of epoch {self._recipe.plan.epoch} (items {self._draft.items[:4].tolist()}…)"

    @cached_property
    def sizes(self) -> Sequence[int]:
        """Bytes of each piece of batch memory that the batch needs."""
        return [size for part in self._prepared for size in part.sizes]

    def tasks(self, memory: Sequence[NDArray[np.uint8]]) -> Sequence[Task]:
        """Return the work, given memory of `sizes`."""
        return self._recipe.assembler.tasks(self._draft, self._prepared, memory)

    def finish(self) -> Batch | None:
        """Return the batch, or None when samples failed and others take their places."""
        recipe, planned, draft = self._recipe, self._planned, self._draft
        if draft.failures:
            self._set_items(recipe.faults.decide(planned.items, planned.occurrence, draft.items, draft.failures))
            return None
        contents = recipe.assembler.finish(draft)
        delivered = draft.items
        contents["id"] = planned.items.copy()
        contents["replaced"] = np.where((delivered != planned.items) & (delivered >= 0), delivered, -1)
        contents["slot"] = planned.slots.copy()
        contents["valid"] = delivered >= 0
        if planned.is_first is not None:
            contents["is_first"] = planned.is_first.copy()
        if planned.set_index is not None:
            contents["set"] = planned.set_index.copy()
        recipe.faults.passed(int((planned.items >= 0).sum()))
        batch = Batch(to_tensors(contents, recipe.assembler.bfloat16))
        return batch.pin_memory() if recipe.pin else batch
