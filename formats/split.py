"""Drives divided into splits such as train and val, and how close the splits come to each other.

A drive's split is a pure function of its name (or of an attribute it shares with others) and the seed: adding drives moves no
other drive, so what was validation data yesterday is never trained on today. The shares are met on average, exactly by no
small set; the report says what came out. The split becomes the drive attribute `split`; one that the source states itself is
kept as `source_split`. Frames of one drive are never divided: neighbours in time are nearly the same picture.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from .adapters import SourceSpec
from .adapters import open_source as open_whole
from .errors import UsageError
from .packed_set import PackedSet
from .schema import EGO_TO_WORLD
from .source import DriveListing, Source, SourceDrive

__all__ = [
    "SplitGap",
    "Track",
    "open_source",
    "parse_shares",
    "set_tracks",
    "source_tracks",
    "split_gaps",
    "split_of",
    "split_spec",
]

SPLIT: Final = "split"
_SOURCE_SPLIT: Final = "source_split"
_KIND, _SHARES, _BY, _SEED = "split_kind", "split_shares", "split_by", "split_seed"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Metres between positions of a track that are compared: leakage is a matter of tens of metres.
_THIN_M: Final = 1.0
_COARSE: Final = 500


def parse_shares(text: str) -> dict[str, float]:
    """Return the shares of "train=0.8,val=0.2", which sum to one.

    Raises:
        UsageError: it is not of that form.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            share = float(value)
        except ValueError:
            share = math.nan
        if not _NAME.fullmatch(name) or name in shares or not 0 < share <= 1:
            raise UsageError(f"split {part!r} of {text!r} is not name=share; write for example train=0.8,val=0.2")
        shares[name] = share
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise UsageError(f"the shares of split {text!r} sum to {sum(shares.values()):g}, expected 1")
    return shares


def split_of(key: str, shares: Mapping[str, float], *, seed: int = 0) -> str:
    """Return the split that everything of this key belongs to."""
    digest = hashlib.sha256(f"headway split\0{seed}\0{key}".encode()).digest()
    at, border = int.from_bytes(digest[:8], "little") / 2**64, 0.0
    for name, share in shares.items():
        border += share
        if at < border:
            return name
    return list(shares)[-1]


def split_spec(spec: SourceSpec, shares: str, *, by: str = "drive", seed: int = 0) -> SourceSpec:
    """Return a spec of the same source whose drives carry a split; `by` is "drive" or the name of a drive attribute."""
    parse_shares(shares)
    options = {**spec.options, _KIND: spec.kind, _SHARES: shares, _BY: by, _SEED: seed}
    return replace(spec, kind=f"{__name__}:open_source", options=options)


def open_source(spec: SourceSpec) -> Source:
    """Open the source inside a spec made by `split_spec`."""
    options = dict(spec.options)
    kind, shares, by, seed = (options.pop(name) for name in (_KIND, _SHARES, _BY, _SEED))
    whole = open_whole(SourceSpec(kind=str(kind), path=spec.path, options=options))
    return _Split(whole, parse_shares(str(shares)), str(by), int(str(seed)))


