"""Ledger lines of many ranks as arrays: steps that all of them have, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import UsageError
from ..loader.run_files import RankFile
from ..loader.stall import STAGES

__all__ = ["RunWaits", "run_waits"]

_S: Final = 1e-9
_UNKNOWN: Final = "other"  # a stage that a later headway wrote

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RunWaits:
    """S steps of R ranks; times in seconds."""

    ranks: list[RankFile]
    """R of them, by rank."""
    steps: NDArray[np.int64]
    """(S, 2): epoch and number."""
    asked: Seconds
    """(R, S): when it was asked for, by each machine's own clock."""
    consumer: Seconds
    """(R, S): the consumer's own time before it asked."""
    waits: dict[str, Seconds]
    """Stage → (R, S)."""
    waited: Seconds
    """(R, S)"""

    @property
    def wall(self) -> Seconds:
        """(R,): what the steps took each rank."""
        return np.asarray(self.consumer.sum(axis=1) + self.waited.sum(axis=1))

    @property
    def steady(self) -> Seconds:
        """(R, S): the waits without those for threads and processes to start and end, which come once an epoch."""
        once = [self.waits[stage] for stage in ("start", "end") if stage in self.waits]
        return np.asarray(self.waited - sum(once)) if once else self.waited

    @property
    def nodes(self) -> NDArray[np.int64]:
        """(R,)"""
        return np.array([int(each.header.get("node", 0)) for each in self.ranks], np.int64)


def run_waits(ranks: Sequence[RankFile], *, last: int | None = None) -> RunWaits:
    """Return the steps that all `ranks` (of one loader) have written, the last `last` of them.

    Raises:
        UsageError: there are none.
    """
    tables = [_table(each) for each in ranks]
    common = set(tables[0])
    for table in tables[1:]:
        common &= set(table)
    chosen = sorted(common)[-last if last else None :]
    if not chosen:
        raise UsageError(
            "the ranks' ledgers have no step in common: the run has just begun, or files of several runs are mixed; give each "
            "run a directory of its own"
        )
    asked, consumer, waited = np.zeros((3, len(tables), len(chosen)))
    waits: dict[str, Seconds] = {}
    for rank, table in enumerate(tables):
        for at, key in enumerate(chosen):
            asked[rank, at], consumer[rank, at], waited[rank, at], by_stage = table[key]
            for stage, ns in by_stage:
                if stage not in waits:
                    waits[stage] = np.zeros_like(consumer)
                waits[stage][rank, at] += ns
    in_s = {stage: ns * _S for stage, ns in waits.items()}
    return RunWaits(list(ranks), np.array(chosen, np.int64), asked * _S, consumer * _S, in_s, waited * _S)


_Entry = tuple[int, int, int, list[tuple[str, int]]]


def _table(each: RankFile) -> dict[tuple[int, int], _Entry]:
    """Return a rank's entries by (epoch, number); a step taken again (after a resume) counts as it was taken last."""
    found: dict[tuple[int, int], _Entry] = {}
    for line in each.lines:
        asked, consumer, waited, waits = (line.get(key) for key in ("asked_ns", "consumer_ns", "waited_ns", "waits_ns"))
        epoch, first = line.get("epoch"), line.get("first")
        if not isinstance(epoch, int) or not isinstance(first, int) or not isinstance(waits, dict):
            continue  # a line without steps
        if not _whole(asked, consumer, waited, *waits.values()):
            continue  # of nobody's making
        assert isinstance(asked, list)
        assert isinstance(consumer, list)
        assert isinstance(waited, list)
        columns = [(stage if stage in STAGES else _UNKNOWN, column) for stage, column in waits.items()]
        for at in range(len(waited)):
            by_stage = [(stage, column[at]) for stage, column in columns if column[at]]
            found[epoch, first + at] = (asked[at], consumer[at], waited[at], by_stage)
    return found


def _whole(*columns: Any) -> bool:  # Any: JSON
    """Whether these are columns of non-negative whole numbers, all of one length."""
    lists = [column for column in columns if isinstance(column, list)]
    return (
        len(lists) == len(columns)
        and len({len(column) for column in lists}) == 1
        and all(isinstance(value, int) and 0 <= value < 1 << 62 for column in lists for value in column)
    )
