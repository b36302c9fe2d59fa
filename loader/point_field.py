"""Points as one packed batch field: all sweeps end to end, [ΣN, C], with the offsets where each begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import CorruptShard, DecodeError, HeadwayError, kernel
from ..formats.limits import DEFAULT_LIMITS
from ..formats.points import count_points, decode_points, decode_points_into
from ..formats.timeline import PayloadRefs
from .column_field import gather_columns, window_ahead
from .draft import Draft, Prepared, Task, Work
from .located import Ahead
from .payloads import PayloadReader
from .read_set import Resolved

__all__ = ["PointField", "count_all"]

# What a float32 holds exactly, and coordinates, whose rounding (2⁻²⁴ of the value) is far below any sensor's noise.
_AS_FLOAT32: Final = frozenset(("bool", "int8", "uint8", "int16", "uint16", "float16", "float32", "float64"))

_ROWS: Final = "\0rows"  # no column is called so: names have no control characters
_SLICE_S: Final = 1.0  # so that Ctrl-C is answered
_NO_TARGETS: Final = np.zeros(0, kernel.SPEC)
_NO_IMAGES: Final = kernel.image_jobs(0)


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
        self.is_copy = (
            reader.sensor.codec == "points-raw"
            and not self._apart
            and all(record[name] == np.dtype("<f4") for name in record.names or ())
        )
        """Whether payloads hold the very bytes of the batch."""

    def ahead(self, windows: Mapping[str, Resolved]) -> Ahead:
        """Return stamps, columns, and where the payloads lie."""
        window, reader = windows[self._window], self._reader
        rows = window.rows[..., self._place]
        columns = gather_columns(reader.timeline, reader.sensor.columns, rows)
        return {**window_ahead(window, self._place), **columns, _ROWS: np.ascontiguousarray(rows), **reader.ahead(rows)}

    def prepare(self, draft: Draft) -> Prepared:
        """Count the points of every sweep from lengths and headers, unread otherwise."""
        entry, refs = self._reader.split(draft.ahead[self.key])
        rows = entry.pop(_ROWS)
        counts = self._count(rows, refs, draft)
        offsets = np.zeros(rows.size + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        total = int(offsets[-1])
        sizes = [total * len(self._columns) * 4, *(total * field.width for field in self._apart)]
        return Prepared(sizes=sizes, fill=partial(self._fill, draft, entry, rows, refs, offsets))

    def _count(self, rows: NDArray[np.int64], refs: PayloadRefs, draft: Draft) -> NDArray[np.int64]:
        width = self._reader.sensor.record_dtype.itemsize
        if self.is_copy and not np.any(refs.length % width) and refs.length.max(initial=0) <= DEFAULT_LIMITS.payload_bytes:
            return refs.length // width
        return count_all(self._reader, rows, draft)

    def _fill(
        self,
        draft: Draft,
        entry: dict[str, Any],  # Any: see Draft.entries
        rows: NDArray[np.int64],
        refs: PayloadRefs,
        offsets: NDArray[np.int64],
        memory: Sequence[NDArray[np.uint8]],
    ) -> list[Task]:
        total = int(offsets[-1])
        points = memory[0].view(np.float32).reshape(total, len(self._columns))
        apart = {
            field.name: part.view(field.numpy_dtype).reshape(total, *field.shape)
            for field, part in zip(self._apart, memory[1:], strict=True)
        }
        draft.entries[self.key] = {
            "points": points,
            "offsets": offsets,
            "columns": list(self._columns),
            "coordinates": self._reader.sensor.frame,
            **entry,
        }
        if apart:
            draft.entries[self.key]["fields"] = apart
        there = np.flatnonzero(np.diff(offsets))
        if self.is_copy and kernel.available():
            if not len(there):
                return []
            work = _Copies(self._reader, draft, rows.ravel()[there], there // rows.shape[1])
            start = partial(work.start, refs.part(there), points, offsets[there])
            what = f"points of {self._reader.sensor.name!r}, {len(there)} payloads"
            return [Task(partial(_finished, start), what, stage="decompress", start=start)]
        tasks = []
        for place in there.tolist():
            row, rows_out = int(rows.ravel()[place]), slice(int(offsets[place]), int(offsets[place + 1]))
            target = {name: values[rows_out] for name, values in apart.items()}
            run = partial(self._decode, draft, place // rows.shape[1], row, points[rows_out], target)
            tasks.append(Task(run, f"points of {self._reader.sensor.name!r} row {row}", stage="decompress"))
        return tasks

    def _decode(
        self, draft: Draft, sample: int, row: int, points: NDArray[np.float32], apart: dict[str, NDArray[Any]]
    ) -> None:  # Any: dtypes by schema
        reader = self._reader
        try:
            payload = reader.read(row)
            if self.is_copy:
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


class _Copies:
    """All payloads of a batch on their way to their places, in one native call, hashes included."""

    def __init__(self, reader: PayloadReader, draft: Draft, rows: NDArray[np.int64], samples: NDArray[np.intp]) -> None:
        self._reader, self._draft, self._rows, self._samples = reader, draft, rows, samples

    def start(self, refs: PayloadRefs, points: NDArray[np.float32], first: NDArray[np.int64]) -> _Copies:
        """Begin: payload k goes to the rows of `points` from first[k] on."""
        jobs = kernel.copy_jobs(len(first))
        jobs["source"], kept = self._reader.addresses(refs)
        jobs["length"] = jobs["room"] = refs.length
        jobs["hash"], jobs["flags"] = refs.hash, kernel.CHECK_HASH
        jobs["out"] = kernel.address(points) + first * points.strides[0]
        self._step = kernel.submit(_NO_TARGETS, _NO_IMAGES, jobs, keep=(points, kept))
        return self

    def is_done(self) -> bool:
        """Tell whether nothing is under way any more."""
        return self._step.is_done()

    def wait(self, timeout_s: float) -> bool:
        """Return True when all is there and what is damaged is noted, False if `timeout_s` passes first."""
        if not self._step.wait(timeout_s, help=True):
            return False
        if self._step.status.any():
            for job in np.flatnonzero(self._step.status).tolist():
                self._draft.fail(int(self._samples[job]), self._why(int(self._rows[job]), self._step.message(job)))
        return True

    def _why(self, row: int, reason: str) -> HeadwayError:
        try:
            self._reader.read(row)
        except CorruptShard as error:
            return error
        return self._reader.undecodable(row, reason)


def _finished(start: Callable[[], Work]) -> None:
    work = start()
    while not work.wait(_SLICE_S):
        pass


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
