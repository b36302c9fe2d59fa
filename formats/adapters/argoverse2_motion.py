"""Argoverse 2 motion forecasting: a drive is a scenario, a frame one of its 10 Hz steps (50 observed, up to 60 to predict).

Sensors: "tracks" (the reference: a table of every object present at the step, world frame) and "ego" (the track "AV": pose in
the ground plane and velocity). Tracks have gaps: an object absent at a step has no row there. Stamps are the scenario's start
plus 0.1 s a step; the source keeps the start as a float64, so it is exact to 64 ns. The vector map is attached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import Problem, SourceError, UsageError
from ..schema import EGO_TO_WORLD, Column, Schema, Sensor
from ..source import Attachment, DriveListing, Ignored, Payload, SourceDrive, SourceTimeline
from .argoverse2_files import read_columns

__all__ = ["Argoverse2Motion"]

OBJECT_TYPES: Final = (
    "vehicle", "pedestrian", "motorcyclist", "cyclist", "bus", "static", "background", "construction", "riderless_bicycle",
    "unknown",
)  # fmt: skip
_ROLES: Final = ("fragment", "unscored", "scored", "focal")
_STEP_NS: Final = 100_000_000
_MOST_STEPS: Final = 10_000
_COLUMNS: Final = {
    "observed": "bool", "track_id": "str", "object_type": "str", "object_category": "int8", "timestep": "int64",
    "position_x": "float64", "position_y": "float64", "heading": "float64", "velocity_x": "float64", "velocity_y": "float64",
    "start_timestamp": "float64",
}  # fmt: skip
_FACTS: Final = ("city", "focal_track_id", "slice_id", "map_id")
_TRACKS: Final = (
    Column(name="position", dtype="float64", shape=(2,), unit="m", frame="world"),
    Column(name="heading", dtype="float64", unit="rad", frame="world"),
    Column(name="velocity", dtype="float64", shape=(2,), unit="m/s", frame="world"),
    Column(name="category", dtype="int32", categories=OBJECT_TYPES),
    Column(name="track_id", dtype="str"),
    Column(name="role", dtype="int8", categories=_ROLES),
    Column(name="observed", dtype="bool"),
)


class Argoverse2Motion:
    """Forecasting scenarios, listed by their first rows."""

    kind = "argoverse2"

    def __init__(self, root: Path, scenarios: Mapping[str, Path], *, licence: str) -> None:
        self.licence, self._root = licence, root
        problems: list[Problem] = []
        ignored: list[Ignored] = []
        self._files: dict[str, Path] = {}
        listings = []
        for name, folder in scenarios.items():
            files = sorted(folder.glob("scenario_*.parquet"))
            where = files[0].relative_to(root).as_posix()
            if len(files) > 1:
                problems.append(
                    Problem(path=where, reason="is one of several scenarios of this folder; keep one", code="duplicate")
                )
            try:
                attributes = _facts(files[0])
            except ValueError as error:
                problems.append(Problem(path=where, reason=f"{error}; download it again", code="layout"))
                continue
            self._files[name] = files[0]
            ignored += [
                Ignored(path=entry.relative_to(root).as_posix(), reason="no part of the forecasting layout that is taken")
                for entry in sorted(folder.iterdir())
                if entry != files[0] and not _is_map(entry)
            ]
            size = sum(entry.stat().st_size for entry in folder.iterdir() if entry == files[0] or _is_map(entry))
            listings.append(DriveListing(name=name, source_bytes=size, attributes={"split": folder.parent.name, **attributes}))
        if problems:
            raise SourceError(f"cannot pack Argoverse 2 source {str(root)!r}: {len(problems)} problems", problems)
        self.listings, self.ignored = listings, ignored
        pose = Column(name=EGO_TO_WORLD, dtype="float64", shape=(7,), frame="world")
        velocity = Column(name="velocity", dtype="float64", shape=(2,), unit="m/s", frame="world")
        self.schema = Schema(
            reference="tracks",
            sensors=(
                Sensor(name="tracks", kind="table", codec="table", fields=_TRACKS, frame="world"),
                Sensor(name="ego", kind="array", codec=None, columns=(pose, velocity)),
            ),
        )

    schema: Schema
    listings: Sequence[DriveListing]
    ignored: Sequence[Ignored]

    def open_drive(self, name: str) -> SourceDrive:
        """Open one scenario."""
        if name not in self._files:
            raise UsageError(f"no drive {name!r} in this source; it has {len(self._files)}, such as {next(iter(self._files))!r}")
        path = self._files[name]
        where = path.relative_to(self._root).as_posix()
        try:
            rows, start = _read(path)
        except (ValueError, OSError) as error:
            raise SourceError(f"cannot open Argoverse 2 scenario {where}: {error}; download it again") from error
        steps, starts = np.unique(rows["timestep"], return_index=True)
        starts = np.append(starts, len(rows["timestep"]))
        frames = np.arange(len(steps))

        def read(row: int) -> Payload:
            part = slice(int(starts[row]), int(starts[row + 1]))
            return {column.name: _part(rows[column.name], part) for column in _TRACKS}

        def origin(row: int) -> str:
            return f"{where}, step {int(steps[row])}"

        stamps = start + steps * _STEP_NS
        timelines = {"tracks": SourceTimeline(stamps=stamps, columns={}, read=read, origin=origin, own=frames)}
        ego = np.flatnonzero(rows["track_id"] == "AV")
        if len(ego):
            half = rows["heading"][ego] / 2
            zero = np.zeros(len(ego))
            pose = np.stack([*rows["position"][ego].T, zero, np.cos(half), zero, zero, np.sin(half)], 1)
            at = np.searchsorted(rows["timestep"][ego], steps)
            own = np.where(np.isin(steps, rows["timestep"][ego]), at, -1).astype(np.int64)
            timelines["ego"] = SourceTimeline(
                stamps=start + rows["timestep"][ego] * _STEP_NS,
                columns={EGO_TO_WORLD: pose, "velocity": rows["velocity"][ego]},
                own=own,
            )
        attachments = [
            Attachment(name=f"map/{entry.name}", media_type="application/json", read=entry.read_bytes)
            for entry in sorted(path.parent.iterdir())
            if _is_map(entry)
        ]
        return SourceDrive(timelines=timelines, attachments=attachments)


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], int]:
    """Return the rows sorted by step and track, under the names of `_TRACKS`, and the start in ns."""
    columns = read_columns(path, _COLUMNS)
    steps, start = columns["timestep"], columns["start_timestamp"]
    if len(steps) == 0:
        raise ValueError("no rows")
    if steps.min() < 0 or steps.max() >= _MOST_STEPS or len(np.unique(start)) != 1 or not 0 <= start[0] < 2**63:
        raise ValueError(f"steps {int(steps.min())} to {int(steps.max())} of starts {np.unique(start)[:3].tolist()}")
    tracks = columns["track_id"].tolist()
    if len(set(zip(steps.tolist(), tracks, strict=True))) != len(steps):
        raise ValueError("a track has two rows for one step")
    if unknown := sorted(set(columns["object_type"].tolist()) - set(OBJECT_TYPES)):
        raise ValueError(f"object type {unknown[0]!r} is none of {', '.join(OBJECT_TYPES)}")
    if ((columns["object_category"] < 0) | (columns["object_category"] >= len(_ROLES))).any():
        raise ValueError(f"object categories {np.unique(columns['object_category']).tolist()}, expected 0 to {len(_ROLES) - 1}")
    order = np.lexsort((np.unique(columns["track_id"].astype(str), return_inverse=True)[1], steps))
    rows = {
        "timestep": steps,
        "position": np.stack([columns["position_x"], columns["position_y"]], 1),
        "heading": columns["heading"],
        "velocity": np.stack([columns["velocity_x"], columns["velocity_y"]], 1),
        "category": np.array([OBJECT_TYPES.index(name) for name in columns["object_type"].tolist()], np.int32),
        "track_id": columns["track_id"],
        "role": columns["object_category"],
        "observed": columns["observed"],
    }
    return {name: values[order] for name, values in rows.items()}, int(start[0])


def _facts(path: Path) -> dict[str, str | int]:
    """Return what holds for the whole scenario, from its first row."""
    try:
        with pq.ParquetFile(path) as file:
            if missing := [name for name in _FACTS if name not in file.schema_arrow.names]:
                raise ValueError(f"no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}")
            first = next(file.iter_batches(batch_size=1, columns=list(_FACTS)), None)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"not readable as parquet: {error}") from error
    if first is None or first.num_rows == 0:
        raise ValueError("no rows")
    row = {name: first.column(name)[0].as_py() for name in _FACTS}
    return {name: value if isinstance(value, int) else str(value) for name, value in row.items()}


def _part(values: NDArray[Any], part: slice) -> Any:  # Any: a column of a table: an array, or a list of str
    return values[part].tolist() if values.dtype.kind == "O" else values[part]


def _is_map(path: Path) -> bool:
    return path.name.startswith("log_map_archive_") and path.suffix == ".json" and path.is_file()