class _Split:
    """A source whose listings say which split each drive is in."""

    def __init__(self, whole: Source, shares: Mapping[str, float], by: str, seed: int) -> None:
        self.whole = whole
        self.kind = whole.kind
        self.schema = whole.schema
        self.licence = whole.licence
        self.ignored = whole.ignored
        self._rule = shares, by, seed
        self.listings: Sequence[DriveListing] = [self._with_split(listing) for listing in whole.listings]

    def open_drive(self, name: str) -> SourceDrive:
        return self.whole.open_drive(name)

    def portion(self, drives: Sequence[str]) -> Source | None:
        """Return the part that has these drives, where the whole can be cut."""
        cut = getattr(self.whole, "portion", None)
        part = None if cut is None else cut(drives)
        return None if part is None else _Split(cast(Source, part), *self._rule)

    def _with_split(self, listing: DriveListing) -> DriveListing:
        shares, by, seed = self._rule
        attributes = dict(listing.attributes)
        if by != "drive" and by not in attributes:
            raise UsageError(
                f"cannot split by {by!r}: drive {listing.name!r} has no such attribute; it has "
                f"{', '.join(sorted(attributes)) or 'none'}; split by drive, which always works"
            )
        if SPLIT in attributes:
            attributes[_SOURCE_SPLIT] = attributes.pop(SPLIT)
        key = listing.name if by == "drive" else str(listing.attributes[by])
        return replace(listing, attributes={**attributes, SPLIT: split_of(key, shares, seed=seed)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """When and where a drive took place."""

    drive: str
    split: str
    world: str
    """Positions of drives with different worlds (cities) are not compared."""
    first_ns: int
    last_ns: int
    positions: NDArray[np.float64]
    """(n, 3) metres; empty without poses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitGap:
    """How close two splits come; the closer, the less one says about the other's unseen data."""

    splits: tuple[str, str]
    time_s: float
    """Smallest time between a drive of one and a drive of the other; 0 where two overlap."""
    time_drives: tuple[str, str]
    distance_m: float | None
    """Smallest distance between positions; None where no two drives with poses share a world. Sources that start every drive
    at the origin make this small without meaning."""
    distance_drives: tuple[str, str] | None

    def __str__(self) -> str:
        text = f"{self.splits[0]} and {self.splits[1]}: {self.time_s:.1f} s apart ({' and '.join(self.time_drives)})"
        if self.distance_m is not None and self.distance_drives is not None:
            return f"{text}, {self.distance_m:.1f} m apart ({' and '.join(self.distance_drives)})"
        return f"{text}, no poses to compare"


def split_gaps(tracks: Iterable[Track]) -> tuple[SplitGap, ...]:
    """Return the gap of each two splits."""
    of: dict[str, list[Track]] = {}
    for track in tracks:
        of.setdefault(track.split, []).append(track)
    gaps = []
    for a, b in combinations(sorted(of), 2):
        time_s, time_drives = _time_gap(of[a], of[b])
        found = _distance(of[a], of[b])
        gaps.append(
            SplitGap(
                splits=(a, b),
                time_s=time_s,
                time_drives=time_drives,
                distance_m=None if found is None else found[0],
                distance_drives=None if found is None else found[1],
            )
        )
    return tuple(gaps)


def set_tracks(packed: PackedSet) -> Iterable[Track]:
    """Yield the tracks of a set's drives that are in a split; positions come from its ego timeline, or any sensor's poses."""
    sensor = _posed(packed.schema.sensors, packed.schema.reference)
    for at, drive in enumerate(packed.drives):
        if SPLIT in drive.attributes:
            positions = np.empty((0, 3))
            if sensor is not None:
                timeline = packed.timeline(sensor)
                rows = np.arange(int(timeline.starts[at]), int(timeline.starts[at + 1]))
                positions = timeline.take(EGO_TO_WORLD, rows)[:, :3]
            stamps = packed.timeline(packed.schema.reference).stamps(at)
            yield _track(drive.name, drive.attributes, stamps, positions)


def source_tracks(source: Source) -> Iterable[Track]:
    """Yield the same from a source that is not packed yet; opens each drive, reads no payload."""
    sensor = _posed(source.schema.sensors, source.schema.reference)
    for listing in source.listings:
        if SPLIT in listing.attributes:
            timelines = source.open_drive(listing.name).timelines
            posed = timelines.get(sensor) if sensor is not None else None
            positions = posed.columns[EGO_TO_WORLD][:, :3] if posed is not None else np.empty((0, 3))
            yield _track(listing.name, listing.attributes, timelines[source.schema.reference].stamps, positions)


def _posed(sensors: Sequence[Any], reference: str) -> str | None:  # Any: Sensor, of both schemas
    posed = [sensor.name for sensor in sensors if sensor.has(EGO_TO_WORLD)]
    return next((name for name in ("ego", reference, *posed) if name in posed), None)


def _track(drive: str, attributes: Mapping[str, Any], stamps: Any, positions: NDArray[np.float64]) -> Track:
    """Thin the positions to one a metre; those that are not finite are left out."""
    positions = positions[np.isfinite(positions).all(axis=1)]
    if len(positions):
        way = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(positions, axis=0), axis=1))])
        positions = positions[np.unique(np.searchsorted(way, np.arange(0.0, way[-1] + _THIN_M, _THIN_M)).clip(max=len(way) - 1))]
    world = str(attributes.get("location", attributes.get("city", "")))
    return Track(
        drive=drive,
        split=str(attributes[SPLIT]),
        world=world,
        first_ns=int(stamps[0]),
        last_ns=int(stamps[-1]),
        positions=positions,
    )


