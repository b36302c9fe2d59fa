"""Tables, arrays and texts as batch fields: padded to the longest of the batch, with the counts that say how long each is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import Column, CorruptShard, DecodeError
from .column_field import gather_columns, window_ahead
from .draft import Draft, Prepared, Task
from .located import Ahead
from .payloads import PayloadReader
from .read_set import Resolved

__all__ = ["TableField"]

Decoded = dict[int, Any]  # Any: a payload by sensor kind; keyed by flat place of [B, T]


class TableField:
    """Fills batch[key] for a sensor whose payloads are small and vary in length.

    table: each field [B, T, M, …] and "count" [B, T]; text fields as lists of lists of str. array: "value" [B, T, M, …] and
    "count". text: "text", lists of str, None where absent. Columns of the timeline lie beside them.
    """

    def __init__(self, key: str, reader: PayloadReader, *, window: str, place: int) -> None:
        self.key = key
        self._reader, self._window, self._place = reader, window, place
        by_kind: dict[str, Callable[[tuple[int, int], Decoded], dict[str, Any]]]  # Any: see Draft.entries
        by_kind = {"table": self._table, "array": self._array, "text": self._text}
        self._lay_out = by_kind[reader.sensor.kind]

    def ahead(self, windows: Mapping[str, Resolved]) -> Ahead:
        """Return stamps and columns."""
        window = windows[self._window]
        columns = gather_columns(self._reader.timeline, self._reader.sensor.columns, window.rows[..., self._place])
        return {**window_ahead(window, self._place), **columns}

    def prepare(self, draft: Draft) -> Prepared:
        """Ask for no batch memory; lengths are known only after decoding."""
        return Prepared(fill=lambda _: self._fill(draft))

    def _fill(self, draft: Draft) -> list[Task]:
        window = draft.windows[self._window]
        entry: dict[str, Any] = dict(draft.ahead[self.key])  # Any: see Draft.entries
        draft.entries[self.key] = entry
        if self._reader.sensor.kind == "table":
            entry["coordinates"] = self._reader.sensor.frame
        rows = window.rows[..., self._place]
        return [Task(partial(self._read, draft, rows, entry), f"{self._reader.sensor.kind} {self.key!r}", stage="decompress")]

    def _read(self, draft: Draft, rows: NDArray[np.int64], entry: dict[str, Any]) -> None:  # Any: see Draft.entries
        decoded: Decoded = {}
        for place in np.flatnonzero(rows.ravel() >= 0).tolist():
            try:
                decoded[place] = self._reader.value(int(rows.ravel()[place]))
            except (CorruptShard, DecodeError) as error:
                draft.fail(place // rows.shape[1], error)
        entry.update(self._lay_out((rows.shape[0], rows.shape[1]), decoded))

    def _table(self, lead: tuple[int, int], decoded: Mapping[int, Any]) -> dict[str, Any]:
        fields = self._reader.sensor.fields
        counts = np.zeros(lead, np.int64)
        for place, table in decoded.items():
            counts.flat[place] = len(table[fields[0].name])
        laid_out: dict[str, Any] = {"count": counts}  # Any: see Draft.entries
        for field in fields:
            values = {place: table[field.name] for place, table in decoded.items()}
            if field.dtype == "str":
                laid_out[field.name] = _nested(lead, {place: list(texts) for place, texts in values.items()}, empty=list)
            else:
                laid_out[field.name] = _padded(lead, field, counts, values)
        return laid_out

    def _array(self, lead: tuple[int, int], decoded: Mapping[int, Any]) -> dict[str, Any]:
        counts = np.zeros(lead, np.int64)
        for place, value in decoded.items():
            counts.flat[place] = len(value)
        return {"count": counts, "value": _padded(lead, self._reader.sensor.fields[0], counts, decoded)}

    def _text(self, lead: tuple[int, int], decoded: Mapping[int, Any]) -> dict[str, Any]:
        return {"text": _nested(lead, decoded, empty=lambda: None)}


def _padded(
    lead: tuple[int, int], field: Column, counts: NDArray[np.int64], values: Mapping[int, Any]
) -> NDArray[Any]:  # Any: dtype by schema
    longest = int(counts.max(initial=0))
    padded = np.zeros((lead[0] * lead[1], longest, *field.shape), field.numpy_dtype)
    for place, value in values.items():
        padded[place, : len(value)] = value
    return padded.reshape(*lead, longest, *field.shape)


def _nested(lead: tuple[int, int], values: Mapping[int, Any], *, empty: Callable[[], Any]) -> list[list[Any]]:
    """Return B lists of T values."""
    batch, length = lead
    return [[values[b * length + t] if b * length + t in values else empty() for t in range(length)] for b in range(batch)]
