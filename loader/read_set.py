"""Which rows the windows of a batch of items mean: the plan's read set, found without reading a payload.

One call resolves one window for many frames at once. Rows are global row numbers of each sensor's timeline; a window never
leaves its drive, and what is missing is said by `valid`, never left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..formats import Schema
from .draws import fold
from .sync import Matched, StampedRows, bracket, match, stamps_of
from .window import Grid, Window

__all__ = ["FrameFiles", "NamedDrive", "Resolved", "read_set", "resolve_window"]

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


class NamedDrive(Protocol):
    """What a view needs of a drive."""

    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, str | int | float | bool]: ...


class FrameFiles(Protocol):
    """What views and windows need of a packed set: columns and where frames and drives begin, never payloads."""

    @property
    def schema(self) -> Schema: ...
    @property
    def set_id(self) -> str: ...
    @property
    def drives(self) -> Sequence[NamedDrive]: ...
    @property
    def frame_starts(self) -> Int64: ...
    def __len__(self) -> int: ...
    def timeline(self, sensor: str) -> StampedRows:
        """Return the timeline of `sensor`."""
        ...

    def own(self, sensor: str, frames: Int64) -> Int64:
        """Return the row that is each frame's own, −1 where there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resolved:
    """The rows one window means for n items: T payloads of each of S sensors, in time order."""

    sensors: tuple[str, ...]
    """The S sensors."""
    rows: Int64
    """(n, T, S) global rows; −1: nothing there. With valid False and a row, that row is a repeat (`on_gap="pad"`).
    Interpolated windows: the left neighbour."""
    valid: Bool
    """(n, T, S)"""
    stamps: Int64
    """(n, T, S), ns: of the payload that is there, or of the interpolated value; 0 where nothing is."""
    sync_error: Int64
    """(n, T, S), ns: payload stamp − asked stamp. The anchor is asked at the frame's reference stamp, steps in time at
    theirs, steps in frames at those frames' reference stamps. Steps counted in payloads ask for no stamp: 0."""
    steps: Int64
    """(n, T): the window's step of each place; 0 is the anchor. Differs between items only with `choose=n`."""
    complete: Bool
    """(n,): no gap in the whole window; what `on_gap="drop"` keeps."""
    right: Int64 | None = None
    """Interpolated windows: (n, T, S), the right neighbour."""
    fraction: NDArray[np.float64] | None = None
    """Interpolated windows: (n, T, S), how far from left to right."""

    def part(self, start: int, stop: int) -> Resolved:
        """Return items `start` to `stop`, as views."""
        return Resolved(
            sensors=self.sensors,
            rows=self.rows[start:stop],
            valid=self.valid[start:stop],
            stamps=self.stamps[start:stop],
            sync_error=self.sync_error[start:stop],
            steps=self.steps[start:stop],
            complete=self.complete[start:stop],
            right=None if self.right is None else self.right[start:stop],
            fraction=None if self.fraction is None else self.fraction[start:stop],
        )

    def without(self, items: Bool) -> Resolved:
        """Return the same with nothing there for the marked items (n,): padding of the last batch."""
        keep = ~items[:, None, None]
        return Resolved(
            sensors=self.sensors,
            rows=np.where(keep, self.rows, -1),
            valid=self.valid & keep,
            stamps=np.where(keep, self.stamps, 0),
            sync_error=np.where(keep, self.sync_error, 0),
            steps=self.steps,
            complete=self.complete & ~items,
            right=None if self.right is None else np.where(keep, self.right, -1),
            fraction=None if self.fraction is None else np.where(keep, self.fraction, 0.0),
        )


def read_set(resolved: Mapping[str, Resolved]) -> dict[str, Int64]:
    """Return, by sensor, the rows that resolved windows touch: ascending, each once."""
    rows: dict[str, list[Int64]] = {}
    for window in resolved.values():
        for place, sensor in enumerate(window.sensors):
            rows.setdefault(sensor, []).append(window.rows[..., place].ravel())
            if window.right is not None:
                rows[sensor].append(window.right[..., place].ravel())
    unique = {sensor: np.unique(np.concatenate(parts)) for sensor, parts in rows.items()}
    return {sensor: found[found >= 0] for sensor, found in sorted(unique.items())}


