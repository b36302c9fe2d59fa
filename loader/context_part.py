"""The part of a batch that one context-parallel rank works on: its frames, its cameras or its points, by declaration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch

from ..formats import UsageError
from .batch import Batch
from .topology import Peers

__all__ = ["Axis", "context_part"]

Axis = Literal["frames", "cameras", "points"]

_WHOLE = ("columns", "offsets", "sensors")


def context_part(batch: Batch, peers: Peers, axes: Mapping[str, Axis]) -> Batch:
    """Return the batch with the entries named in `axes` cut to the part of context rank `peers.rank`; all others are shared.

    "frames" cuts axis T, "cameras" axis N of an image group: both must divide evenly, since peers compute in step. "points" cuts
    each sweep of a points entry into runs of points whose lengths differ by at most one. The parts of all peers, end to end,
    are the entry. Tensors of the parts are views where torch can make one.

    >>> batch = Batch(radar={"points": torch.arange(12.0).reshape(6, 2), "offsets": torch.tensor([0, 4, 6])})
    >>> context_part(batch, Peers(rank=1, size=2), {"radar": "points"})["radar"]["points"].tolist()
    [[4.0, 5.0], [6.0, 7.0], [10.0, 11.0]]
    """
    part = Batch(batch)
    for name, axis in axes.items():
        if axis not in get_args(Axis):
            raise UsageError(f"context_part: axis {axis!r} of {name!r} is none of {', '.join(get_args(Axis))}")
        if not isinstance(batch.get(name), dict):
            raise UsageError(f"context_part: the batch has no entry {name!r} to cut; it has {sorted(batch)}")
        part[name] = _points(name, batch[name], peers) if axis == "points" else _along(name, batch[name], peers, axis)
    return part


def _along(name: str, entry: dict[str, Any], peers: Peers, axis: Axis) -> dict[str, Any]:  # Any: see Batch
    if "offsets" in entry:
        raise UsageError(f"context_part: {name!r} has its points end to end; cut it by 'points', or open it with padding")
    dim = 1 if axis == "frames" else 2
    if axis == "cameras" and "image" not in entry:
        raise UsageError(f"context_part: {name!r} is no image group, and has no axis of cameras")
    length = entry["mask"].shape[dim]
    if length % peers.size:
        raise UsageError(
            f"context_part: {name!r} has {length} {axis}, which {peers.size} context ranks cannot share evenly; "
            "choose a window or cameras that divide"
        )
    share = length // peers.size
    first = peers.rank * share
    cut: dict[str, Any] = {}  # Any: see Batch
    for key, value in entry.items():
        if isinstance(value, torch.Tensor):
            cut[key] = value.narrow(dim, first, share)
        elif key == "sensors":
            cut[key] = value[first : first + share] if axis == "cameras" else value
        elif isinstance(value, list) and key not in _WHOLE:
            cut[key] = [times[first : first + share] for times in value]
        else:
            cut[key] = value
    return cut


def _points(name: str, entry: dict[str, Any], peers: Peers) -> dict[str, Any]:  # Any: see Batch
    if "offsets" not in entry:
        raise UsageError(f"context_part: {name!r} is no points entry with offsets")
    offsets: torch.Tensor = entry["offsets"]
    counts = offsets.diff()
    first = offsets[:-1] + counts * peers.rank // peers.size
    last = offsets[:-1] + counts * (peers.rank + 1) // peers.size
    chosen = torch.cat([torch.arange(int(low), int(high)) for low, high in zip(first, last, strict=True)])
    chosen = chosen.to(entry["points"].device)
    kept = torch.cat([offsets.new_zeros(1), (last - first).cumsum(0)])
    cut = {**entry, "points": entry["points"][chosen], "offsets": kept}
    if "fields" in entry:
        cut["fields"] = {key: values[chosen] for key, values in entry["fields"].items()}
    return cut
