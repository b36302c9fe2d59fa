"""Items drawn with given weights, with replacement: rare classes often, common ones seldom.

Position m of the epoch is one draw keyed (seed, epoch, m); a change of the batch size goes on at the next m. Which item comes
is looked up in an integer cumulative table (`weights`), so every machine draws the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..formats.errors import SetError, UsageError
from .draws import below, key
from .sampler import Json, Planned, ViewInfo
from .sequential import stream
from .slots import Cut, Integers
from .weights import WeightTable

__all__ = ["WeightJournal", "Weighted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """Items drawn with replacement, each in proportion to its weight.

    >>> Weighted(table=WeightTable.of([1, 0, 3]), epoch_items=1000).drop_last
    False
    """

    table: WeightTable
    """One weight per item of the view."""
    changes: tuple[tuple[int, WeightTable], ...] = ()
    """(first epoch, table), ascending: tables that take over from later epochs on. `WeightJournal` keeps them on disk."""
    epoch_items: int | None = None
    """Draws an epoch; None: the number of items of the view."""
    drop_last: bool = False
    """Leave out an incomplete last batch instead of padding it."""

    kind: ClassVar[str] = "weighted"

    def __post_init__(self) -> None:
        if self.epoch_items is not None and self.epoch_items < 1:
            raise UsageError(f"cannot draw epochs of epoch_items={self.epoch_items}: expected 1 or more, or None")
        epochs = [0, *(epoch for epoch, _ in self.changes)]
        if any(later <= earlier for earlier, later in pairwise(epochs)):
            raise UsageError(f"cannot change weights at epochs {epochs[1:]}: expected them to ascend from 1 on")

    def table_of(self, epoch: int) -> WeightTable:
        """Return the table that holds in an epoch."""
        return [self.table, *(table for first, table in self.changes if first <= epoch)][-1]

    def describe(self, view: ViewInfo, *, epoch: int) -> dict[str, Json]:
        """Return every parameter that the order depends on."""
        return {
            "kind": self.kind,
            "weights": self.table_of(epoch).digest,
            "epoch_items": self.epoch_items or view.items,
            "drop_last": self.drop_last,
        }

    def order(self, view: ViewInfo, *, seed: int, epoch: int, batch_size: int) -> WeightedOrder:
        """Return the order of one epoch."""
        table = self.table_of(epoch)
        if len(table.cumulative) != view.items:
            raise UsageError(
                f"cannot draw from view {view.view_id!r}: it has {view.items} items, the weight table {len(table.cumulative)}; "
                "make the table for this view"
            )
        return WeightedOrder(self.epoch_items or view.items, table, seed, epoch)


@dataclass(frozen=True, slots=True)
class WeightedOrder:
    """Position m holds one draw."""

    items: int
    table: WeightTable
    seed: int
    epoch: int

    def at(self, chain: Sequence[Cut], which: int, step: Integers, slot: Integers) -> Planned:
        position, valid = stream(chain[which], step, slot)
        drawn = below(key(self.seed, self.epoch, position, 0, "weighted"), self.table.total)
        items = np.searchsorted(self.table.cumulative, drawn, side="right").astype(np.int64)
        return replace(Planned.of(items, slot, valid), occurrence=position)


class WeightJournal:
    """A folder of weight tables and the epochs from which they hold: what makes changing weights resumable and auditable.

    Only the coordinator of a job appends; ranks read. A table is named by its digest, and a line of `journal.jsonl` says from
    which epoch it holds. Lines are only ever added, each for a later epoch than the last.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._path = self.directory / "journal.jsonl"

    def append(self, epoch: int, table: WeightTable) -> None:
        """Record that `table` holds from `epoch` on; the first one recorded must be for epoch 0."""
        lines = self._lines()
        expected = lines[-1][0] + 1 if lines else 0
        if epoch < expected or (not lines and epoch):
            raise UsageError(f"cannot journal weights from epoch {epoch} in {str(self._path)!r}: expected epoch {expected}")
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"{table.digest[:16]}.npy"
        table.save(self.directory / name)
        line = json.dumps({"epoch": epoch, "table": name, "digest": table.digest}) + "\n"
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def sampler(self, *, epoch_items: int | None = None, drop_last: bool = False) -> Weighted:
        """Return the sampler of all tables journaled so far."""
        lines = self._lines()
        if not lines:
            raise SetError(f"cannot sample from {str(self._path)!r}: it holds no weights; append a table for epoch 0")
        tables = [(epoch, self._table(name, digest)) for epoch, name, digest in lines]
        return Weighted(table=tables[0][1], changes=tuple(tables[1:]), epoch_items=epoch_items, drop_last=drop_last)

    def _table(self, name: str, digest: str) -> WeightTable:
        table = WeightTable.open(self.directory / Path(name).name)
        if table.digest != digest:
            raise SetError(
                f"cannot sample from weight table {name!r}: its SHA-256 is {table.digest}, the journal says {digest}; "
                "restore the file"
            )
        return table

    def _lines(self) -> list[tuple[int, str, str]]:
        if not self._path.exists():
            return []
        lines = []
        for text in self._path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
                lines.append((int(line["epoch"]), str(line["table"]), str(line["digest"])))
            except (ValueError, KeyError, TypeError) as error:
                raise SetError(f"cannot read {str(self._path)!r}: found {text[:80]!r}, expected epoch, table, digest") from error
        return lines
