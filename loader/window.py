"""What one sample takes from a timeline: how far back and ahead, in which steps, matched how, and what a gap means.

A `Window` is plain, validated data: it names sensors and counts, and it is part of the view id. Which rows it means for
an item is `read_set`'s job, matching stamps is `sync`'s.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..formats import Schema, UsageError

__all__ = ["Grid", "OnGap", "Outside", "Sync", "Window", "duration_ns", "match_sensors"]

Sync = Literal["exact", "nearest", "previous", "interpolate"]
OnGap = Literal["pad", "mask", "drop"]
Outside = Literal["gap", "clamp"]

# A window reads every payload it counts; more than this is a unit mistake ("100s" meant as "100ms"), not a recipe.
_MAX_STEPS: Final = 4096
_UNITS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DURATION: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?|\d{1,9}/[1-9]\d{0,8})\s*(ns|us|ms|s)\s*")
_FRAMES: Final = re.compile(r"\s*(\d+)\s*frames?\s*")


@dataclass(frozen=True, slots=True)
class Window:
    """Which payloads of which sensors make one field of a sample.

    A window has an anchor: the payload that belongs to the item's frame. That is the frame's own payload, or, where the
    frame has none within `tolerance`, the one that `sync` finds at the frame's reference stamp. `past` and `future` count
    from there, so T = past + 1 + future (or 1 + n with `choose=n`), in time order. A window never leaves its drive.

    >>> Window("CAM_*", past=3, stride="1 frame").steps
    (-3, -2, -1, 0)
    >>> Window("LIDAR_TOP", past="0.5s", stride="0.25s", sync="nearest").grid().offsets.tolist()
    [-500000000, -250000000, 0]
    """

    sensors: str | Sequence[str]
    """Names or shell patterns ("CAM_*"). Several sensors of one kind form one window with S sensors, patterns in name order."""
    _: KW_ONLY
    past: int | str = 0
    """Payloads (steps of `stride`) before the anchor, or how far back in time: "0.5s", "500ms", "1/30s"."""
    future: int | str = 0
    """Payloads (steps of `stride`) after the anchor, or how far ahead in time."""
    stride: int | str = 1
    """Step between payloads: a count of the sensor's own payloads, a time ("0.5s": `sync` decides which payload stands for
    each asked stamp), or frames ("1 frame": the own payloads of neighbouring frames, as keyframe queues need)."""
    choose: Literal["all"] | int = "all"
    """n: besides the anchor, a random n of the others, without replacement and in time order, drawn anew for each
    (seed, epoch, item, occurrence); payloads that exist are preferred to gaps. One draw serves all sensors."""
    sync: Sync = "exact"
    """How a stamp finds its payload where the frame has no own one and where `stride` is a time. exact: the same stamp
    (within `tolerance`, where one is given); nearest: tie, the earlier; previous: the last at or before, so never the
    future; interpolate: between the two around it (timelines of columns only; poses by slerp)."""
    tolerance: str | None = None
    """Largest distance in time from the asked stamp, anchors included; beyond it there is a gap. None: no limit (exact: 0,
    except for a frame's own payload, which the source ties to the frame). interpolate: distance of either neighbour."""
    on_gap: OnGap = "mask"
    """mask: rows −1, valid False. pad: the nearest valid payload repeated, valid False. drop: items with an incomplete
    window are no items of the view."""
    outside: Outside = "gap"
    """interpolate only, for stamps before the first or after the last row: a gap, or the end's value ("clamp")."""
    at_most: int | None = None
    """Needed where `past` or `future` is a time and `stride` counts payloads: payloads per such side, nearest first.
    T stays fixed; places with no payload within that time are masked and are no gaps."""
    name: str | None = None
    """Name of the batch field. None: the sensor's name; "camera" for several image sensors; else the names joined by "+"."""

    def __post_init__(self) -> None:
        if not isinstance(self.sensors, str):
            object.__setattr__(self, "sensors", tuple(self.sensors))
        self._validate()

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that are looked at, in time order; 0 is the anchor. (`choose=n` delivers 1 + n of them.)"""
        past, future = (self._steps_of(side) for side in (self.past, self.future))
        return tuple(range(-past, future + 1))

    @property
    def length(self) -> int:
        """T, the number of payloads (valid or not) that a sample holds of each sensor."""
        return len(self.steps) if self.choose == "all" else 1 + self.choose

    @property
    def tolerance_ns(self) -> int | None:
        """`tolerance` in nanoseconds."""
        return None if self.tolerance is None else duration_ns(self.tolerance, "tolerance")

    def grid(self) -> Grid:
        """Return the steps as offsets from the anchor; worked out once per window."""
        return _grid(self)

    def to_json(self) -> dict[str, Any]:
        """Return the window as plain data, for the view id."""
        data = {field: getattr(self, field) for field in self.__dataclass_fields__ if field != "_"}
        data["sensors"] = [self.sensors] if isinstance(self.sensors, str) else list(self.sensors)
        return {"kind": "window", **data}

    def _steps_of(self, side: int | str) -> int:
        if isinstance(side, int):
            return side
        if isinstance(self.stride, int):
            return self.at_most or 0
        return int(duration_ns(side, "past or future") // _duration(self.stride, "stride"))

    def _validate(self) -> None:
        names = (self.sensors,) if isinstance(self.sensors, str) else self.sensors
        if not names or not all(isinstance(name, str) and name for name in names):
            raise UsageError(f"window {self.sensors!r}: sensors must be a name or names; patterns such as 'CAM_*' are allowed")
        what = f"window {self.name or self.sensors!r}"
        for choice, allowed, field in (
            (self.sync, get_args(Sync), "sync"),
            (self.on_gap, get_args(OnGap), "on_gap"),
            (self.outside, get_args(Outside), "outside"),
        ):
            if choice not in allowed:
                raise UsageError(f"{what}: {field}={choice!r} is none of {', '.join(map(repr, allowed))}")
        self._validate_steps(what)
        if self.choose != "all" and not (_is_count(self.choose) and 1 <= self.choose < len(self.steps)):
            others = len(self.steps) - 1
            raise UsageError(f"{what}: choose={self.choose!r} must be 'all' or 1 to {others}, the payloads besides the anchor")
        if self.tolerance is not None:
            duration_ns(self.tolerance, f"{what}: tolerance")
        if self.outside == "clamp" and self.sync != "interpolate":
            raise UsageError(f"{what}: outside='clamp' only goes with sync='interpolate'; the others use tolerance and on_gap")
        if self.sync == "interpolate" and self.on_gap == "pad":
            raise UsageError(f"{what}: interpolated values have no payload to repeat; use outside='clamp', or mask or drop")

    def _validate_steps(self, what: str) -> None:
        sides = (("past", self.past), ("future", self.future))
        for field, side in sides:
            if isinstance(side, str):
                duration_ns(side, f"{what}: {field}")
            elif not _is_count(side) or side < 0:
                raise UsageError(f"{what}: {field}={side!r} must be a count from 0 or a time such as '0.5s'")
        in_time = any(isinstance(side, str) for _, side in sides)
        if isinstance(self.stride, str):
            by_frames = _FRAMES.fullmatch(self.stride) is not None
            if by_frames and in_time:
                raise UsageError(f"{what}: with stride={self.stride!r}, past and future count frames; give them as numbers")
            if (_frames(self.stride) if by_frames else _duration(self.stride, f"{what}: stride")) <= 0:
                raise UsageError(f"{what}: stride={self.stride!r} must be above zero")
            if not by_frames and self.sync == "exact" and self.tolerance is None and (self.past or self.future):
                raise UsageError(
                    f"{what}: stride={self.stride!r} asks for stamps, and sync='exact' finds only payloads stamped to the same "
                    "nanosecond; give sync='nearest', 'previous' or 'interpolate', or a tolerance"
                )
        elif not _is_count(self.stride) or self.stride < 1:
            raise UsageError(f"{what}: stride={self.stride!r} must be a count from 1, a time such as '0.5s', or '1 frame'")
        elif self.sync == "interpolate" and (self.past or self.future):
            raise UsageError(f"{what}: sync='interpolate' asks for stamps; give stride as a time, for example stride='0.5s'")
        counted_in_time = in_time and isinstance(self.stride, int)
        if counted_in_time != (self.at_most is not None):
            raise UsageError(
                f"{what}: at_most={self.at_most!r} goes with past or future as a time and stride as a count of payloads, where "
                "it fixes T; otherwise leave it out (or give stride as a time)"
            )
        if self.at_most is not None and not (_is_count(self.at_most) and self.at_most >= 1):
            raise UsageError(f"{what}: at_most={self.at_most!r} must be a count from 1")
        count = sum(self._steps_of(side) for _, side in sides) + 1
        if count > _MAX_STEPS:
            raise UsageError(f"{what}: {count} payloads per sensor and sample; at most {_MAX_STEPS} are allowed; check the units")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """A window's steps as offsets from its anchor, ascending."""

    unit: Literal["payloads", "frames", "ns"]
    steps: NDArray[np.int64]
    """(P,) step numbers; 0 at `anchor`."""
    offsets: NDArray[np.int64]
    """(P,) in `unit`; 0 at `anchor`."""
    anchor: int
    past_ns: int | None = None
    """Payloads further back than this from the anchor are not part of the window; None: no such limit."""
    future_ns: int | None = None


@lru_cache(maxsize=256)
def _grid(window: Window) -> Grid:
    steps, stride = window.steps, window.stride
    past_ns = future_ns = None
    if isinstance(stride, int):
        unit: Literal["payloads", "frames", "ns"] = "payloads"
        offsets = [step * stride for step in steps]
        past_ns = None if isinstance(window.past, int) else duration_ns(window.past, "past")
        future_ns = None if isinstance(window.future, int) else duration_ns(window.future, "future")
    elif _FRAMES.fullmatch(stride):
        unit, offsets = "frames", [step * _frames(stride) for step in steps]
    else:
        # Each offset is rounded on its own: adding up a rounded period drifts (1/30 s is no whole number of ns).
        period = _duration(stride, "stride")
        unit, offsets = "ns", [round(step * period) for step in steps]
    numbers = np.array([steps, offsets], np.int64)
    numbers.setflags(write=False)
    return Grid(unit=unit, steps=numbers[0], offsets=numbers[1], anchor=steps.index(0), past_ns=past_ns, future_ns=future_ns)


def duration_ns(text: str, what: str) -> int:
    """Return a time such as "0.5s", "500ms" or "1/30s" in nanoseconds."""
    return round(_duration(text, what))


def match_sensors(schema: Schema, sensors: str | Sequence[str], what: str) -> tuple[str, ...]:
    """Return the sensor names that names and patterns mean in `schema`, each once, in the order given."""
    found: dict[str, None] = {}
    for pattern in [sensors] if isinstance(sensors, str) else sensors:
        # An exact name wins over its reading as a pattern: names may hold brackets.
        names = [pattern] if pattern in schema.by_name else [n for n in schema.by_name if fnmatch.fnmatchcase(n, pattern)]
        if not names:
            raise UsageError(f"{what} asks for {pattern!r}, and this set has no such sensor; it has: {', '.join(schema.by_name)}")
        found.update(dict.fromkeys(names))
    kinds = {schema.sensor(name).kind for name in found}
    if len(kinds) > 1:
        raise UsageError(
            f"{what} mixes sensors of kinds {', '.join(sorted(kinds))} ({', '.join(found)}); use one window for each kind"
        )
    return tuple(found)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _duration(text: str, what: str) -> Fraction:
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise UsageError(f"{what}: {text!r} is no time; write a number and a unit: '0.5s', '500ms', '1/30s'")
    return Fraction(match[1]) * _UNITS[match[2]]


def _frames(text: str) -> int:
    match = _FRAMES.fullmatch(text)
    assert match is not None
    return int(match[1])
