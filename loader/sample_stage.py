"""A transform of samples as a stage: a batch's arrays in, the transformed samples' arrays out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import UsageError
from .assemble import Assembler
from .draft import Draws
from .plan import Plan
from .samples import Allocate, Sample, Template, merge, split
from .transforms import call_transform

__all__ = ["SampleStage"]

Call = Callable[..., Any]  # Any: see Transforms


class SampleStage:
    """Runs `call` on each sample of a batch, in order; for one epoch, in one thread at a time."""

    def __init__(self, call: Call, assembler: Assembler, plan: Plan) -> None:
        self._call, self._assembler, self._plan = call, assembler, plan
        self._known: Template | None = None

    def __call__(
        self, contents: Sample, allocate: Allocate = np.empty, *, begun: Callable[[int], None] = lambda item: None
    ) -> Sample:
        """Return the batch of transformed samples; arrays that are new lie in memory from `allocate`.

        Args:
            begun: told each item before the transform sees it.
        """
        given = split(contents)
        items = np.where(contents["replaced"] >= 0, contents["replaced"], contents["id"])
        made: list[Sample | None] = []
        for at, sample in enumerate(given):
            if not contents["valid"][at]:
                made.append(None)
                continue
            begun(int(items[at]))
            made.append(self._transformed(sample, int(items[at]), int(contents["occurrence"][at])))
        first = next((at for at, sample in enumerate(made) if sample is not None), None)
        template = self._template() if first is None else Template(given[first], made[first] or {})
        return merge(contents, given, made, template, allocate)

    def _transformed(self, sample: Sample, item: int, occurrence: int) -> Sample:
        key = (self._plan.seed, self._plan.epoch, item, occurrence)
        what = f"item {item} (drive {sample['drive']!r}, frame {int(sample['frame'])})"
        # The dict is copied, so that a transform that adds to what it was given does not change what it is compared with.
        made = call_transform(self._call, _copied(sample), key, what=what)
        if not isinstance(made, dict):
            raise UsageError(f"a transform of samples must return a dict, found {type(made).__name__} for {what}")
        return made

    def _template(self) -> Template:
        """Return the view's first item before and after: what a batch of nothing but padding takes its shapes from."""
        if self._known is None:
            draws = Draws(seed=self._plan.seed, epoch=self._plan.epoch, occurrence=np.zeros(1, np.int64))
            draft, prepared = self._assembler.begin(0, np.zeros(1, np.int64), draws)
            memory: list[NDArray[np.uint8]] = [np.empty(size, np.uint8) for part in prepared for size in part.sizes]
            for task in self._assembler.tasks(draft, prepared, memory):
                task.run()
            if draft.failures:
                raise draft.failures[0]
            contents = self._assembler.finish(draft)
            zero = np.zeros(1, np.int64)
            contents |= {"id": zero, "replaced": zero - 1, "slot": zero, "occurrence": zero, "epoch": zero, "valid": zero == 0}
            (given,) = split(contents)
            self._known = Template(given, self._transformed(given, 0, 0))
        return self._known


def _copied(sample: Sample) -> Sample:
    return {name: _copied(value) if isinstance(value, dict) else value for name, value in sample.items()}
