"""Load and decode once for a group of processes that need identical batches: one peer loads, the others receive.

Batches travel over the group's process group: a small JSON header, then each tensor's bytes, so that nothing received is run.
What ends the loading peer's loop, the end of the epoch or an error, ends that of its peers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.distributed as dist

from ..formats import UsageError, WorkerDied
from .batch import Batch
from .dataloader import DataLoader

__all__ = ["Shared"]

_BATCH, _END, _ERROR = 0, 1, 2
# What a header may take: shapes, names and texts of one batch are some KB; more is not one of ours.
_HEADER_LIMIT: Final = 64 << 20


class Shared:
    """A loader whose batches are made by one process of `group` and received by the others.

    Every process of the group makes the same loader (which costs nothing until it is iterated), wraps it, and iterates in step.
    With `device`, tensors are received there, as NCCL groups need it; the loading peer's are copied there as well. Positions,
    lengths and epochs are the loader's, on all peers.

    >>> shared = Shared(DataLoader(headway.open(drives_set), 6), group=None)  # no process group: it loads for itself
    >>> [len(batch["id"]) for batch in shared]
    [6, 6, 6]
    """

    def __init__(
        self,
        loader: DataLoader,
        *,
        group: dist.ProcessGroup | None,
        source: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self.loader, self._group = loader, group
        self._is_alone = group is None and not dist.is_initialized()
        self._rank = 0 if self._is_alone else dist.get_rank(group)
        size = 1 if self._is_alone else dist.get_world_size(group)
        if not 0 <= source < size:
            raise UsageError(f"Shared: source is a rank of the group, 0 to {size - 1}, found {source}")
        self._source = source
        self._global_source = source if group is None else dist.get_global_rank(group, source)
        self._device = torch.device("cpu" if device is None else device)
        self._is_alone = size == 1
        self._state: dict[str, Any] | None = None  # Any: JSON

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        if self._is_alone:
            return iter(self.loader)
        return self._load() if self._rank == self._source else self._receive()

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop begin epoch `epoch`; on all peers alike."""
        self.loader.set_epoch(epoch)
        self._state = None

    def state_dict(self) -> dict[str, Any]:  # Any: JSON
        """Return the position after the last batch that was handed over here."""
        return self.loader.state_dict() if self._state is None else dict(self._state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: JSON
        """Let the next loop go on after the batch that `state_dict` came with; on all peers alike."""
        self.loader.load_state_dict(state_dict)
        self._state = None

    def _load(self) -> Iterator[Batch]:
        batches = iter(self.loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                self._announce(_END, b"")
                return
            except Exception as error:
                self._announce(_ERROR, f"{type(error).__name__}: {error}".encode())
                raise
            tensors: list[torch.Tensor] = []
            header = json.dumps(_described(dict(batch), tensors)).encode()
            self._announce(_BATCH, header)
            moved = [tensor.to(self._device).contiguous() for tensor in tensors]
            for tensor in moved:
                self._broadcast(tensor)
            self._state = batch["state"]
            yield batch if self._device.type == "cpu" else Batch(_rebuilt(json.loads(header), iter(moved)))

    def _receive(self) -> Iterator[Batch]:
        while True:
            kind, size = self._told()
            if kind == _END:
                return
            header = torch.empty(size, dtype=torch.uint8, device=self._device)
            self._broadcast(header)
            text = bytes(header.cpu().numpy()).decode()
            if kind == _ERROR:
                raise WorkerDied(f"the peer that loads for this group (rank {self._source} of it) failed: {text}")
            described = json.loads(text)
            tensors = [torch.empty(shape, dtype=_dtype(name), device=self._device) for shape, name in _tensors(described)]
            for tensor in tensors:
                self._broadcast(tensor)
            batch = Batch(_rebuilt(described, iter(tensors)))
            self._state = batch["state"]
            yield batch

    def _announce(self, kind: int, header: bytes) -> None:
        self._broadcast(torch.tensor([kind, len(header)], device=self._device))
        if kind != _END:
            self._broadcast(torch.frombuffer(bytearray(header), dtype=torch.uint8).to(self._device))

    def _told(self) -> tuple[int, int]:
        told = torch.zeros(2, dtype=torch.int64, device=self._device)
        self._broadcast(told)
        kind, size = told.tolist()
        if kind not in (_BATCH, _END, _ERROR) or not 0 <= size <= _HEADER_LIMIT:
            raise UsageError(f"Shared: received kind {kind} with {size} bytes: the group's processes are not iterating in step")
        return kind, size

    def _broadcast(self, tensor: torch.Tensor) -> None:
        """Send or fill `tensor` as bytes: not all backends know all dtypes."""
        if tensor.numel():
            dist.broadcast(tensor.reshape(-1).view(torch.uint8), src=self._global_source, group=self._group)


def _described(value: Any, tensors: list[torch.Tensor]) -> Any:  # Any: nested, see Batch; JSON comes back
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"t": [list(value.shape), str(value.dtype).removeprefix("torch.")]}
    if isinstance(value, dict):
        return {"d": {name: _described(item, tensors) for name, item in value.items()}}
    return {"v": value}


def _tensors(described: Any) -> Iterator[tuple[list[int], str]]:  # Any: JSON of `_described`
    if "t" in described:
        yield described["t"][0], described["t"][1]
    for item in described.get("d", {}).values():
        yield from _tensors(item)


def _rebuilt(described: Any, tensors: Iterator[torch.Tensor]) -> Any:  # Any: JSON of `_described`; nested, see Batch
    if "t" in described:
        return next(tensors)
    if "d" in described:
        return {name: _rebuilt(item, tensors) for name, item in described["d"].items()}
    return described["v"]


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(
            f"Shared: received a tensor of dtype {name!r}, which this torch does not know; use one version on all peers"
        )
    return dtype
