"""What happens to a sample whose payload cannot be used: raise, replace or mask. Nothing else in headway decides this.

A replacement is a keyed draw over the view (in a mixture, over the same set), so it is the same on every topology and after a
resume, and ranks need not talk. Only permanent faults come here (bad bytes, wrong hashes); a store that does not answer raises
by itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..formats import DecodeError, HeadwayError
from .draws import below, key
from .options import LoaderOptions
from .quarantine import BadSample, Record
from .sampler import ViewInfo

__all__ = ["FaultPolicy"]

log = logging.getLogger("headway")

# A run of bad draws this long means that the set is bad, not the sample.
_ATTEMPTS: Final = 16
# Below this many bad samples a share says nothing.
_SHARE_FROM: Final = 10
# So many bad samples get a line each; from then on a line a doubling says how many there are, and the ledger which.
_TOLD: Final = 10


class FaultPolicy:
    """Decides for one epoch of one rank, within the budget of its options; thread-safe."""

    def __init__(self, options: LoaderOptions, *, view: ViewInfo, epoch: int, record: Record | None = None) -> None:
        self._options, self._view, self._epoch, self._record = options, view, epoch, record
        self._lock = threading.Lock()
        self._bad = 0
        self._seen = 0
        self._attempts: dict[tuple[int, int], int] = {}

    @property
    def bad(self) -> int:
        """Bad samples met so far."""
        return self._bad

    def passed(self, samples: int) -> None:
        """Count samples that were delivered, for the share."""
        with self._lock:
            self._seen += samples

    def decide(
        self,
        planned: NDArray[np.int64],
        occurrence: NDArray[np.int64],
        items: NDArray[np.int64],
        failures: Mapping[int, HeadwayError],
        *,
        step: int = 0,
    ) -> NDArray[np.int64]:
        """Return the items (B,) to deliver instead of `items`, some of which failed in batch `step`; −1 masks.

        What is decided is recorded; that it is raised, too.

        Raises:
            HeadwayError: the policy is to raise, or its budget is used up.
        """
        first = failures[min(failures)]
        if self._options.on_error == "raise":
            self._note(int(planned[min(failures)]), int(items[min(failures)]), first, step, -1)
            raise first
        decided = items.copy()
        for sample, error in sorted(failures.items()):
            item, repeat = int(planned[sample]), int(occurrence[sample])
            if self._options.on_error == "mask":
                decided[sample] = -1
                self._note(item, int(items[sample]), error, step, -1)
                self.count(error)
                self._tell("item %d is masked: %s", item, error)
                continue
            decided[sample] = self._replacement(item, repeat, error)
            self._note(item, int(items[sample]), error, step, int(decided[sample]))
            self.count(error)
            self._tell("item %d is replaced by item %d: %s", item, int(decided[sample]), error)
        return decided

    def _tell(self, said: str, *about: object) -> None:
        bad = self._bad
        if bad <= _TOLD:
            log.warning("headway: " + said, *about)
        elif bad % _TOLD == 0 and (bad // _TOLD).bit_count() == 1:
            log.warning("headway: %d bad samples in epoch %d so far, the last: " + said, bad, self._epoch, *about)

    def take(self, bad: BadSample) -> None:
        """Record and count what the policy of a feeder process decided."""
        if self._record is not None:
            self._record(bad)
        if bad.action != "raise":
            self.count(bad.error)

    def _replacement(self, item: int, occurrence: int, error: HeadwayError) -> int:
        attempt = self._attempts.get((item, occurrence), 0)
        self._attempts[(item, occurrence)] = attempt + 1
        if attempt >= _ATTEMPTS:
            raise DecodeError(
                f"cannot replace item {item}: {attempt} replacements drawn in a row are bad, too; run `headway verify` on the set"
            ) from error
        draw = key(self._options.seed, self._epoch, item, occurrence, f"replace {attempt}")
        first, end = self._view.range_of(item)
        return first + int(below(draw, end - first))

    def _note(self, planned: int, item: int, error: HeadwayError, step: int, replaced: int) -> None:
        if self._record is not None:
            bad = BadSample(
                planned=planned,
                item=item,
                error=error,
                action=self._options.on_error,
                epoch=self._epoch,
                step=step,
                replaced=replaced,
            )
            self._record(bad)

    def count(self, error: HeadwayError) -> None:
        """Count one bad sample; raises where that is more than the budget allows."""
        with self._lock:
            self._bad += 1
            bad, seen = self._bad, max(self._seen, self._bad)
        options = self._options
        if bad > options.max_bad:
            raise DecodeError(
                f"{bad} bad samples in epoch {self._epoch} on this rank, LoaderOptions.max_bad allows {options.max_bad}; "
                f"the last: {error}"
            ) from error
        if bad > _SHARE_FROM and bad > options.max_bad_share * seen:
            raise DecodeError(
                f"{bad} of {seen} samples of epoch {self._epoch} on this rank are bad, LoaderOptions.max_bad_share allows "
                f"{options.max_bad_share:g} of them; the last: {error}"
            ) from error
