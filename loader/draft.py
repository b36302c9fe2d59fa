"""One batch in the making: its arrays, the work still to do on them, and what has gone wrong so far.

Threads share a draft without a lock: every task writes to places no other task writes to, and failures are collected in
a dict, one key a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..formats import HeadwayError
from .located import Ahead, Located
from .read_set import Resolved
from .stall import Stage

__all__ = ["Draft", "Draws", "Field", "Prepared", "Task", "Work"]


class Work(Protocol):
    """A task that native threads are at."""

    def wait(self, timeout_s: float) -> bool:
        """Return True once all is done that the task's `run` does, False if `timeout_s` passes first; may help with it."""
        ...

    def is_done(self) -> bool:
        """Tell whether `wait` would not have to wait."""
        ...


@dataclass(slots=True)
class Task:
    """One piece of work that any thread may do."""

    run: Callable[[], None]
    what: str
    """For messages: what is being worked on."""
    is_quick: bool = False
    """Takes less time than handing it to another thread would."""
    stage: Stage = "decode"
    """What a consumer that waits for this waits for."""
    start: Callable[[], Work] | None = None
    """In place of `run`: leave it to native threads and return at once. None: it needs the interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What random choices of a batch are keyed by, besides the items."""

    seed: int
    epoch: int
    occurrence: NDArray[np.int64]
    """(B,)"""


@dataclass(slots=True)
class Draft:
    """A batch of B samples between plan and delivery."""

    step: int
    """Number of the batch within its epoch."""
    items: NDArray[np.int64]
    """(B,) items delivered; −1: nothing (padding or masked)."""
    draws: Draws
    located: Located
    """Where the B samples lie; rows are −1 where items are."""
    entries: dict[str, Any] = field(default_factory=dict)  # Any: arrays, lists of text, and dicts of them
    """What becomes the batch."""
    finishers: list[Callable[[], None]] = field(default_factory=list)
    """Run in order by one thread once all tasks are done."""
    failures: dict[int, HeadwayError] = field(default_factory=dict)
    """Sample → what was wrong with one of its payloads (the first that was found)."""

    @property
    def windows(self) -> Mapping[str, Resolved]:
        """By window name, over all B samples."""
        return self.located.windows

    @property
    def ahead(self) -> Mapping[str, Ahead]:
        """By field key, what the field found ahead for these B samples."""
        return self.located.ahead

    def fail(self, sample: int, error: HeadwayError) -> None:
        """Record that a payload of `sample` cannot be used; the fault policy decides what that means."""
        self.failures.setdefault(sample, error)


@dataclass(slots=True)
class Prepared:
    """What a field needs before work on it can start."""

    fill: Callable[[Sequence[NDArray[np.uint8]]], list[Task]]
    """Given memory of `sizes`, places the field's arrays into the draft and returns the work that fills them."""
    sizes: Sequence[int] = ()
    """Bytes of each piece of batch memory; small arrays need none."""


class Field(Protocol):
    """One key of the batch: knows its layout once, and fills it batch by batch."""

    key: str

    def ahead(self, windows: Mapping[str, Resolved]) -> Ahead:
        """Return what can be known of many items at once from index and columns; a batch has its part in `Draft.ahead`.

        Held for thousands of items, so nothing that is more than some hundred bytes an item.
        """
        ...

    def prepare(self, draft: Draft) -> Prepared:
        """Find out how much memory this batch's field takes; no payload is decoded here."""
        ...
