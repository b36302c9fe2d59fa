"""Batches to the device without the training stream waiting: packed, pinned, on a side stream, one batch ahead.

A batch has a few big tensors and hundreds of small ones; the small ones travel as one copy. Host memory is pinned by torch's
allocator, which knows of copies under way. On the device every tensor is recorded on the stream that uses it, so that its memory
is not reused too early. On a CPU the same code runs without streams, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from ..formats import UsageError
from ..loader.batch import Batch

__all__ = ["DeviceBatches", "pack", "unpack"]

_ALIGN: Final = 64
# Below this a copy's fixed cost (a launch and a driver call) outweighs its bytes, and packing on the host pays.
SMALL_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a packed tensor lies."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(slots=True)
class Packed:
    """A batch whose small tensors are one: `tree` holds places where they were."""

    tree: Any  # Any: nested dicts of tensors, places and plain values, see loader.batch
    small: torch.Tensor
    """uint8, all small tensors, each aligned."""


def pack(batch: Batch, *, pin: bool = False, small_bytes: int = SMALL_BYTES) -> Packed:
    """Return the batch with all tensors of less than `small_bytes` laid into one, page-locked where asked."""
    chosen: list[tuple[_Place, torch.Tensor]] = []
    end = 0

    def place(tensor: torch.Tensor) -> Any:  # Any: a place or a tensor
        nonlocal end
        if tensor.device.type != "cpu":
            return tensor  # a decoder put it there
        if tensor.nbytes >= small_bytes:
            return tensor.pin_memory() if pin and not tensor.is_pinned() else tensor
        spot = _Place(end, tuple(tensor.shape), tensor.dtype)
        chosen.append((spot, tensor))
        end += -(-tensor.nbytes // _ALIGN) * _ALIGN
        return spot

    tree = _walk(dict(batch), torch.Tensor, place)
    small = torch.empty(end, dtype=torch.uint8, pin_memory=pin)
    for spot, tensor in chosen:
        if tensor.nbytes:
            small[spot.start : spot.start + tensor.nbytes] = tensor.contiguous().reshape(-1).view(torch.uint8)
    return Packed(tree, small)


def unpack(packed: Packed) -> Batch:
    """Return the batch, its small tensors as views of the one they travelled in."""

    def take(spot: _Place) -> torch.Tensor:
        count = 1
        for side in spot.shape:
            count *= side
        size = count * spot.dtype.itemsize
        return packed.small[spot.start : spot.start + size].view(spot.dtype).reshape(spot.shape)

    return Batch(_walk(packed.tree, _Place, take))


class DeviceBatches:
    """Iterates over batches on `device`, the next one already on its way while this one is used.

    The current stream waits for a batch's copies by an event, never the host. No further batch is sent while `bytes_ahead` or
    more wait to be handed out. Use it in the process that trains: a forked process cannot use CUDA, and is refused.

    >>> batches = [Batch(id=torch.tensor([at])) for at in range(3)]
    >>> [int(batch["id"]) for batch in DeviceBatches(batches, "cpu")]
    [0, 1, 2]
    """

    def __init__(
        self, batches: Iterable[Batch], device: torch.device | str, *, ahead: int = 1, bytes_ahead: int = 2 << 30
    ) -> None:
        if ahead < 0 or bytes_ahead < 1:
            raise UsageError(f"DeviceBatches: ahead must be 0 or more and bytes_ahead above 0, found {ahead} and {bytes_ahead}")
        self._batches, self._device = batches, torch.device(device)
        self._ahead, self._bytes_ahead = ahead, bytes_ahead

    def __iter__(self) -> Iterator[Batch]:
        lane = _lane(self._device)
        source = iter(self._batches)
        waiting: list[_Moved] = []
        held, ended = 0, False
        while True:
            while not ended and (not waiting or (len(waiting) <= self._ahead and held < self._bytes_ahead)):
                batch = next(source, None)
                if batch is None:
                    ended = True
                    break
                moved = lane.send(batch)
                waiting.append(moved)
                held += moved.nbytes
            if not waiting:
                return
            first = waiting.pop(0)
            held -= first.nbytes
            yield lane.receive(first)


@dataclass(slots=True)
class _Moved:
    """A batch on its way."""

    packed: Packed
    nbytes: int
    done: Any  # Any: torch.cuda.Event, or None on the CPU
    host: Any  # Any: the pinned batch, kept until its copies are done


class _CpuLane:
    """The same packing and order, without streams."""

    def send(self, batch: Batch) -> _Moved:
        """Pack the batch."""
        packed = pack(batch)
        return _Moved(packed, batch.nbytes, None, None)

    def receive(self, moved: _Moved) -> Batch:
        """Take it apart."""
        return unpack(moved.packed)


class _CudaLane:
    """Copies on a side stream; who receives makes its own stream wait."""

    def __init__(self, device: torch.device) -> None:
        # torch's own flag: nothing public says that CUDA was begun before this process was forked off.
        if torch.cuda._is_in_bad_fork():
            raise UsageError(
                "cannot move batches to a GPU in a forked process: CUDA does not survive a fork; start the process with "
                "'spawn', or move batches in the process that trains"
            )
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def send(self, batch: Batch) -> _Moved:
        """Start the copies."""
        host = pack(batch, pin=True)
        with torch.cuda.stream(self._stream):
            tree = _walk(host.tree, torch.Tensor, lambda tensor: tensor.to(self._device, non_blocking=True))
            small = host.small.to(self._device, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            done.record(self._stream)
        return _Moved(Packed(tree, small), batch.nbytes, done, host)

    def receive(self, moved: _Moved) -> Batch:
        """Make the current stream wait for the copies, and tell the allocator that it uses them."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(moved.done)
        moved.packed.small.record_stream(current)
        _walk(moved.packed.tree, torch.Tensor, lambda tensor: tensor.record_stream(current))
        return unpack(moved.packed)


def _lane(device: torch.device) -> _CpuLane | _CudaLane:
    if device.type == "cpu":
        return _CpuLane()
    if device.type == "cuda" and torch.cuda.is_available():
        return _CudaLane(device)
    raise UsageError(f"cannot move batches to {str(device)!r}: torch sees no such device; use 'cpu', or install a driver")


def _walk(value: Any, kind: type, change: Any) -> Any:  # Any: nested, see loader.batch; a function of one `kind`
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {name: item if name == "state" else _walk(item, kind, change) for name, item in value.items()}
    return value
