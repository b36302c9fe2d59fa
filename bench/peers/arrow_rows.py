"""Samples as Arrow record batches, and Arrow rows as training batches: shared by the two peers that store Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from .samples import Batch, Sample, Stored, collate

__all__ = ["record_batches", "to_batch"]

_ROWS = {"W1": 20, "W2": 200, "W3": 10_000, "W4": 50}
_SHAPES = {"trajectory": (100, 6), "calibration": (-1, 25)}


def record_batches(stored: Stored) -> Iterator[pa.RecordBatch]:
    """Yield a workload as record batches: bytes as binary, fixed arrays as fixed-size lists, numbers as they are."""
    step = _ROWS[stored.name]
    for start in range(0, len(stored), step):
        samples = [stored[index] for index in range(start, min(len(stored), start + step))]
        columns = {name: _column(name, [sample[name] for sample in samples]) for name in samples[0]}
        yield pa.record_batch(list(columns.values()), names=list(columns))


def to_batch(workload: str, table: pa.Table, work: Callable[[Sample], Sample]) -> Batch:
    """Turn the rows of one batch into tensors; small fixed arrays without a Python object a row where that suffices."""
    import torch

    fixed = {
        name: table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(table.num_rows, *shape)
        for name, shape in _SHAPES.items()
        if name in table.column_names
    }
    if workload == "W3":
        numbers = {name: torch.from_numpy(table[name].to_numpy().copy()) for name in ("speed", "stamp", "command")}
        return {"trajectory": torch.from_numpy(fixed["trajectory"].copy()), **numbers}
    rows = []
    for place in range(table.num_rows):
        row: Sample = {name: values[place] for name, values in fixed.items()}
        for name in table.column_names:
            if name.startswith("cam"):
                row[name] = bytes(table[name][place].as_buffer())
            elif name in ("lidar", "boxes"):
                row[name] = np.frombuffer(table[name][place].as_buffer(), np.float32)
            elif name not in fixed:
                row[name] = table[name][place].as_py()
        rows.append(work(row))
    return collate(rows)


def _column(name: str, values: list[Any]) -> pa.Array:
    first = values[0]
    if isinstance(first, bytes):
        return pa.array(values, pa.binary())
    if name in ("lidar", "boxes"):
        return pa.array([np.ascontiguousarray(value, np.float32).tobytes() for value in values], pa.binary())
    if isinstance(first, np.ndarray):
        flat = pa.array(np.ascontiguousarray(np.stack(values), np.float32).ravel())
        return pa.FixedSizeListArray.from_arrays(flat, first.size)
    return pa.array(np.asarray(values, np.float32 if isinstance(first, float) else np.int64))