def _time_gap(left: Sequence[Track], right: Sequence[Track]) -> tuple[float, tuple[str, str]]:
    """Sweep over all drives by their start, remembering the latest end on each side."""
    ordered = sorted([(track.first_ns, 0, track) for track in left] + [(track.first_ns, 1, track) for track in right], key=_start)
    latest: list[Track | None] = [None, None]
    best: tuple[int, tuple[str, str]] | None = None
    for first_ns, side, track in ordered:
        other = latest[1 - side]
        if other is not None:
            gap = max(0, first_ns - other.last_ns)
            if best is None or gap < best[0]:
                pair = (other.drive, track.drive) if side else (track.drive, other.drive)
                best = gap, pair
        mine = latest[side]
        if mine is None or track.last_ns > mine.last_ns:
            latest[side] = track
    assert best is not None
    return best[0] / 1e9, best[1]


def _start(item: tuple[int, int, Track]) -> tuple[int, int, str]:
    return item[0], item[1], item[2].drive


def _distance(left: Sequence[Track], right: Sequence[Track]) -> tuple[float, tuple[str, str]] | None:
    best: tuple[float, tuple[str, str]] | None = None
    for world in sorted({track.world for track in left} & {track.world for track in right}):
        sides = [[track for track in side if track.world == world and len(track.positions)] for side in (left, right)]
        if not all(sides):
            continue
        points = [np.concatenate([track.positions for track in side]) for side in sides]
        owner = [np.repeat(np.arange(len(side)), [len(track.positions) for track in side]) for side in sides]
        distance, i, j = _closest(points[0], points[1])
        if best is None or distance < best[0]:
            best = distance, (sides[0][owner[0][i]].drive, sides[1][owner[1][j]].drive)
    return best


def _closest(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, int, int]:
    """Return the smallest distance between two sets of points, exactly, and the indices of the pair.

    A few points give an upper bound; within strips of that width along x, all pairs are compared, and each strip lowers it.
    """
    some_a, some_b = (np.unique(np.linspace(0, len(side) - 1, _COARSE).astype(np.int64)) for side in (a, b))
    best, i, j = _brute(a, b, some_a, some_b)
    order_a, order_b = np.argsort(a[:, 0], kind="stable"), np.argsort(b[:, 0], kind="stable")
    x = b[order_b, 0]
    for start in range(0, len(order_a), _COARSE):
        mine = order_a[start : start + _COARSE]
        low, high = np.searchsorted(x, [a[mine[0], 0] - best, a[mine[-1], 0] + best], side="left")
        near = order_b[low : high + 1]
        y = b[near, 1]
        near = near[(y >= a[mine, 1].min() - best) & (y <= a[mine, 1].max() + best)]
        for at in range(0, len(near), 1 << 14):
            found = _brute(a, b, mine, near[at : at + (1 << 14)])
            best, i, j = min((best, i, j), found)
    return best, i, j


def _brute(
    a: NDArray[np.float64], b: NDArray[np.float64], of_a: NDArray[np.int64], of_b: NDArray[np.int64]
) -> tuple[float, int, int]:
    square = sum(np.square(a[of_a, None, axis] - b[None, of_b, axis]) for axis in range(3))
    at = int(np.argmin(square))
    row, column = divmod(at, len(of_b))
    return float(np.sqrt(np.asarray(square).ravel()[at])), int(of_a[row]), int(of_b[column])