def resolve_window(
    files: FrameFiles, window: Window, *, sensors: tuple[str, ...], frames: Int64, draws: NDArray[np.uint64] | None
) -> Resolved:
    """Return the rows of `window` for global frame numbers `frames` (n,); `draws` (n,) is one key an item for `choose`."""
    grid = window.grid()
    asker = _Asker(files, window, frames)
    found = [asker.ask(sensor, grid) for sensor in sensors]
    rows, stamps, error, asked_for = (
        _side_by_side([getattr(each, field) for each in found]) for field in ("rows", "stamps", "error", "asked_for")
    )
    right = fraction = None
    if window.sync == "interpolate":
        right = np.stack([each.right for each in found if each.right is not None], -1)
        fraction = np.stack([each.fraction for each in found if each.fraction is not None], -1)
    valid = rows >= 0
    steps = np.broadcast_to(grid.steps, valid.shape[:2])
    anchor = grid.anchor
    if window.choose == "all" and valid.all():
        complete = np.ones(len(valid), np.bool_)
    elif window.choose == "all":
        complete = (valid | ~asked_for).all((1, 2)) & valid[:, anchor].all(-1)
    else:
        whole = np.asarray(valid.all(-1), np.bool_)
        complete = whole[:, anchor] & (whole.sum(-1) > window.choose)
        chosen = _choose(valid, anchor=anchor, count=window.choose, draws=draws)
        steps = np.take_along_axis(steps, chosen, 1)
        rows, valid, stamps, error, asked_for = (
            np.take_along_axis(each, chosen[..., None], 1) for each in (rows, valid, stamps, error, asked_for)
        )
        if right is not None and fraction is not None:
            right = np.take_along_axis(right, chosen[..., None], 1)
            fraction = np.take_along_axis(fraction, chosen[..., None], 1)
    if window.on_gap == "pad":
        source, there = _nearest_valid(valid)
        there &= asked_for
        rows, stamps, error = (np.where(there, np.take_along_axis(each, source, 1), each) for each in (rows, stamps, error))
    return Resolved(
        sensors=sensors,
        rows=rows,
        valid=valid,
        stamps=stamps,
        sync_error=error,
        steps=steps,
        complete=complete,
        right=right,
        fraction=fraction,
    )


