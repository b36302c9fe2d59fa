"""Windows against a brute-force reading of design §7: one item, one place, one row at a time, in plain Python integers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.formats import UsageError
from headway.loader.view import View
from headway.loader.window import Window
from tests.loader.memory_set import MemorySet, camera, lidar

MS = 10**6
# As large as today's clocks: what is lost in a double shows.
EPOCH = 1_700_000_000 * 10**9
# No directory can be made there, so item indexes stay in memory.
_NOWHERE = Path("/dev/null/headway")
SENSORS = [lidar(), camera("CAM_A"), camera("CAM_B")]


@st.composite
def sets(draw: st.DrawFn) -> MemorySet:
    """Draw drives with irregular timelines, gaps, missing sensors, and any own payloads within the drive."""
    drives, own = [], {"CAM_A": [], "CAM_B": []}  # type: ignore[var-annotated]  # dict of lists of int
    begun = dict.fromkeys(own, 0)
    for number in range(draw(st.integers(1, 4))):
        # Drives overlap in time on purpose: only the drive's border may separate them.
        times = st.integers(0, 40).map(lambda step: EPOCH + step * 10 * MS)
        drive = {"LIDAR_TOP": sorted(draw(st.sets(times, min_size=1, max_size=8)))}
        for name in own:
            if draw(st.booleans()) or number == 0:
                drive[name] = sorted(draw(st.sets(times, min_size=number == 0, max_size=12)))
            count = len(drive.get(name, ()))
            rows = draw(st.permutations(range(count)))
            for frame in range(len(drive["LIDAR_TOP"])):
                given_one = frame < count and draw(st.booleans())
                own[name].append(begun[name] + rows[frame] if given_one else -1)
            begun[name] += count
        drives.append(drive)
    return MemorySet(SENSORS, drives, own=own)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Draw any window that can be meant."""
    sync: Literal["exact", "nearest", "previous"] = draw(st.sampled_from(("exact", "nearest", "previous")))
    on_gap: Literal["mask", "pad"] = draw(st.sampled_from(("mask", "pad")))
    tolerance = draw(st.sampled_from((None, "0ms", "10ms", "35ms")))
    count = st.integers(0, 4)
    kind = draw(st.sampled_from(("payloads", "frames", "stamps", "limited")))
    if kind == "limited":
        return Window(
            "CAM_*", past=draw(st.sampled_from(("0ms", "50ms", "95ms"))), future=draw(count), stride=draw(st.integers(1, 2)),
            at_most=draw(st.integers(1, 4)), sync=sync, tolerance=tolerance, on_gap=on_gap,
        )  # fmt: skip
    stride: int | str
    if kind == "payloads":
        stride = draw(st.integers(1, 3))
    elif kind == "frames":
        stride = f"{draw(st.integers(1, 3))} frames"
    else:
        stride = draw(st.sampled_from(("5ms", "10ms", "1/30s")))
        if sync == "exact" and tolerance is None:
            tolerance = "10ms"
    return Window("CAM_*", past=draw(count), future=draw(count), stride=stride, sync=sync, tolerance=tolerance, on_gap=on_gap)


@dataclass
class Place:
    """One place of a window, found the slow way."""

    row: int = -1
    stamp: int = 0
    error: int = 0
    is_gap: bool = True


