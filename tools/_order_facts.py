"""What one step of a plan means for each rank: items, drives, frames, the payloads they read and how many bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..formats import UsageError

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet
    from ..loader.plan import Plan
    from ..loader.view import View

__all__ = ["Reads", "SlotFacts", "parse_steps", "slot_facts", "window_facts"]

Int64 = NDArray[np.int64]


@dataclass(slots=True)
class SlotFacts:
    """What consecutive slots get at one step."""

    step: int
    first_slot: int
    items: Int64
    """Item numbers of the view, −1 for padding."""
    occurrence: Int64
    frames: Int64
    """Global frame numbers."""
    drives: list[str]
    """Name of each item's drive; empty for padding."""
    numbers: Int64
    """Frame number within the drive."""
    rows: dict[str, Int64]
    """By sensor: the rows read, each once."""
    sets: NDArray[np.int32] | None = None
    """Mixed sets only: which one each item is from."""
    is_first: NDArray[np.bool_] | None = None
    """Slot-sticky only: the slot begins anew."""


class Reads:
    """Counts payloads and bytes: as often as they are asked for, and each once."""

    def __init__(self, packed: PackedSet) -> None:
        self._packed = packed
        self._seen: dict[str, list[Int64]] = {}
        self.payloads = 0
        self.bytes = 0
        """Bytes read without any cache between the counted groups of slots."""

    def add(self, rows: Mapping[str, Int64]) -> tuple[int, int]:
        """Count one group's rows and return its payloads and bytes."""
        payloads = size = 0
        for sensor, found in rows.items():
            if self._packed.schema.sensor(sensor).codec is None or not len(found):
                continue
            timeline = self._packed.timeline(sensor)
            if timeline.sensor.codec == "video":  # a frame is read from its key frame on
                found = timeline.packets_read(found)
            payloads += len(found)
            size += int(timeline.refs(found).length.sum())
            self._seen.setdefault(sensor, []).append(found)
        self.payloads += payloads
        self.bytes += size
        return payloads, size

    def once(self) -> tuple[int, int]:
        """Return payloads and bytes with every payload counted once."""
        rows = {sensor: np.unique(np.concatenate(parts)) for sensor, parts in self._seen.items()}
        sizes = [int(self._packed.timeline(sensor).refs(found).length.sum()) for sensor, found in rows.items()]
        return sum(map(len, rows.values())), sum(sizes)


def slot_facts(view: View, plan: Plan, step: int, *, first_slot: int, last_slot: int, per_item: bool) -> Iterator[SlotFacts]:
    """Yield what slots [first_slot, last_slot) get: in one piece, or item by item."""
    cuts = range(first_slot, last_slot) if per_item else [first_slot]
    for first in cuts:
        planned = plan.step(step, first, first + 1 if per_item else last_slot)
        items = np.asarray(planned.items, np.int64)
        frames, drives = view.frames(items), view.drive_of(items)
        starts = view.packed.frame_starts
        yield SlotFacts(
            step=step,
            first_slot=first,
            items=items,
            occurrence=np.asarray(planned.occurrence, np.int64),
            frames=frames,
            drives=[view.packed.drives[drive].name if drive >= 0 else "" for drive in drives.tolist()],
            numbers=np.where(frames >= 0, frames - starts[np.maximum(drives, 0)], -1),
            rows=view.read_set(items, seed=plan.seed, epoch=plan.epoch, occurrence=planned.occurrence),
            sets=plan.view.sets_of(items) if plan.view.sets else None,
            is_first=planned.is_first,
        )


def window_facts(view: View, plan: Plan, facts: SlotFacts, at: int) -> dict[str, Any]:  # Any: JSON
    """Return the windows of one item: per window and sensor the stamps that are there, with step, validity and sync error."""
    item = facts.items[at : at + 1]
    resolved = view.resolve(item, seed=plan.seed, epoch=plan.epoch, occurrence=facts.occurrence[at : at + 1])
    return {
        name: {
            sensor: [
                {
                    "step": int(window.steps[0, t]),
                    "row": int(window.rows[0, t, place]),
                    "stamp": int(window.stamps[0, t, place]),
                    "sync_error_ns": int(window.sync_error[0, t, place]),
                    "valid": bool(window.valid[0, t, place]),
                }
                for t in range(window.rows.shape[1])
            ]
            for place, sensor in enumerate(window.sensors)
        }
        for name, window in resolved.items()
    }


def parse_steps(text: str, steps: int) -> range:
    """Return the steps that "3", "0:5", "-2:" mean in an epoch of `steps` steps, as a Python slice would."""
    parts = text.split(":")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and numbers[0] is not None:
        step = numbers[0] + steps if numbers[0] < 0 else numbers[0]
        if 0 <= step < steps:
            return range(step, step + 1)
    elif len(numbers) == 2:
        found = range(steps)[slice(*numbers)]
        if len(found):
            return found
    raise UsageError(f"steps {text!r} name no step of an epoch that has steps 0 to {steps - 1}; write one (3) or a range (0:5)")
