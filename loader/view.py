"""A set, filtered and windowed: which frames are items, and which rows each item's windows mean.

Without filters, exclusions or windows that drop gaps every frame is an item and nothing is stored. Otherwise the items are
an index of global frame numbers, built once into the cache at the first `len()` and memory-mapped. The view id covers the
set's content, the windows and the items, so that an order can never be resumed over other data.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..formats import EGO_TO_WORLD, SENSOR_TO_EGO, UsageError, canonical_json
from ..formats.cache_directory import cache_directory
from .draws import key
from .frame_facts import FrameFacts
from .item_index import open_index
from .read_set import FrameFiles, Resolved, read_set, resolve_window
from .sampler import ViewInfo
from .sweeps import Sweeps, sweep_columns
from .sync import stamps_of
from .trajectory import EgoPath, Trajectory, ego_motion, ego_path
from .window import Window, match_sensors
from .window_list import AnyWindow

__all__ = ["AnyWindow", "View", "default_windows"]

Int64 = NDArray[np.int64]

# The batch's own keys; a window of that name would hide one.
_RESERVED: Final = frozenset(
    ("drive", "epoch", "frame", "id", "is_first", "motion", "occurrence", "replaced", "set", "slot", "stamp", "state", "valid")
)


class View:
    """The items of a set, numbered from 0 in (drive, stamp) order, and what each reads.

    `where` is a boolean `pyarrow.compute` expression over the facts of `frame_facts`, or a list of global frame numbers.
    `exclude` holds tombstones: drive names, or (drive name, frame number in the drive) pairs.
    Safe to use from several threads; holds no open file but a mapping.

    >>> view = View(packed, windows=[Window("CAM", past=1)])
    >>> resolved = view.resolve(np.array([0, 1]), seed=0, epoch=0)
    >>> resolved["CAM"].rows.shape
    (2, 2, 1)
    """

    def __init__(
        self,
        packed: FrameFiles,
        *,
        windows: Sequence[AnyWindow] = (),
        where: Any = None,  # Any: pyarrow is untyped; an expression, or a sequence of whole numbers
        exclude: Sequence[str | tuple[str, int]] = (),
        cache: Path | None = None,
        deadline_s: float = 60.0,
    ) -> None:
        """Check windows and tombstones against the set; nothing is built yet.

        `cache` is where an item index is kept (None: the user's cache directory); `deadline_s` how long to wait for
        another process that builds the same index and makes no progress.
        """
        self.packed = packed
        self.windows: tuple[AnyWindow, ...] = tuple(windows) or default_windows(packed)
        self._cache, self._deadline_s = cache, deadline_s
        self._where, self._ids = _read_where(packed, where)
        self._facts: FrameFacts | None = None
        self._excluded_drives, self._excluded_frames = _read_exclude(packed, exclude)
        self._plain: dict[str, tuple[Window, tuple[str, ...]]] = {}
        for window in self.windows:
            self._add(window)
        self._lock = threading.Lock()  # guards the two fields below
        self._index: Int64 | None = None
        self._info: ViewInfo | None = None

    def __len__(self) -> int:
        return self.info.items

    def __getstate__(self) -> dict[str, Any]:  # Any: the shape pickle asks for
        # Another process finds the index in the cache, or builds the same one.
        return {**self.__dict__, "_lock": None, "_facts": None, "_index": None, "_info": None}

    def __setstate__(self, state: dict[str, Any]) -> None:  # Any: the shape pickle asks for
        self.__dict__.update(state, _lock=threading.Lock())

    @property
    def view_id(self) -> str:
        """SHA-256 over the set id, the windows, N, and the index or "all"; 64 hex digits."""
        return self.info.view_id

    @property
    def info(self) -> ViewInfo:
        """What a plan needs to know; the first use builds the item index where there is one."""
        with self._lock:
            if self._info is None:
                self._index = self._open_index() if self._needs_index else None
                self._info = self._make_info(self._index)
            return self._info

    @property
    def names(self) -> tuple[str, ...]:
        """The windows' names: the keys of `resolve`."""
        return tuple(self._plain)

    def sensors(self, name: str) -> tuple[str, ...]:
        """Return the sensors of window `name`."""
        return self._plain[name][1]

    def frames(self, items: Int64) -> Int64:
        """Return the global frame numbers of `items`; −1 stays −1."""
        info, items = self.info, np.asarray(items, np.int64)
        if items.size and (items.min() < -1 or items.max() >= info.items):
            bad = int(items[(items < -1) | (items >= info.items)][0])
            raise UsageError(f"view {info.view_id[:12]} has no item {bad}; it has items 0 to {info.items - 1} (−1 is padding)")
        if self._index is None:
            return items.copy()
        return np.where(items >= 0, self._index[np.maximum(items, 0)], -1)

    def items_of(self, frames: Int64) -> Int64:
        """Return the items that are any of `frames`, ascending."""
        if self.info.items and self._index is None:
            return np.unique(frames)
        assert self._index is not None
        wanted = np.unique(frames)
        at = np.minimum(np.searchsorted(self._index, wanted), len(self._index) - 1)
        found: Int64 = at[self._index[at] == wanted]
        return found

    def drive_of(self, items: Int64) -> Int64:
        """Return the index into the set's drives of each item; −1 stays −1."""
        frames = self.frames(items)
        return np.where(frames >= 0, np.searchsorted(self.packed.frame_starts, frames, side="right") - 1, -1)

    def resolve(self, items: Int64, *, seed: int, epoch: int, occurrence: Int64 | int = 0) -> dict[str, Resolved]:
        """Return, by window name, the rows that `items` (n,) mean; padding (−1) has no rows. Reads columns, no payloads.

        Seed, epoch and occurrence only matter to windows with `choose=n`.
        """
        items = np.asarray(items, np.int64)
        frames = self.frames(items)
        padding = frames < 0
        there = np.maximum(frames, 0)
        resolved = {}
        for name, (window, sensors) in self._plain.items():
            draws = None
            if window.choose != "all":
                draws = np.broadcast_to(key(seed, epoch, items, occurrence, f"choose {name}"), items.shape)
            found = resolve_window(self.packed, window, sensors=sensors, frames=there, draws=draws)
            resolved[name] = found.without(padding) if padding.any() else found
        return resolved

    def read_set(self, items: Int64, *, seed: int, epoch: int, occurrence: Int64 | int = 0) -> dict[str, Int64]:
        """Return, by sensor, the rows that `items` read: ascending, each once."""
        return read_set(self.resolve(items, seed=seed, epoch=epoch, occurrence=occurrence))

    def ego_path(self, name: str, resolved: Resolved) -> EgoPath:
        """Return the way-points of a resolved `Trajectory` window."""
        return ego_path(self.packed.timeline(self.sensors(name)[0]), resolved)

    def ego_motion(self, items: Int64) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return matrices (n, 4, 4) from the ego frame of the frame directly before to that of each item, and where known.

        Unknown (identity, False) for the first frame of a drive, for padding, and where poses do not reach.
        """
        frames = self.frames(items)
        drives = np.maximum(self.drive_of(items), 0)
        has_before = (frames >= 0) & (frames > self.packed.frame_starts[drives])
        reference = self.packed.timeline(self.packed.schema.reference)
        after = stamps_of(reference, frames)
        before = stamps_of(reference, np.where(has_before, frames - 1, frames))
        motion, known = ego_motion(self.packed.timeline(self._ego_sensor()), drives, before=before, after=after)
        known = known & has_before
        motion[~known] = np.eye(4)
        return motion, known

    @property
    def has_ego_motion(self) -> bool:
        """Whether `ego_motion` can be asked: the set has a timeline of ego poses."""
        return self._ego_timeline() is not None

    @property
    def _needs_index(self) -> bool:
        filtered = self._where is not None or self._ids is not None
        excluded = len(self._excluded_drives) or len(self._excluded_frames)
        return bool(filtered or excluded or any(window.on_gap == "drop" for window, _ in self._plain.values()))

    def _add(self, window: AnyWindow) -> None:
        plain = window if isinstance(window, Window) else window.window
        schema = self.packed.schema
        what = f"window {plain.name or plain.sensors!r}"
        sensors = match_sensors(schema, plain.sensors, what)
        kinds = {schema.sensor(sensor).kind for sensor in sensors}
        name = plain.name or (sensors[0] if len(sensors) == 1 else "camera" if kinds == {"image"} else "+".join(sensors))
        if name in self._plain:
            raise UsageError(f"two windows are called {name!r}; give one of them name=…")
        if name in _RESERVED:
            raise UsageError(f"{what}: the batch has a field {name!r} of its own; give another name")
        for sensor in map(schema.sensor, sensors):
            if not self.packed.timeline(sensor.name).starts[-1]:
                raise UsageError(f"{what}: no payload of sensor {sensor.name!r} is packed in this set; leave it out or pack it")
            if plain.sync == "interpolate" and sensor.codec is not None:
                raise UsageError(
                    f"{what}: sensor {sensor.name!r} has payloads, which cannot be interpolated; use sync='nearest' or 'previous'"
                )
        first = schema.sensor(sensors[0])
        if isinstance(window, Trajectory | Sweeps):
            needed = [EGO_TO_WORLD] if isinstance(window, Trajectory) else [EGO_TO_WORLD, SENSOR_TO_EGO]
            lacking = [column for column in needed if not first.has(column)]
            if lacking or len(sensors) > 1:
                found = f"{len(sensors)} sensors" if len(sensors) > 1 else f"{first.name!r} without {' and '.join(lacking)}"
                raise UsageError(f"{what}: needs one sensor with columns {' and '.join(needed)}; found {found}")
        if isinstance(window, Sweeps):
            if first.kind != "points":
                raise UsageError(f"{what}: sensor {first.name!r} is of kind {first.kind!r}; sweeps are of points")
            sweep_columns(first, window)
            if window.deskew:
                self._ego_sensor()
        self._plain[name] = (plain, sensors)

    def _ego_timeline(self) -> str | None:
        schema = self.packed.schema
        names = [name for name in ("ego", schema.reference) if name in schema.by_name and schema.sensor(name).has(EGO_TO_WORLD)]
        return names[0] if names else None

    def _ego_sensor(self) -> str:
        name = self._ego_timeline()
        if name is not None:
            return name
        raise UsageError(
            f"ego motion needs a timeline of poses: neither a sensor 'ego' nor the reference "
            f"{self.packed.schema.reference!r} has a column {EGO_TO_WORLD!r} in this set"
        )

    def _windows_json(self) -> list[dict[str, Any]]:  # Any: plain JSON data
        return [window.to_json() for window in self.windows]

    def _open_index(self) -> Int64:
        question = {
            "format": 0,
            "set": self.packed.set_id,
            "windows": self._windows_json(),
            "where": _digest_where(self._where, self._ids),
            "drives": self._excluded_drives.tolist(),
            "frames": hashlib.sha256(self._excluded_frames.tobytes()).hexdigest(),
        }
        return open_index(
            cache_directory("items") if self._cache is None else self._cache,
            hashlib.sha256(canonical_json(question)).hexdigest(),
            frames=len(self.packed),
            select=self._select,
            deadline_s=self._deadline_s,
        )

    def _select(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Say which frames of [start, stop) are items."""
        frames = np.arange(start, stop, dtype=np.int64)
        keep = ~np.isin(frames, self._excluded_frames)
        if len(self._excluded_drives):
            drives = np.searchsorted(self.packed.frame_starts, frames, side="right") - 1
            keep &= ~np.isin(drives, self._excluded_drives)
        if self._ids is not None:
            keep &= np.isin(frames, self._ids[np.searchsorted(self._ids, start) : np.searchsorted(self._ids, stop)])
        if self._where is not None and keep.any():
            self._facts = self._facts or FrameFacts(self.packed)
            keep[keep] = self._facts.where(self._where, frames[keep])
        for window, sensors in self._plain.values():
            if window.on_gap == "drop" and keep.any():
                found = resolve_window(self.packed, window, sensors=sensors, frames=frames[keep], draws=None)
                keep[keep] = found.complete
        return keep

    def _make_info(self, index: Int64 | None) -> ViewInfo:
        starts = self.packed.frame_starts
        items = len(self.packed) if index is None else len(index)
        if not items:
            raise UsageError(
                f"the view of set {self.packed.set_id[:12]} has no items, of {len(self.packed)} frames; check where, exclude and "
                "the windows with on_gap='drop'"
            )
        digest = hashlib.sha256()
        for part in (self.packed.set_id.encode(), canonical_json(self._windows_json()), str(items).encode()):
            digest.update(len(part).to_bytes(8, "little") + part)
        digest.update(b"all" if index is None else np.ascontiguousarray(index, "<i8").data)
        drive_starts = np.asarray(starts if index is None else np.searchsorted(index, starts), np.int64)
        frames = None if index is None else (lambda numbers: np.asarray(index[numbers], np.int64))
        return ViewInfo(view_id=digest.hexdigest(), items=items, drive_starts=drive_starts, frames=frames)


def default_windows(packed: FrameFiles) -> tuple[Window, ...]:
    """Return one window per sensor that has rows: the frame's own payload. Image sensors of one colour kind share one."""
    windows: list[Window] = []
    cameras: dict[str, list[str]] = {}
    for sensor in packed.schema.sensors:
        if not packed.timeline(sensor.name).starts[-1]:
            continue
        if sensor.camera is not None:
            cameras.setdefault(sensor.camera.colour, []).append(sensor.name)
        else:
            windows.append(Window(sensor.name))
    for colour, names in sorted(cameras.items()):
        plain = colour == "rgb" or len(cameras) == 1
        windows.append(Window(names, name="camera" if plain else f"camera_{colour}"))
    return tuple(windows)


def _read_where(packed: FrameFiles, where: Any) -> tuple[Any, Int64 | None]:  # Any: pyarrow is untyped
    if where is None or isinstance(where, pc.Expression):
        return where, None
    ids = np.asarray(where)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise UsageError(
            f"where={where!r} is neither a pyarrow.compute expression nor a list of frame numbers; for example "
            "where=pyarrow.compute.field('drive') == 'scene-0061'"
        )
    ids = np.sort(ids.astype(np.int64))
    if len(ids) and (ids[0] < 0 or ids[-1] >= len(packed)):
        raise UsageError(
            f"where lists frame {int(ids[0] if ids[0] < 0 else ids[-1])}; this set has frames 0 to {len(packed) - 1}"
        )
    if (np.diff(ids) == 0).any():
        twice = int(ids[:-1][np.diff(ids) == 0][0])
        raise UsageError(f"where lists frame {twice} twice; a view has each frame once (to repeat frames use a weighted sampler)")
    return None, ids


def _digest_where(where: Any, ids: Int64 | None) -> str:  # Any: pyarrow is untyped
    if ids is not None:
        return hashlib.sha256(ids.tobytes()).hexdigest()
    if where is None:
        return ""
    # The expression's text abbreviates long value lists with "…", so it cannot name a file; its serialised form can.
    _, (data,) = where.__reduce__()
    return hashlib.sha256(memoryview(data)).hexdigest()


def _read_exclude(packed: FrameFiles, exclude: Sequence[str | tuple[str, int]]) -> tuple[Int64, Int64]:
    """Return excluded drive indices and global frame numbers, ascending, each once."""
    if isinstance(exclude, str):
        exclude = [exclude]
    number = {drive.name: place for place, drive in enumerate(packed.drives)} if exclude else {}
    drives, frames = set(), set()
    for tombstone in exclude:
        name, frame = (tombstone, None) if isinstance(tombstone, str) else tombstone
        if name not in number:
            raise UsageError(f"exclude names drive {name!r}, which this set does not have; it has {len(number)} drives")
        place = number[name]
        if frame is None:
            drives.add(place)
            continue
        first, last = int(packed.frame_starts[place]), int(packed.frame_starts[place + 1])
        if not 0 <= frame < last - first:
            raise UsageError(f"exclude names frame {frame} of drive {name!r}, which has frames 0 to {last - first - 1}")
        frames.add(first + int(frame))
    return np.array(sorted(drives), np.int64), np.array(sorted(frames), np.int64)
