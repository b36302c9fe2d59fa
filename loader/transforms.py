"""What user code does to samples and batches, as one option object, and how it is called: keyed draws, errors that say where."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..formats import UsageError
from .draws import rng

__all__ = ["Start", "Transforms", "call_transform"]

Start = Literal["auto", "fork", "spawn", "forkserver"]
Call = Callable[..., Any]  # Any: dicts of arrays or tensors, see Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Transforms:
    """Your functions on the way of each batch; `LoaderOptions(transforms=…)` takes them.

    A function that has a parameter `rng` is given a numpy Generator keyed by seed, epoch, item and occurrence: equal draws on any
    number of ranks and processes, and after a resume. Other random numbers are not headway's to repeat.

    >>> def dim(sample, rng):
    ...     sample["camera"]["image"] //= rng.integers(1, 4, dtype="uint8")
    ...     return sample
    >>> Transforms(sample=dim, processes=2).start
    'auto'
    """

    sample: Call | None = None
    """Sample (nested dict of numpy arrays, as `dataset[item]` has them) → sample. It may change arrays in place and return what
    it was given, which costs no copy. Padding and masked samples are not given to it; they become zeros of the same shapes."""
    batch: Call | None = None
    """Batch (tensors) → batch, in a thread of the loader in your process."""
    processes: int | None = None
    """Feeder processes that load, decode and run `sample`, each every n-th batch; 0: a thread of your process does. None: none
    without `sample` or with num_workers=0, else one for each decode thread, 4 at most. Without the native core, 1 gives
    a loop that holds the interpreter lock half of the time 1.4 times the pictures that threads do, on two cores."""
    start: Start = "auto"
    """How processes begin. "auto" forks, which needs no `if __name__ == "__main__"` and takes functions of any kind."""

    def __post_init__(self) -> None:
        for name in ("sample", "batch"):
            call = getattr(self, name)
            if call is not None and not callable(call):
                raise UsageError(f"Transforms: {name} must be a function or None, found {call!r}")
        if self.processes is not None and (not isinstance(self.processes, int) or not 0 <= self.processes <= 64):
            raise UsageError(f"Transforms: processes must be None or a whole number from 0 to 64, found {self.processes!r}")
        if self.start not in get_args(Start):
            raise UsageError(f"Transforms: start {self.start!r} is none of {', '.join(get_args(Start))}")

    def process_count(self, threads: int) -> int:
        """Return how many feeder processes a loader with `threads` decode threads has."""
        if self.processes is not None:
            return self.processes
        return min(threads, 4) if self.sample is not None else 0


def call_transform(call: Call, value: Any, key: tuple[int, int, int, int], *, what: str) -> Any:  # Any: see Transforms
    """Return `call(value)`, with draws keyed by (seed, epoch, item, occurrence) where it asks for them.

    Args:
        what: which object this is, for the note that an error of `call` gets.
    """
    stage = getattr(call, "__qualname__", type(call).__qualname__)
    try:
        return call(value, rng=rng(*key, "transform")) if _takes_rng(call) else call(value)
    except Exception as error:
        error.add_note(f"in transform {stage!r} of {what}, in process {os.getpid()}")
        raise


def _takes_rng(call: Call) -> bool:
    try:
        found = inspect.signature(call).parameters.get("rng")
    except (TypeError, ValueError):  # a built-in function that does not say what it takes
        return False
    return found is not None and found.kind in (found.KEYWORD_ONLY, found.POSITIONAL_OR_KEYWORD)
