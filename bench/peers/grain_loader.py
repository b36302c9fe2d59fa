"""Grain: an ArrayRecord file, one record a sample, read and prepared by its threads or processes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .contract import Peer, Resumable, Run, Setting
from .samples import BATCH, Stored, collate, prepare

__all__ = ["PEER"]


def _encode(sample: dict[str, Any]) -> bytes:
    """Write a sample as names, types and shapes in JSON, and the arrays' bytes behind it."""
    arrays = {
        name: np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value) for name, value in sample.items()
    }
    head = json.dumps([[name, value.dtype.str, value.shape] for name, value in arrays.items()]).encode()
    return b"".join([struct.pack("<I", len(head)), head, *(value.tobytes() for value in arrays.values())])


class _Decode:
    def __init__(self, workload: str) -> None:
        self.work = prepare(workload)

    def __call__(self, record: bytes) -> Any:
        (size,) = struct.unpack_from("<I", record)
        place, sample = 4 + size, {}
        for name, dtype, shape in json.loads(record[4:place]):
            value = np.frombuffer(record, dtype, math.prod(shape), place).reshape(shape)
            place += value.nbytes
            sample[name] = value.tobytes() if name.startswith("cam") else value
        return self.work(sample)


def _collate(samples: Any) -> Any:
    return {name: value.numpy() for name, value in collate(samples).items()}


def _pack(run: Run) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    run.packed.mkdir(parents=True, exist_ok=True)
    sink = ArrayRecordWriter(str(run.packed / "data.array_record"), "group_size:1")
    stored = Stored(run.data)
    for index in range(len(stored)):
        sink.write(_encode(stored[index]))
    sink.close()


def _batches(run: Run, workers: int, threads: int) -> Any:
    import grain

    source = grain.sources.ArrayRecordDataSource(str(run.packed / "data.array_record"))
    samples = grain.MapDataset.source(source).shuffle(seed=1).map(_Decode(run.workload)).repeat()
    cut: dict[str, Any] = {"batch_size": BATCH[run.workload], "drop_remainder": True, "batch_fn": _collate}
    if run.workload == "W3":  # going to a thread costs more than such a small record does: whole batches go
        return samples.batch(**cut).to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads))
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=16 if run.workload == "W1" else 128)
    batches = samples.to_iter_dataset(options).batch(**cut)
    if workers:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2))
    return batches


def _open(run: Run, *, workers: int, threads: int) -> Callable[[], Iterator[Any]]:
    import torch

    batches = _batches(run, workers, threads)
    return lambda: ({name: torch.from_numpy(value) for name, value in batch.items()} for batch in batches)


def _resumable(run: Run) -> Resumable:
    iterator = iter(_batches(run, 0, 2))
    return Resumable(lambda: iterator, iterator.get_state, iterator.set_state)


def _settings(workload: str) -> list[Setting]:
    tried = [(0, 2), (0, 4)] + ([(2, 1), (3, 1)] if workload in ("W1", "W2") else [])
    return [{"workers": workers, "threads": threads} for workers, threads in tried]


PEER = Peer(
    name="grain",
    requirements=("grain==0.2.18", "array_record==0.8.6"),
    settings=_settings,
    pack=_pack,
    open=_open,
    resumable=_resumable,
)
