"""Lance: a columnar dataset, random rows of a batch taken in one call; worker processes are spawned, as it needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, cast

from .contract import Peer, Run, Setting, workers
from .samples import Stored, prepare
from .torch_loader import torch_dataloader

__all__ = ["PEER"]

_FILE_ROWS = {"W1": 100, "W2": 1000, "W3": 50_000, "W4": 250}


class _Rows:
    """Opened anew in each worker process: a dataset handle does not travel."""

    def __init__(self, run: Run, count: int) -> None:
        self._path, self._workload, self._count, self._opened = str(run.packed), run.workload, count, cast(Any, None)

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, index: list[int]) -> Any:
        from .arrow_rows import to_batch

        if self._opened is None:
            import lance

            self._opened = lance.dataset(self._path)
            self._work = prepare(self._workload)
        return to_batch(self._workload, self._opened.take(index), self._work)


def _as_it_is(batch: Any) -> Any:
    return batch


def _pack(run: Run) -> None:
    import lance
    import pyarrow as pa

    from .arrow_rows import record_batches

    shutil.rmtree(run.packed, ignore_errors=True)
    batches = record_batches(Stored(run.data))
    first = next(batches)
    reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
    lance.write_dataset(reader, str(run.packed), max_rows_per_file=_FILE_ROWS[run.workload])


def _open(run: Run, *, workers: int) -> Callable[[], Iterator[Any]]:
    more = {"multiprocessing_context": "spawn"} if workers else {}
    rows = _Rows(run, len(Stored(run.data)))
    loader = torch_dataloader(rows, run.workload, workers, shuffle=True, collate_fn=_as_it_is, **more)
    return lambda: iter(loader)


def _settings(workload: str) -> list[Setting]:
    return workers(workload)


PEER = Peer(name="lance", requirements=("pylance==14.0.2",), settings=_settings, pack=_pack, open=_open)
