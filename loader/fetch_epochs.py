"""Who fetches for a loader's iterators: the next epoch is begun while the last steps of this one are used."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from .fetch import FetchAhead
from .pace import Pace
from .plan import Plan
from .plan_uses import PlanUses
from .steps import StepRecipe

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet

__all__ = ["ENCODED_SHARE", "EpochFetcher"]

B = TypeVar("B")

ENCODED_SHARE: Final = 0.25
"""Of a loader's memory, for payloads as they are stored; images take about a tenth of the bytes that they have in a batch."""
_AFTER_SHARE: Final = 0.25  # of that, for the next epoch while this one is under way


class EpochFetcher(Generic[B]):
    """Makes a `FetchAhead` for each iterator of one loader, or hands over the one that was begun for it.

    `epoch_after` returns the recipe of the epoch that is next if nobody says otherwise, and its number of batches.
    """

    def __init__(
        self,
        packed: PackedSet,
        *,
        memory_bytes: int,
        pace: Pace,
        stall_s: float,
        epoch_after: Callable[[], tuple[StepRecipe[B], int] | None],
        node_ranks: Callable[[], range],
    ) -> None:
        self._packed, self._pace, self._stall_s = packed, pace, stall_s
        self._budget_bytes = int(memory_bytes * ENCODED_SHARE)
        self._epoch_after, self._node_ranks = epoch_after, node_ranks
        self._uses: PlanUses | None = None
        self._base = 0
        self._lock = threading.Lock()  # guards the two below
        self._next: FetchAhead[B] | None = None
        self._closed = False
        self._pid = os.getpid()

    def begin(self, recipe: Callable[[], StepRecipe[B]], plan: Plan, *, first: int, last: int) -> FetchAhead[B]:
        """Return who fetches batches `first` to `last` of `plan`, started."""
        with self._lock:
            found, self._next = self._next, None
        if found is not None:
            if _same(found.recipe.plan, plan) and (found.first, found.last) == (first, last) and not found.has_failed:
                found.budget_bytes = self._budget_bytes
                self._publish(found)
                return found
            found.close()
        self._base += 2 * last
        made = self._make(recipe(), first, last)
        self._publish(made)
        made.start()
        return made

    def _publish(self, fetch: FetchAhead[B]) -> None:
        """Have it published when this epoch and the next, as things stand, need what is cached."""
        recipe, after = fetch.recipe, self._epoch_after()
        if self._uses is None:
            self._uses = PlanUses(self._packed, recipe.assembler.view, recipe.assembler.reads)
            self._uses.start()
        self._base, fetch.uses = fetch.base, self._uses
        ranks = self._node_ranks()
        self._uses.begin(
            recipe.plan,
            None if after is None else after[0].plan,
            base=fetch.base,
            slots=(ranks.start * recipe.width, ranks.stop * recipe.width),
            accumulate=recipe.accumulate,
        )

    def close(self) -> None:
        """End what was begun for an iterator that will not come."""
        if os.getpid() != self._pid:
            return  # a forked child has the object, and none of the threads
        with self._lock:
            found, self._next, self._closed = self._next, None, True
        if found is not None:
            found.close()
        if self._uses is not None:
            self._uses.close()

    def _make(self, recipe: StepRecipe[B], first: int, last: int) -> FetchAhead[B]:
        fetch = FetchAhead(
            recipe,
            self._packed,
            first=first,
            last=last,
            budget_bytes=self._budget_bytes,
            pace=self._pace,
            stall_s=self._stall_s,
            then=self._go_on,
        )
        fetch.base = self._base
        return fetch

    def _go_on(self, before: FetchAhead[B]) -> None:
        after = self._epoch_after()
        if after is None or before.is_closed:
            return
        recipe, last = after
        made = self._make(recipe, 0, last)
        made.uses, made.base = before.uses, before.base + before.last
        made.budget_bytes = int(self._budget_bytes * _AFTER_SHARE)
        made.follow(before)
        with self._lock:
            if self._closed or self._next is not None:
                return
            self._next = made
        made.start()


def _same(one: Plan, other: Plan) -> bool:
    return (one.epoch, one.seed, one.first_step, one.steps) == (other.epoch, other.seed, other.first_step, other.steps)
