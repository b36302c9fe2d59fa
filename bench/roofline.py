"""What each stage alone would allow on this node, and why a measured rate is below the slowest of them.

A stage's rate is its ceiling ÷ what a sample costs of it. The slowest is the roof: no loader can pass it without moving the
ceiling. Decoding, points and gathers share the same cores, so their costs also add up; what the ranks' CPU time exceeds that sum
by is everything else they do, and cores that were not used are the rest of the gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..formats import SetError
from ..formats.packed_set import PackedSet
from ..loader.cores import usable_cores
from .limits import Limit

__all__ = ["Stage", "explain", "roofline"]

_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One thing that every sample needs of the node."""

    what: str
    unit: str
    ceiling: float
    """Units per second of one core."""
    cost: float
    """Units a sample."""
    samples_per_s: float
    """On all cores, if nothing else had to be done."""
    adds: bool
    """Its core time comes on top of the others': copies and reads are part of decoding, and do not."""

    @property
    def core_ms(self) -> float:
        """Milliseconds of one core that a sample takes of this stage."""
        return 1e3 * self.cost / self.ceiling

    def to_json(self) -> dict[str, Any]:
        """Return the stage as plain data."""
        return {**asdict(self), "core_ms_a_sample": self.core_ms}


def roofline(
    packed: PackedSet, limits: Sequence[Limit], *, image: tuple[int, int] = (256, 704), cores: float | None = None
) -> list[Stage]:
    """Return the stages of a frame with all its own payloads, images as float32 of one size, slowest first."""
    if not len(packed):
        raise SetError(f"cannot predict for {packed.location}: the set has no frames")
    cores = usable_cores() if cores is None else cores
    needs = _needs(packed, limits, image)
    stages = [
        Stage(
            what=what, unit=limit.unit, ceiling=limit.per_core, cost=cost, samples_per_s=limit.per_core * cores / cost, adds=adds
        )
        for what, limit, cost, adds in needs
        if cost
    ]
    return sorted(stages, key=lambda stage: stage.samples_per_s)


def explain(stages: Sequence[Stage], *, samples_per_s: float, cores_used: float, cores: float) -> list[dict[str, Any]]:
    """Return the table that leads from the roof to the measured rate: core milliseconds of a sample, by where they went."""
    rows: list[dict[str, Any]] = [
        {"stage": stage.what, "samples_per_s_alone": stage.samples_per_s, "core_ms_a_sample": stage.core_ms, "adds": stage.adds}
        for stage in stages
    ]
    if samples_per_s:
        known, used = sum(stage.core_ms for stage in stages if stage.adds), 1e3 * cores_used / samples_per_s
        together = {"samples_per_s_alone": 1e3 * cores / known if known else None, "core_ms_a_sample": known, "adds": False}
        rows.append({"stage": "all that adds up", **together})
        rows.append({"stage": "everything else in the ranks", "core_ms_a_sample": used - known, "adds": True})
        rows.append({"stage": "cores not used", "core_ms_a_sample": 1e3 * (cores - cores_used) / samples_per_s, "adds": True})
    return rows


def _needs(packed: PackedSet, limits: Sequence[Limit], image: tuple[int, int]) -> list[tuple[str, Limit, float, bool]]:
    """Return (stage, its ceiling, units a sample, whether its core time adds up)."""
    found: list[tuple[str, Limit, float, bool]] = []
    sensors = packed.schema.sensors
    images = sum(_share(packed, sensor.name) for sensor in sensors if sensor.kind == "image")
    stored = written = 0.0
    decode = [limit for limit in limits if limit.unit == "images" and "→" in limit.what]
    if images and decode:
        found.append(("decode", max(decode, key=lambda limit: limit.per_core), images, True))
        written += images * 3 * 4 * image[0] * image[1]
    for limit in limits:
        if limit.unit == "points":
            name = limit.what.split()[1]
            points = _share(packed, name) * _mean_points(packed, name)
            found.append((f"points of {name}", limit, points, True))
            written += points * packed.schema.sensor(name).record_dtype.itemsize
        elif limit.unit == "rows":
            found.append((limit.what, limit, 1.0, True))
            name, _, column = limit.what.removeprefix("gather ").rpartition(".")
            width = next(each.width for each in packed.schema.sensor(name).columns if each.name == column)
            stored, written = stored + width, written + width
    for sensor in sensors:
        if sensor.kind in ("image", "points") and len(packed.timeline(sensor.name)):
            stored += _share(packed, sensor.name) * _mean_bytes(packed, sensor.name)
    by_name: Mapping[str, Limit] = {limit.what: limit for limit in limits}
    for what, key, amount in (
        ("write batches", "memcpy", written),
        ("read from page cache", "read a shard from page cache", stored),
    ):
        if key in by_name and amount:
            found.append((what, by_name[key], amount, False))
    return found


def _share(packed: PackedSet, sensor: str) -> float:
    """Return payloads of a sensor a frame."""
    return len(packed.timeline(sensor)) / len(packed)


def _some_rows(count: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(_ROWS, count)).astype(int)).tolist() if count else []


def _mean_points(packed: PackedSet, sensor: str) -> float:
    timeline = packed.timeline(sensor)
    counts = [len(timeline.value(row)) for row in _some_rows(len(timeline))]
    return float(np.mean(counts)) if counts else 0.0


def _mean_bytes(packed: PackedSet, sensor: str) -> float:
    timeline = packed.timeline(sensor)
    return float(np.mean([len(timeline.payload(row)) for row in _some_rows(len(timeline))]))