def _side_by_side(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:  # Any: int64 or bool, as it comes
    return arrays[0][..., None] if len(arrays) == 1 else np.stack(arrays, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    rows: Int64
    stamps: Int64
    error: Int64
    asked_for: Bool
    """False where a window limited in time does not reach."""
    right: Int64 | None = None
    fraction: NDArray[np.float64] | None = None


class _Asker:
    """One window's question to the timelines of a set, for one batch of frames."""

    def __init__(self, files: FrameFiles, window: Window, frames: Int64) -> None:
        self._files, self._window = files, window
        self._frames = frames
        self._stamps = files.timeline(files.schema.reference).take("stamp", frames)
        self._targets: tuple[Bool, Int64, Int64, Int64] | None = None
        """Steps in frames: which lie in the drive, and those frames, their drives and reference stamps. For all sensors."""

    @cached_property
    def _drives(self) -> Int64:
        return np.searchsorted(self._files.frame_starts, self._frames, side="right") - 1

    def ask(self, sensor: str, grid: Grid) -> _Found:
        """Return what `grid` finds on the timeline of `sensor`: arrays (n, steps)."""
        if grid.unit == "payloads":
            return self._by_payloads(sensor, grid)
        if grid.unit == "frames":
            return self._by_frames(sensor, grid)
        return self._by_stamps(sensor, grid)

    def _anchors(self, sensor: str, frames: Int64, drives: Int64 | None, asked: Int64) -> Matched:
        """Return the payload of `sensor` that belongs to each frame (m,): its own one, else the one sync finds.

        `drives` (None: those of the asker's frames) are looked up only where they are needed.
        """
        window, timeline = self._window, self._files.timeline(sensor)
        tolerance = window.tolerance_ns
        if window.sync == "interpolate":
            return self._match(timeline, self._drives if drives is None else drives, asked)
        if sensor == self._files.schema.reference:  # its rows are the frames, at the stamps that are asked for
            return Matched(rows=frames.copy(), stamps=asked.copy(), error=np.zeros_like(asked))
        rows = np.asarray(self._files.own(sensor, frames), np.int64)
        stamps = stamps_of(timeline, rows)
        error = stamps - asked
        usable = rows >= 0
        if tolerance is not None:
            usable &= np.abs(error) <= tolerance
        if window.sync == "previous":
            usable &= error <= 0
        rest = np.flatnonzero(~usable)
        if len(rest):
            matched = self._match(timeline, (self._drives if drives is None else drives)[rest], asked[rest])
            rows[rest], stamps[rest], error[rest] = matched.rows, matched.stamps, matched.error
        return Matched(rows=rows, stamps=stamps, error=error)

    def _match(self, timeline: StampedRows, drives: Int64, asked: Int64) -> Matched:
        window = self._window
        return match(timeline, drives, asked=asked, sync=window.sync, tolerance_ns=window.tolerance_ns, outside=window.outside)

    def _by_payloads(self, sensor: str, grid: Grid) -> _Found:
        timeline, offsets = self._files.timeline(sensor), grid.offsets
        anchors = self._anchors(sensor, self._frames, None, self._stamps)
        if len(offsets) == 1:
            rows, stamps, error = anchors.rows[:, None], anchors.stamps[:, None], anchors.error[:, None]
            right = None if anchors.right is None else anchors.right[:, None]
            fraction = None if anchors.fraction is None else anchors.fraction[:, None]
            everywhere = np.ones(rows.shape, np.bool_)
            return _Found(rows=rows, stamps=stamps, error=error, asked_for=everywhere, right=right, fraction=fraction)
        drives = self._drives
        first, last = timeline.starts[drives][:, None], timeline.starts[drives + 1][:, None]
        base, centre = anchors.rows.copy(), np.where(anchors.rows >= 0, anchors.stamps, self._stamps)
        lost = np.flatnonzero(base < 0)
        if len(lost):
            # Without an anchor its place stays a gap, and the steps count from the two payloads around the asked stamp.
            before, _ = bracket(timeline, drives[lost], self._stamps[lost])
            base[lost] = np.where(before >= 0, before, first[lost, 0] - 1)
        rows = base[:, None] + offsets
        if len(lost) and grid.anchor:
            rows[lost, : grid.anchor] -= offsets[grid.anchor - 1]
        inside = (rows >= first) & (rows < last)
        inside[lost, grid.anchor] = False
        rows = np.where(inside, rows, -1)
        stamps = stamps_of(timeline, rows)
        asked_for = self._within(grid, timeline, stamps, inside, centre)
        error = np.zeros(rows.shape, np.int64)
        error[:, grid.anchor] = anchors.error
        there = inside & asked_for
        return _Found(rows=np.where(there, rows, -1), stamps=np.where(there, stamps, 0), error=error, asked_for=asked_for)

    def _within(self, grid: Grid, timeline: StampedRows, stamps: Int64, inside: Bool, centre: Int64) -> Bool:
        """Return which places a limit in time includes; a place off the drive is a gap if the limit reaches beyond it."""
        asked_for = np.ones(stamps.shape, np.bool_)
        for limit, places, sign, end in (
            (grid.past_ns, slice(None, grid.anchor), -1, timeline.starts[self._drives]),
            (grid.future_ns, slice(grid.anchor + 1, None), 1, timeline.starts[self._drives + 1] - 1),
        ):
            if limit is None:
                continue
            empty = timeline.starts[self._drives] == timeline.starts[self._drives + 1]
            edge = stamps_of(timeline, np.where(empty, -1, end))
            beyond = empty | (sign * (edge - centre) < limit)
            near = sign * (stamps[:, places] - centre[:, None]) <= limit
            asked_for[:, places] = np.where(inside[:, places], near, beyond[:, None])
        return asked_for

    def _by_frames(self, sensor: str, grid: Grid) -> _Found:
        if self._targets is None:
            starts, drives = self._files.frame_starts, self._drives[:, None]
            frames = self._frames[:, None] + grid.offsets
            inside = (frames >= starts[drives]) & (frames < starts[drives + 1])
            flat = frames[inside]
            asked = self._files.timeline(self._files.schema.reference).take("stamp", flat)
            self._targets = inside, flat, np.broadcast_to(drives, frames.shape)[inside], asked
        inside, flat, drives, asked = self._targets
        matched = self._anchors(sensor, flat, drives, asked)
        return _Found(
            rows=_spread(matched.rows, inside, -1),
            stamps=_spread(matched.stamps, inside, 0),
            error=_spread(matched.error, inside, 0),
            asked_for=np.ones(inside.shape, np.bool_),
            right=None if matched.right is None else _spread(matched.right, inside, -1),
            fraction=None if matched.fraction is None else _spread(matched.fraction, inside, 0.0),
        )

    def _by_stamps(self, sensor: str, grid: Grid) -> _Found:
        asked = self._stamps[:, None] + grid.offsets
        matched = self._match(self._files.timeline(sensor), self._drives, asked)
        if self._window.sync != "interpolate":
            anchors = self._anchors(sensor, self._frames, self._drives, self._stamps)
            for target, value in (
                (matched.rows, anchors.rows),
                (matched.stamps, anchors.stamps),
                (matched.error, anchors.error),
            ):
                target[:, grid.anchor] = value
        return _Found(
            rows=matched.rows,
            stamps=matched.stamps,
            error=matched.error,
            asked_for=np.ones(asked.shape, np.bool_),
            right=matched.right,
            fraction=matched.fraction,
        )


def _spread(values: NDArray[Any], places: Bool, empty: float) -> NDArray[Any]:  # Any: int64 or float64, as it comes
    full = np.full(places.shape, empty, values.dtype)
    full[places] = values
    return full


def _choose(valid: Bool, *, anchor: int, count: int, draws: NDArray[np.uint64] | None) -> Int64:
    """Return the places (n, 1 + count), ascending, of the anchor and `count` others; complete places go first."""
    items, places, sensors = valid.shape
    missing = sensors - valid.sum(-1)
    missing[:, anchor] = -1
    keys = np.zeros(items, np.uint64) if draws is None else draws
    order = np.lexsort((fold(keys[:, None], np.arange(places)), missing), axis=-1)
    return np.sort(order[:, : 1 + count], -1)


def _nearest_valid(valid: Bool) -> tuple[Int64, Bool]:
    """Return for each place (n, T, S) the nearest valid one (tie: the earlier), and whether there is any."""
    length = valid.shape[1]
    place = np.broadcast_to(np.arange(length)[None, :, None], valid.shape)
    before = np.maximum.accumulate(np.where(valid, place, -length), 1)
    after = np.minimum.accumulate(np.where(valid, place, 2 * length)[:, ::-1], 1)[:, ::-1]
    nearest = np.where(place - before <= after - place, before, after)
    there = (nearest >= 0) & (nearest < length)
    return np.where(there, nearest, 0), there
