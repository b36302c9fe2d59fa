"""Everything a loader of packed sets can be told beyond torch's own arguments, in one frozen object."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from ..formats import UsageError
from .pace import Pace
from .telemetry import Telemetry
from .transforms import Transforms

__all__ = ["LoaderOptions"]

OnError = Literal["raise", "replace", "mask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Options of `DataLoader` over a packed set.

    >>> LoaderOptions(seed=7, memory_bytes=400 << 20).pace.headway_s
    2.0
    """

    seed: int = 0
    """Order and every random draw follow from it, the epoch and the item. Equal on all ranks."""
    accumulate: int = 1
    """Micro-batches a step (gradient accumulation): the global batch is batch_size × ranks × accumulate."""
    memory_bytes: int = 1 << 30
    """Batch memory of this loader: batches being made, waiting, and held by you. Must hold two batches."""
    prefetch: int | None = None
    """Batches made ahead of the one asked for (0 to 64); 0 makes each when it is asked for. None: chosen while it runs, 2 to
    begin with, then as many as `pace.headway_s` takes, 1 to 4."""
    pace: Pace = field(default_factory=Pace)
    """How many seconds of input to hold ready, and the overrides of everything that is chosen by measurement."""
    on_error: OnError = "raise"
    """A payload that cannot be read or decoded: raise; replace the sample by another (keyed draw, named in `replaced`);
    or mask it (zeros, `valid` false)."""
    max_bad: int = 100
    """With replace or mask: bad samples an epoch before DecodeError is raised all the same."""
    max_bad_share: float = 0.01
    """With replace or mask: share of bad samples, once more than 10 have been seen, before DecodeError is raised."""
    quarantine: str | os.PathLike[str] | None = None
    """File to which each payload that could not be used adds a JSON line; `read_quarantine(path)` makes it the next view's
    `exclude`. Ranks of one machine may share it; across machines give each its own."""
    transforms: Transforms = field(default_factory=Transforms)
    """Your own functions on samples and batches, and the processes they run in."""
    stall_s: float = 120.0
    """Deadline behind every wait: no progress for this long raises StalledError with all stacks; over a plain dataset, the only
    option with a meaning there, it is logged and the wait goes on."""
    telemetry: Telemetry | None = None
    """Write the stall ledger down and show it: files, metrics, traces. None: only `DataLoader.stats()` tells."""
    strict_batch: bool = False
    """Refuse a state saved at another global batch size instead of warning."""

    def __post_init__(self) -> None:
        _whole("seed", self.seed, 0, (1 << 63) - 1)
        _whole("accumulate", self.accumulate, 1, 1 << 20)
        _whole("memory_bytes", self.memory_bytes, 1 << 16, 1 << 50)
        if self.prefetch is not None:
            _whole("prefetch", self.prefetch, 0, 64)
        if not isinstance(self.pace, Pace):
            raise UsageError(f"LoaderOptions: pace must be a Pace(…), found {self.pace!r}")
        _whole("max_bad", self.max_bad, 0, 1 << 60)
        if self.on_error not in ("raise", "replace", "mask"):
            raise UsageError(f"LoaderOptions: on_error {self.on_error!r} is none of raise, replace, mask")
        if not isinstance(self.transforms, Transforms):
            raise UsageError(f"LoaderOptions: transforms must be Transforms(sample=…, batch=…), found {self.transforms!r}")
        if self.telemetry is not None and not isinstance(self.telemetry, Telemetry):
            raise UsageError(f"LoaderOptions: telemetry must be Telemetry(directory=…) or None, found {self.telemetry!r}")
        if not 0 <= self.max_bad_share <= 1:
            raise UsageError(f"LoaderOptions: max_bad_share must be between 0 and 1, found {self.max_bad_share!r}")
        if not self.stall_s > 0:
            raise UsageError(f"LoaderOptions: stall_s must be above 0, found {self.stall_s!r}")

    @property
    def batches_ahead(self) -> int:
        """Batches made ahead to begin with."""
        return 2 if self.prefetch is None else self.prefetch


def _whole(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"LoaderOptions: {name} must be a whole number from {low} to {high}, found {value!r}")
