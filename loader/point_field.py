"""Points as one packed batch field: all sweeps end to end, [ΣN, C], with the offsets where each begins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import CorruptShard, DecodeError
from ..formats.points import count_points, decode_points, decode_points_into
from .column_field import gather_columns, window_entry
from .draft import Draft, Prepared, Task
from .payloads import PayloadReader

__all__ = ["PointField", "count_all"]

# What a float32 holds exactly, and coordinates, whose rounding (2⁻²⁴ of the value) is far below any sensor's noise.
_AS_FLOAT32: Final = frozenset(("bool", "int8", "uint8", "int16", "uint16", "float16", "float32", "float64"))


class PointField:
    """Fills batch[key] for a points sensor.

    "points" float32 (ΣN, C) holds the scalar fields that fit float32, named by "columns"; fields that do not (wide integers,
    vectors) lie beside it under "fields", each (ΣN, …) of its own dtype. Sweep t of sample b is rows
    offsets[b · T + t] to offsets[b · T + t + 1].
    """

    def __init__(self, key: str, reader: PayloadReader, *, window: str, place: int) -> None:
        self.key = key
        self._reader, self._window, self._place = reader, window, place
        fields = reader.sensor.fields
        self._columns = [field.name for field in fields if field.dtype in _AS_FLOAT32 and not field.shape]
        self._apart = [field for field in fields if field.name not in self._columns]
        record = reader.sensor.record_dtype
        self._is_copy = (
            reader.sensor.codec == "points-raw"
            and not self._apart
            and all(record[name] == np.dtype("<f4") for name in record.names or ())
        )

    def prepare(self, draft: Draft) -> Prepared:
        """Count the points of every sweep from lengths and headers, unread otherwise."""
        rows = draft.windows[self._window].rows[..., self._place]
        counts = count_all(self._reader, rows, draft)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        total = int(offsets[-1])
        sizes = [total * len(self._columns) * 4, *(total * field.width for field in self._apart)]
        return Prepared(sizes=sizes, fill=partial(self._fill, draft, rows, offsets))

    def _fill(
        self, draft: Draft, rows: NDArray[np.int64], offsets: NDArray[np.int64], memory: Sequence[NDArray[np.uint8]]
    ) -> list[Task]:
        total = int(offsets[-1])
        points = memory[0].view(np.float32).reshape(total, len(self._columns))
        apart = {
            field.name: part.view(field.numpy_dtype).reshape(total, *field.shape)
            for field, part in zip(self._apart, memory[1:], strict=True)
        }
        draft.entries[self.key] = entry = {
            "points": points,
            "offsets": offsets,
            "columns": list(self._columns),
            "coordinates": self._reader.sensor.frame,
            **window_entry(draft.windows[self._window], self._place),
        }
        if apart:
            entry["fields"] = apart
        tasks = [Task(partial(self._gather, rows, entry), f"columns of {self.key!r}")]
        for place in np.flatnonzero(rows.ravel() >= 0).tolist():
            row, rows_out = int(rows.ravel()[place]), slice(int(offsets[place]), int(offsets[place + 1]))
            target = {name: values[rows_out] for name, values in apart.items()}
            run = partial(self._decode, draft, place // rows.shape[1], row, points[rows_out], target)
            tasks.append(Task(run, f"points of {self._reader.sensor.name!r} row {row}"))
        return tasks

    def _gather(self, rows: NDArray[np.int64], entry: dict[str, Any]) -> None:  # Any: see Draft.entries
        entry.update(gather_columns(self._reader.timeline, self._reader.sensor.columns, rows))

    def _decode(
        self, draft: Draft, sample: int, row: int, points: NDArray[np.float32], apart: dict[str, NDArray[Any]]
    ) -> None:  # Any: dtypes by schema
        reader = self._reader
        try:
            payload = reader.read(row)
            if self._is_copy:
                points.reshape(-1)[:] = np.frombuffer(payload, np.float32)
            elif not apart:
                decode_points_into(payload, reader.sensor, points, fields=self._columns)
            else:
                records = decode_points(payload, reader.sensor)
                for k, name in enumerate(self._columns):
                    points[:, k] = records[name]
                for name, target in apart.items():
                    target[:] = records[name]
        except CorruptShard as error:
            draft.fail(sample, error)
        except DecodeError as error:
            draft.fail(sample, reader.undecodable(row, str(error)))


def count_all(reader: PayloadReader, rows: NDArray[np.int64], draft: Draft) -> NDArray[np.int64]:
    """Return the points of the sweeps at `rows` (B, T), flat, from lengths and headers; 0 where there is none or it is bad."""
    flat = rows.ravel()
    counts = np.zeros(rows.size, np.int64)
    there = np.flatnonzero(flat >= 0)
    payloads, _ = reader.locate(flat[there])
    for place, payload in zip(there.tolist(), payloads, strict=True):
        try:
            counts[place] = count_points(payload, reader.sensor)
        except DecodeError as error:
            draft.fail(place // rows.shape[1], reader.undecodable(int(flat[place]), str(error)))
    return counts