class SlowReader:
    """Reads windows of one sensor one row at a time."""

    def __init__(self, files: MemorySet, window: Window, sensor: str) -> None:
        self.files, self.window, self.sensor = files, window, sensor
        timeline = files.timeline(sensor)
        self.starts, self.stamps = timeline.starts.tolist(), timeline.columns["stamp"].tolist()
        self.frame_stamps = files.timeline("LIDAR_TOP").columns["stamp"].tolist()

    def drive(self, frame: int) -> int:
        """Return the drive of a frame."""
        return max(d for d, start in enumerate(self.files.frame_starts[:-1].tolist()) if start <= frame)

    def sync(self, drive: int, asked: int) -> Place:
        """Return what stands for a stamp, by looking at every row of the drive."""
        window, limit = self.window, self.window.tolerance_ns
        if window.sync == "exact" and limit is None:
            limit = 0
        rows = [(abs(self.stamps[row] - asked), row) for row in range(self.starts[drive], self.starts[drive + 1])]
        if window.sync == "previous":
            rows = [(distance, row) for distance, row in rows if self.stamps[row] <= asked]
        if not rows or (limit is not None and min(rows)[0] > limit):
            return Place()
        row = min(rows)[1]
        return Place(row, self.stamps[row], self.stamps[row] - asked, False)

    def anchor(self, frame: int) -> Place:
        """Return the frame's payload: its own one if usable, else by sync."""
        asked, limit = self.frame_stamps[frame], self.window.tolerance_ns
        row = int(self.files.own(self.sensor, np.array([frame]))[0])
        if row >= 0:
            error = self.stamps[row] - asked
            if (limit is None or abs(error) <= limit) and not (self.window.sync == "previous" and error > 0):
                return Place(row, self.stamps[row], error, False)
        return self.sync(self.drive(frame), asked)

    def read(self, frame: int) -> list[Place]:
        """Return the window of one frame, before padding."""
        return [self.place(frame, step) for step in self.window.steps]

    def place(self, frame: int, step: int) -> Place:
        """Return one place of the window."""
        window, drive = self.window, self.drive(frame)
        if step == 0:
            return self.anchor(frame)
        if isinstance(window.stride, str) and "frame" in window.stride:
            target = frame + step * int(window.stride.split()[0])
            first, last = self.files.frame_starts[drive], self.files.frame_starts[drive + 1]
            return self.anchor(target) if first <= target < last else Place()
        if isinstance(window.stride, str):
            steps = {"5ms": (5 * MS, 1), "10ms": (10 * MS, 1), "1/30s": (10**9, 30)}[window.stride]
            offset = (2 * step * steps[0] + steps[1]) // (2 * steps[1])  # nearest; no tie can happen with 30
            return self.sync(drive, self.frame_stamps[frame] + offset)
        return self.counted(frame, step, drive, window.stride)

    def counted(self, frame: int, step: int, drive: int, stride: int) -> Place:
        """Return the payload `step` strides from the anchor, or from the hole where there is none."""
        anchor, centre = self.anchor(frame), self.frame_stamps[frame]
        rows = range(self.starts[drive], self.starts[drive + 1])
        if anchor.row >= 0:
            row, centre = anchor.row + step * stride, anchor.stamp
        else:
            before = [r for r in rows if self.stamps[r] <= centre]
            base = before[-1] if before else rows.start - 1
            row = base + (step + 1 if step < 0 else step) * stride
        limit = None
        if step < 0 and isinstance(self.window.past, str):
            limit = {"0ms": 0, "50ms": 50 * MS, "95ms": 95 * MS}[self.window.past]
        if row not in rows:
            reaches = limit is None or not len(rows) or centre - self.stamps[rows.start] < limit
            return Place(is_gap=reaches)
        if limit is not None and centre - self.stamps[row] > limit:
            return Place(is_gap=False)
        return Place(row, self.stamps[row], 0, False)


def padded(places: list[Place]) -> list[Place]:
    """Repeat the nearest place that has a row into each gap; of two equally near ones the earlier."""
    there = [at for at, place in enumerate(places) if place.row >= 0]
    return [
        place if not place.is_gap or not there else places[min(there, key=lambda other: (abs(other - at), other))]
        for at, place in enumerate(places)
    ]


