"""Fields that combine rows by poses: the ego's trajectory, and several sweeps as one cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..formats import EGO_TO_WORLD, SENSOR_TO_EGO, CorruptShard, DecodeError, UsageError
from ..formats.points import decode_points
from .column_field import gather_columns, window_entry
from .draft import Draft, Prepared, Task
from .located import Ahead
from .payloads import PayloadReader
from .point_field import count_all
from .read_set import Resolved
from .sweeps import Sweep, Sweeps, combine_sweeps, sweep_columns
from .trajectory import ego_path

if TYPE_CHECKING:
    from ..formats.timeline import Timeline

__all__ = ["SweepsField", "TrajectoryField"]


class TrajectoryField:
    """Fills batch[key] with way-points in the ego frame at the reference stamp: "pose" [B, T, 4, 4], "position", "yaw" …"""

    def __init__(self, key: str, timeline: Timeline, *, window: str) -> None:
        self.key = key
        self._timeline, self._window = timeline, window

    def ahead(self, windows: Mapping[str, Resolved]) -> Ahead:
        """Return everything: poses are columns."""
        path = ego_path(self._timeline, windows[self._window])
        return {"pose": path.pose, "position": path.position, "yaw": path.yaw, "stamp": path.stamp, "mask": path.mask}

    def prepare(self, draft: Draft) -> Prepared:
        """Ask for no batch memory: all is known."""
        draft.entries[self.key] = dict(draft.ahead[self.key])
        return Prepared(fill=lambda _: [])


class SweepsField:
    """Fills batch[key] with one cloud a sample: "points" float32 (ΣN, C), "offsets" [B + 1], "columns", stamps."""

    def __init__(self, key: str, reader: PayloadReader, options: Sweeps, *, window: str, ego: Timeline | None) -> None:
        self.key = key
        self._reader, self._options, self._window, self._ego = reader, options, window, ego
        self._columns = sweep_columns(reader.sensor, options)
        for column in (SENSOR_TO_EGO, EGO_TO_WORLD):
            reader.sensor.column(column)  # says which column is missing
        if options.deskew and ego is None:
            raise UsageError(f"sweeps of {reader.sensor.name!r}: deskew needs a sensor 'ego' with a column {EGO_TO_WORLD!r}")

    def ahead(self, windows: Mapping[str, Resolved]) -> Ahead:
        """Return nothing: which sweeps there are varies from sample to sample."""
        return {}

    def prepare(self, draft: Draft) -> Prepared:
        """Ask for room for all points; those on the ego itself are left out later."""
        rows = draft.windows[self._window].rows[..., 0]
        total = int(count_all(self._reader, rows, draft).sum())
        return Prepared(sizes=[total * len(self._columns) * 4], fill=partial(self._fill, draft))

    def _fill(self, draft: Draft, memory: Sequence[NDArray[np.uint8]]) -> list[Task]:
        window = draft.windows[self._window]
        sensor = self._reader.sensor
        draft.entries[self.key] = entry = {
            "columns": list(self._columns),
            "coordinates": sensor.frame,
            **window_entry(window, 0),
        }
        # The cloud lies in the frame of its key sweep, so the poses are that sweep's: [B, 1, 4, 4].
        key_rows = np.take_along_axis(window.rows[..., 0], np.argmax(window.steps == 0, axis=1)[:, None], 1)
        poses = [sensor.column(SENSOR_TO_EGO), sensor.column(EGO_TO_WORLD)]
        entry.update(gather_columns(self._reader.timeline, poses, key_rows))
        clouds: list[NDArray[np.float32] | None] = [None] * len(draft.items)
        draft.finishers.append(partial(_join, clouds, memory[0].view(np.float32), len(self._columns), entry))
        return [
            Task(partial(self._combine, draft, sample, window, clouds), f"sweeps {self.key!r} of item {item}", stage="decompress")
            for sample, item in enumerate(draft.items.tolist())
            if item >= 0
        ]

    def _combine(self, draft: Draft, sample: int, window: Resolved, clouds: list[NDArray[np.float32] | None]) -> None:
        rows, stamps, valid = (each[sample, :, 0] for each in (window.rows, window.stamps, window.valid))
        anchor = int(np.flatnonzero(window.steps[sample] == 0)[0])
        if rows[anchor] < 0:
            return  # without a key sweep there is no frame to move into; the mask says so
        try:
            order = [anchor, *(place for place in range(len(rows)) if place != anchor and rows[place] >= 0)]
            key, *extra = (self._sweep(int(rows[place]), int(stamps[place])) for place in order)
        except (CorruptShard, DecodeError) as error:
            draft.fail(sample, error)
            return
        assert valid[anchor]
        ego_stamps, ego_poses = self._ego_of(int(rows[anchor])) if self._options.deskew else (None, None)
        clouds[sample] = combine_sweeps(
            self._reader.sensor, self._options, key=key, extra=extra, ego_stamps=ego_stamps, ego_poses=ego_poses
        )

    def _sweep(self, row: int, stamp: int) -> Sweep:
        at = np.array([row], np.int64)
        payload = self._reader.read(row)
        try:
            points = decode_points(payload, self._reader.sensor)
        except DecodeError as error:
            raise self._reader.undecodable(row, str(error)) from error
        take = self._reader.timeline.take
        mount, ego = take(SENSOR_TO_EGO, at)[0], take(EGO_TO_WORLD, at)[0]
        return Sweep(points=points, stamp_ns=stamp, sensor_to_ego=mount, ego_to_world=ego)

    def _ego_of(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        assert self._ego is not None
        drive = int(np.searchsorted(self._reader.timeline.starts, row, side="right")) - 1
        rows = np.arange(self._ego.starts[drive], self._ego.starts[drive + 1])
        return self._ego.stamps(drive), self._ego.take(EGO_TO_WORLD, rows)


def _join(
    clouds: list[NDArray[np.float32] | None], room: NDArray[np.float32], columns: int, entry: dict[str, Any]
) -> None:  # Any: see Draft.entries
    counts = [0 if cloud is None else len(cloud) for cloud in clouds]
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    points = room[: int(offsets[-1]) * columns].reshape(-1, columns)
    for cloud, start in zip(clouds, offsets[:-1].tolist(), strict=True):
        if cloud is not None:
            points[start : start + len(cloud)] = cloud
    entry.update(points=points, offsets=offsets)
