"""What a step hands over: a dict of tensors in a documented structure, and the state that resumes after it.

batch["camera"]        one entry per image group, by its name:
    "image"            [B, T, N, 3, H, W] (or H, W, 3) of the asked dtype
    "intrinsics"       float64 [B, T, N, 3, 3], for exactly these pixels; "affine": source px → these pixels
    "sensor_to_ego", "ego_to_world"   float64 [B, T, N, 4, 4]; further columns all its cameras share
    "stamp", "sync_error"             int64 [B, T, N], ns; "mask" bool [B, T, N]: an image is there and asked for
    "sensors"          the N names
batch["LIDAR_TOP"]     one entry per points sensor, by its (window's) name:
    "points"           float32 [ΣN, C], all sweeps end to end; "offsets" int64 [B·T + 1]: where each begins
    "coordinates"      "sensor", "ego" or "world": the frame of its coordinates, as the schema says
    "columns"          the C names; "fields": {name: tensor} for what float32 cannot hold
    "sensor_to_ego" …  its columns [B, T, …]; "stamp", "sync_error", "mask" [B, T]
batch["boxes"]         one entry per table: each field [B, T, M, …], zero-padded; "count" int64 [B, T]; text as lists;
                       "coordinates" as for points
batch["ego"]           one entry per timeline of columns: each column [B, T, …], poses as [B, T, 4, 4]
batch["trajectory"]    "pose" [B, T, 4, 4], "position" [B, T, 3], "yaw", "stamp", "mask" [B, T]
batch["id"], ["replaced"], ["slot"]   int64 [B]: planned item (−1 padding), item delivered instead (−1 none), global slot
batch["occurrence"], ["epoch"]        int64 [B]: which visit of the item, in which epoch; with the seed, what keys draws
batch["set"]           int32 [B], mixed datasets: which of them the item is from (−1 padding)
batch["is_first"]      bool [B], slot-sticky order: the slot's previous item is not the frame directly before
batch["motion"]        slot-sticky order: "pose" float64 [B, 4, 4], that frame's ego frame to this one's; "mask" [B]: known
batch["valid"]         bool [B]: False for padding and masked samples, which are zero-filled, counts 0
batch["stamp"], ["frame"]   int64 [B]: reference stamp, ns; number of the frame in its drive (−1 padding)
batch["drive"]         list of B names ("" padding)
batch["state"]         the JSON state from which a loader goes on after this batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

__all__ = ["Batch", "to_tensors"]


class Batch(dict[str, Any]):  # Any: tensors, lists of text and dicts of them, as the module docstring lists
    """One batch: a dict, so that it can be taken apart like one.

    Its big tensors lie in recycled memory. That memory is yours as long as you hold any view of it, and goes back when the
    last one dies; keeping batches is safe and costs `LoaderOptions.memory_bytes`.

    >>> batch = Batch(id=torch.tensor([3, 4]), drive=["a", "b"])
    >>> batch.to("cpu")["id"].tolist()
    [3, 4]
    """

    samples: int = 0
    """How many samples are valid, as a loader counted them when it made the batch."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return a batch whose tensors are on `device`; lists and the state are shared.

        Pinned tensors may be copied with `non_blocking`: their memory is torch's, which knows of copies under way.
        """
        return Batch(_map(dict(self), lambda tensor: tensor.to(device, non_blocking=non_blocking)))

    def pin_memory(self) -> Batch:
        """Return a copy whose tensors lie in page-locked memory of torch's own, safe for asynchronous copies."""
        return Batch(_map(dict(self), lambda tensor: tensor.pin_memory()))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return _nbytes(self)


def to_tensors(value: Any, bfloat16: frozenset[str] = frozenset(), key: str = "") -> Any:  # Any: nested, see Batch
    """Return nested dicts with numpy arrays turned into tensors over the same memory.

    Keys (dotted) in `bfloat16` hold the bits of bfloat16 numbers as uint16.
    """
    if isinstance(value, dict):
        if bfloat16:
            return {name: to_tensors(item, bfloat16, f"{key}.{name}" if key else name) for name, item in value.items()}
        found = {}
        for name, item in value.items():  # one loop and no call an array: this is most of what a batch of small records costs
            if isinstance(item, np.ndarray):
                # A broadcast or mapped array is copied: torch has no read-only tensors.
                found[name] = torch.from_numpy(item if item.flags.carray else item.copy())
            else:
                found[name] = to_tensors(item) if isinstance(item, dict) else item
        return found
    if not isinstance(value, np.ndarray):
        return value
    value = value if value.flags.carray else value.copy()
    return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16) if key in bfloat16 else torch.from_numpy(value)


def _nbytes(value: dict[str, Any]) -> int:  # Any: nested, see Batch
    total = 0
    for item in value.values():
        kind = type(item)
        if kind is torch.Tensor:  # to ask isinstance of what is no tensor costs more than all the rest
            total += item.nbytes
        elif kind is dict:
            total += _nbytes(item)
        elif kind is not list and isinstance(item, torch.Tensor):
            total += item.nbytes
    return total


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # Any: nested, see Batch
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: item if name == "state" else _map(item, change) for name, item in value.items()}
    return value
