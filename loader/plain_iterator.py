"""torch's own iterators over plain datasets, with each `next` counted, timed and watched; what they yield is torch's alone.

Both are torch's classes with hooks before and after, so that whatever knows torch's iterators knows these.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from .plain import PlainLoading, generator_of
from .watch import Wait

if TYPE_CHECKING:
    from .dataloader import DataLoader

__all__ = ["plain_iterator"]

_POLL_S: Final = 5.0  # torch's own: how often it looks whether its workers live
_DEEP: Final = 6  # nesting of a batch that is measured


def plain_iterator(loader: DataLoader, loading: PlainLoading) -> Any:  # Any: torch's are private
    """Return the iterator that torch would make for `loader`, followed by what `loading` counts and keeps."""
    if loader.num_workers:
        loader.check_worker_number_rationality()
    iterator = (_Workers if loader.num_workers else _InProcess)(loader, loading)
    loading.counted.begun()
    return iterator


class _Followed(_BaseDataLoaderIter):
    """What both kinds share."""

    def __init__(self, loader: DataLoader, loading: PlainLoading) -> None:
        self._loading, self._stats = loading, loading.counted
        self._generator = generator_of(loader)
        self._is_stream = isinstance(loader.dataset, IterableDataset)
        self._wait = Wait(f"a batch of {type(loader.dataset).__name__}", loading.stall_s)
        self._follow()
        super().__init__(loader)

    def _follow(self) -> None:
        assert self._loading.position is not None
        self._position, self._skip = self._loading.position, self._loading.position.skip
        self._index: Any = None  # Any: what the sampler yields
        self._taken = 0
        self._stats.begin()

    def _next_index(self) -> Any:  # Any: what the sampler yields
        while self._skip:
            super()._next_index()  # type: ignore[no-untyped-call]  # torch's
            self._skip -= 1
            self._passed_over()
        self._index = super()._next_index()  # type: ignore[no-untyped-call]  # torch's
        self._taken += 1
        return self._index

    def _passed_over(self) -> None:
        """One batch was left out."""

    def _ready(self) -> int:
        return 0

    def _consumed(self) -> int:
        """Batches that torch will not yield any more."""
        return self._taken

    def pass_over(self, batches: int) -> None:
        """Load and drop what was delivered before the state was saved."""
        try:
            for _ in range(batches):
                super().__next__()
        except StopIteration:
            return

    def __next__(self) -> Any:  # Any: whatever the dataset yields
        self._stats.asked(self._ready())
        self._wait.begin()
        before = self._consumed()
        try:
            batch = super().__next__()
        except StopIteration:
            self._position.end(self._generator)
            self._stats.ended()
            raise
        except BaseException:
            # Where torch goes on behind the batch that failed, so does whoever resumes.
            self._position.delivered += not self._is_stream and self._consumed() > before
            raise
        finally:
            self._wait.end()
        self._position.delivered += 1
        self._stats.delivered(*_measure(batch))
        return batch


class _InProcess(_Followed, _SingleProcessDataLoaderIter):
    """The dataset is read by whoever asks; a thread watches, as nobody else is there to."""

    def __init__(self, loader: DataLoader, loading: PlainLoading) -> None:
        super().__init__(loader, loading)
        weakref.finalize(self, self._wait.close).atexit = False

    def __next__(self) -> Any:  # Any: whatever the dataset yields
        self._wait.watch()
        return super().__next__()

    def _next_index(self) -> Any:  # Any: what the sampler yields
        index = super()._next_index()
        self._wait.detail = f"items {index!r:.200}"
        return index


class _Workers(_Followed, _MultiProcessingDataLoaderIter):
    """torch's worker processes read it; torch looks after them every few seconds, and so does the watch."""

    def __init__(self, loader: DataLoader, loading: PlainLoading) -> None:
        self._sent: dict[int, Any] = {}  # Any: what the sampler yielded for the batches under way, by number
        super().__init__(loader, loading)

    def _reset(self, loader: DataLoader, first_iter: bool = False) -> None:
        if not first_iter:  # workers that stayed begin another epoch
            self._sent.clear()
            self._follow()
        super()._reset(loader, first_iter)  # torch's
        if not first_iter:
            self._stats.begun()

    def _passed_over(self) -> None:
        next(self._worker_queue_idx_cycle)  # a batch goes to the worker that would have had it

    def _try_put_index(self) -> None:
        number = self._send_idx
        super()._try_put_index()
        if self._send_idx > number:
            self._sent[number] = self._index

    def _try_get_data(self, timeout: float = _POLL_S) -> tuple[bool, Any]:  # Any: what a worker sent
        until = time.monotonic() + timeout
        while True:
            rest = until - time.monotonic()
            slice_s = max(0.0, min(rest, self._loading.stall_s / 4))
            found: tuple[bool, Any] = super()._try_get_data(slice_s)  # type: ignore[no-untyped-call]  # torch's
            if found[0]:
                return found
            is_last = time.monotonic() >= until
            self._wait.detail = self._awaited()
            self._wait.look(at_once=is_last and self._timeout > 0)  # torch raises now
            if is_last:
                return found

    def _awaited(self) -> str:
        number = self._rcvd_idx
        worker = self._task_info.get(number, (0,))[0]
        process = self._workers[worker]
        does = "runs" if process.is_alive() else f"ended with code {process.exitcode}"
        return f"items {self._sent.get(number)!r:.200} from worker {worker} (pid {process.pid}, {does})"

    def _consumed(self) -> int:
        return int(self._rcvd_idx)

    def _ready(self) -> int:
        for number in [number for number in self._sent if number not in self._task_info]:
            del self._sent[number]
        kept = sum(len(info) == 2 for info in self._task_info.values())
        try:
            return kept + int(self._data_queue.qsize())
        except NotImplementedError:  # macOS counts no queue between processes
            return kept


def _measure(batch: Any, deep: int = _DEEP) -> tuple[int, int]:  # Any: whatever the dataset yields
    """Return samples (length of the first tensor or array, else of the list; else 1) and bytes of tensors and arrays."""
    if isinstance(batch, torch.Tensor):
        return (batch.size(0) if batch.dim() else 1), batch.numel() * batch.element_size()
    if isinstance(batch, np.ndarray):
        return (len(batch) if batch.ndim else 1), batch.nbytes
    if not isinstance(batch, dict | list | tuple) or not batch or not deep:
        return 1, 0
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    found = [_measure(part, deep - 1) for part in parts]
    first = next((samples for samples, size in found if size), None)
    if first is None:
        first = found[0][0] if isinstance(batch, dict) else len(batch)
    return first, sum(size for _, size in found)