@settings(max_examples=150)
@given(sets(), windows())
def test_windows_are_what_brute_force_finds(files: MemorySet, window: Window) -> None:
    view = View(files, windows=[window])
    resolved = view.resolve(np.arange(len(view)), seed=0, epoch=0)["camera"]
    assert resolved.sensors == ("CAM_A", "CAM_B")
    complete = np.ones(len(files), bool)
    for at, sensor in enumerate(resolved.sensors):
        slow = SlowReader(files, window, sensor)
        for frame in range(len(files)):
            places = slow.read(frame)
            complete[frame] &= not any(place.is_gap for place in places) and places[window.steps.index(0)].row >= 0
            assert resolved.valid[frame, :, at].tolist() == [place.row >= 0 for place in places]
            if window.on_gap == "pad":
                places = padded(places)
            assert resolved.rows[frame, :, at].tolist() == [place.row for place in places]
            assert resolved.stamps[frame, :, at].tolist() == [place.stamp for place in places]
            assert resolved.sync_error[frame, :, at].tolist() == [place.error for place in places]
    assert resolved.complete.tolist() == complete.tolist()


@given(sets(), windows())
def test_windows_never_cross_drives(files: MemorySet, window: Window) -> None:
    view = View(files, windows=[window])
    items = np.arange(len(view))
    resolved = view.resolve(items, seed=0, epoch=0)["camera"]
    for at, sensor in enumerate(resolved.sensors):
        starts, rows = files.timeline(sensor).starts, resolved.rows[..., at]
        drives = view.drive_of(items)[:, None]
        assert (((rows >= starts[drives]) & (rows < starts[drives + 1])) | (rows == -1)).all()


@given(sets(), windows())
def test_a_batch_is_its_items_one_by_one(files: MemorySet, window: Window) -> None:
    view = View(files, windows=[window])
    items = np.random.default_rng(0).integers(-1, len(view), 17)
    whole = view.resolve(items, seed=3, epoch=1)["camera"]
    for place, item in enumerate(items):
        one = view.resolve(np.array([item]), seed=3, epoch=1)["camera"]
        for field in ("rows", "valid", "stamps", "sync_error", "steps", "complete"):
            assert np.array_equal(getattr(whole, field)[place], getattr(one, field)[0])
        if item < 0:
            assert not one.valid.any()
            assert (one.rows == -1).all()


@given(sets(), windows(), st.data())
def test_a_choice_is_a_part_of_the_whole_window(files: MemorySet, window: Window, data: st.DataObject) -> None:
    if len(window.steps) < 2:
        return
    count = data.draw(st.integers(1, len(window.steps) - 1))
    whole_view = View(files, windows=[replace(window, on_gap="mask")])
    view = View(files, windows=[replace(window, on_gap="mask", choose=count)])
    items = np.arange(len(view))
    whole = whole_view.resolve(items, seed=1, epoch=0)["camera"]
    chosen = view.resolve(items, seed=1, epoch=0, occurrence=items)["camera"]
    place = np.searchsorted(window.steps, chosen.steps)
    assert (np.diff(place, axis=1) > 0).all()
    assert (chosen.steps == 0).sum(1).tolist() == [1] * len(items)
    for field in ("rows", "valid", "stamps", "sync_error"):
        assert np.array_equal(getattr(chosen, field), np.take_along_axis(getattr(whole, field), place[..., None], 1))
    # No gap is chosen while a place that all sensors fill is left out.
    filled = np.array(whole.valid.all(-1))
    filled[:, window.steps.index(0)] = False
    others = np.take_along_axis(filled, place, 1).sum(1)
    assert np.array_equal(others, np.minimum(filled.sum(1), count))
    assert np.array_equal(chosen.complete, whole.valid[:, window.steps.index(0)].all(-1) & (filled.sum(1) >= count))


@given(sets(), windows())
def test_dropping_gaps_keeps_exactly_the_complete_windows(files: MemorySet, window: Window) -> None:
    complete = View(files, windows=[window]).resolve(np.arange(len(files)), seed=0, epoch=0)["camera"].complete
    view = View(files, windows=[replace(window, on_gap="drop")], cache=_NOWHERE)
    if not complete.any():
        with pytest.raises(UsageError, match="has no items"):
            len(view)
        return
    assert view.frames(np.arange(len(view))).tolist() == np.flatnonzero(complete).tolist()
    starts = [int(np.sum(np.flatnonzero(complete) < start)) for start in files.frame_starts]
    assert view.info.drive_starts.tolist() == starts
