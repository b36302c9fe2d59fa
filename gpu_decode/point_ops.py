"""Choosing and ordering points on the device: range filter, dropout, shuffle; packed in, packed out, sweep by sweep.

Draws are keyed by sample, sweep and the point's number within its sweep, so that neither the other samples of a batch nor the
device change them. Applied in the order of the policy, after the scene was moved: ranges are of augmented coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..formats import UsageError
from . import tensor_draws
from .geometry import point_samples

__all__ = ["DropPoints", "FilterRange", "PointOp", "ShufflePoints"]

Entry = dict[str, Any]  # Any: one field of a batch, see loader.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRange:
    """Keep what lies inside a box: points, and table rows by their centres. The box is given in the points' own frame."""

    low: tuple[float, float, float] = (-51.2, -51.2, -5.0)
    """Metres; kept from here on."""
    high: tuple[float, float, float] = (51.2, 51.2, 3.0)
    """Metres; kept below."""
    boxes: bool = True
    """Also leave out boxes whose centre lies outside in x or y."""
    purpose: str = "filter-range"

    def __post_init__(self) -> None:
        if len(self.low) != 3 or len(self.high) != 3 or not all(a < b for a, b in zip(self.low, self.high, strict=True)):
            raise UsageError(f"FilterRange: low must lie below high in x, y and z, found {self.low!r} and {self.high!r}")

    def points(self, entry: Entry, keys: torch.Tensor) -> Entry:
        """Return the points field with only the points inside."""
        axes = [entry["columns"].index(axis) for axis in "xyz"]
        return _choose(entry, _rows_inside(entry["points"], axes, self.low, self.high))

    def table(self, entry: Entry) -> Entry:
        """Return the table field with only the rows inside, moved up; what then pads it is zero."""
        if not self.boxes:
            return entry
        centre, rows = entry["centre"], entry["centre"].shape[2]
        there = torch.arange(rows, device=centre.device) < entry["count"][..., None]
        for axis in (0, 1):
            there = there & (centre[..., axis] >= self.low[axis]) & (centre[..., axis] < self.high[axis])
        # A stable sort moves the kept rows up and leaves their order.
        order = torch.argsort((~there).to(torch.int8), dim=-1, stable=True)
        count = there.sum(-1)
        keep = torch.arange(rows, device=centre.device) < count[..., None]
        kept = dict(entry)
        for name, value in entry.items():
            if name == "count":
                kept[name] = count
            elif isinstance(value, torch.Tensor) and value.shape[:3] == there.shape and value.dim() >= 3 and name not in _POSES:
                shape = (*there.shape, *(1,) * (value.dim() - 3))
                moved = torch.take_along_dim(value, order.reshape(shape).expand(*there.shape, *value.shape[3:]), 2)
                kept[name] = torch.where(keep.reshape(shape), moved, torch.zeros((), dtype=value.dtype, device=value.device))
            elif isinstance(value, list):
                kept[name] = [
                    [
                        [text[row] for row in rows_[: int(number)]]
                        for text, rows_, number in zip(texts, orders, counts, strict=True)
                    ]
                    for texts, orders, counts in zip(value, order.tolist(), count.tolist(), strict=True)
                ]
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPoints:
    """Leave out a random share of the points."""

    share: float = 0.1
    """Probability of each point to be left out."""
    purpose: str = "drop-points"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"DropPoints: share must be a probability from 0 to 1, found {self.share!r}")

    def points(self, entry: Entry, keys: torch.Tensor) -> Entry:
        """Return the points field without the dropped points."""
        draws, _ = _point_draws(entry, keys)
        return _choose(entry, torch.nonzero(tensor_draws.uniform(draws) >= self.share)[:, 0])

    def table(self, entry: Entry) -> Entry:
        """Return the table as it is."""
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ShufflePoints:
    """Put the points of each sweep into a random order."""

    purpose: str = "shuffle-points"

    def points(self, entry: Entry, keys: torch.Tensor) -> Entry:
        """Return the points field in another order."""
        draws, sweep = _point_draws(entry, keys)
        # By draw first, then by sweep without disturbing that order: both sorts are stable, so the device does not matter.
        by_draw = torch.argsort(draws, stable=True)
        return _choose(entry, by_draw[torch.argsort(sweep[by_draw], stable=True)], same_counts=True)

    def table(self, entry: Entry) -> Entry:
        """Return the table as it is."""
        return entry


PointOp = FilterRange | DropPoints | ShufflePoints

_POSES = frozenset(("sensor_to_ego", "ego_to_world", "stamp", "sync_error", "mask"))


def _point_draws(entry: Entry, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a draw and the sweep of each point; `keys` (B,) are the samples'."""
    sweep, sample = point_samples(entry, len(keys))
    offsets: torch.Tensor = entry["offsets"]
    length = (len(offsets) - 1) // len(keys)
    number = torch.arange(len(sweep), device=sweep.device) - offsets[sweep]
    return tensor_draws.fold(tensor_draws.fold(keys[sample], sweep % length), number), sweep


def _rows_inside(points: torch.Tensor, axes: Sequence[int], low: Sequence[float], high: Sequence[float]) -> torch.Tensor:
    """Return the rows of points (N, C) whose columns `axes` lie from `low` to below `high`, ascending."""
    limits = list(zip(axes, low, high, strict=True))
    if points.device.type == "cpu":  # numpy takes less than half of torch's time for both the comparisons and the search
        rows = points.numpy()
        there = np.ones(len(rows), np.bool_)
        for axis, begin, end in limits:
            along = np.ascontiguousarray(rows[:, axis])
            there &= along >= begin
            there &= along < end
        return torch.from_numpy(np.flatnonzero(there))
    inside = torch.ones(len(points), dtype=torch.bool, device=points.device)
    for axis, begin, end in limits:
        inside &= (points[:, axis] >= begin) & (points[:, axis] < end)
    return torch.nonzero(inside)[:, 0]


def _choose(entry: Entry, rows: torch.Tensor, *, same_counts: bool = False) -> Entry:
    """Return the field with the packed `rows` only: ascending, or (`same_counts`) the points of each sweep in another order."""
    chosen = {**entry, "points": entry["points"].index_select(0, rows)}  # a third of the time that indexing takes
    if "fields" in entry:
        chosen["fields"] = {name: value.index_select(0, rows) for name, value in entry["fields"].items()}
    if not same_counts:
        chosen["offsets"] = torch.searchsorted(rows, entry["offsets"])
    return chosen
