"""nuScenes v1.0 and Lyft Level 5 as a source: a drive is a scene, a frame is a sample (key frame, 2 Hz).

Sensors: "sample" (the reference: a row is a sample, its token and ego pose), each camera, LiDAR and radar channel with key
frames and sweeps once each at its own stamp with its own pose, "boxes" (a table per sample, world frame), "ego" (all poses of
the scene by stamp) and "<LIDAR>_lidarseg" where those labels are. Key frames are tied to their sample; sweeps to none.
Intrinsic matrices are taken as they are: nuScenes does not say where in a pixel its origin lies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from ..errors import UsageError
from ..schema import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, Camera, Column, Schema, Sensor
from ..source import DriveListing, Ignored, SourceDrive
from .nuscenes_check import check_files, check_rows, choose, find_tables
from .nuscenes_drive import BOXES, EGO, LABELS, REFERENCE, SceneDrive
from .nuscenes_files import LIDAR_LAYOUTS, RADAR_FIELDS, Folder, Layout
from .nuscenes_links import load_tables
from .nuscenes_portion import cut_tables
from .nuscenes_tables import Findings
from .registry import SourceSpec

__all__ = ["NuScenes", "NuScenesOptions", "open_source"]

_TO_WORLD: Final = Column(name=EGO_TO_WORLD, dtype="float64", shape=(7,), frame="world")
_TO_EGO: Final = Column(name=SENSOR_TO_EGO, dtype="float64", shape=(7,), frame="ego")
_CAMERA_COLUMNS: Final = (
    Column(name=INTRINSICS, dtype="float64", shape=(3, 3), unit="px"),
    _TO_EGO,
    _TO_WORLD,
    Column(name="width", dtype="int32", unit="px"),
    Column(name="height", dtype="int32", unit="px"),
)
_LICENCES: Final = {
    "v1.0-synthetic": "synthetic drives of headway's own making: Apache-2.0",
    "v1.01": "Lyft Level 5 perception data: CC BY-NC-SA 4.0",
    "v1.0": "nuScenes: CC BY-NC-SA 4.0 and the Motional dataset terms (non-commercial)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NuScenesOptions:
    """How to read a nuScenes source."""

    version: str | None = None
    """Folder of the tables, such as "v1.0-trainval"; None takes the only one there is."""
    split: str | None = None
    """A file of scene names (one a line, or a JSON list), "mini_train", "mini_val", or one scene's name; None takes all."""
    sensors: tuple[str, ...] = ()
    """Names or patterns ("CAM_*") of channels, "boxes", "ego", …; empty takes all. Files of others need not be there."""
    points_codec: Literal["points-lossless", "points-raw"] = "points-lossless"
    """How points are stored; both give every bit back."""
    points_layout: Layout = "xyzir"
    """Fields of a LiDAR file, all float32: nuScenes and Lyft write x y z intensity ring."""
    allow_missing: bool = False
    """Leave out rows whose file is not on disk (a download without sweeps) instead of refusing; each is listed as ignored."""
    bad_images: Literal["fail", "reject", "keep"] = "fail"
    """As in `PackOptions`: with "reject" or "keep", empty images are no reason to refuse the source; the packer lists them."""
    drop_nan: bool = False
    """As in `PackOptions`: let points without a finite position pass, for the packer to leave out. Not with lidarseg labels."""
    licence: str | None = None
    """What the manifest says about the licence; None for the dataset's own."""
    table_bytes: int = 8 << 30
    """Largest table read."""

    def __post_init__(self) -> None:
        if self.points_layout not in LIDAR_LAYOUTS:
            raise UsageError(f"points_layout {self.points_layout!r} is none of {', '.join(LIDAR_LAYOUTS)}")
        if self.points_codec not in ("points-lossless", "points-raw"):
            raise UsageError(f"points_codec {self.points_codec!r} is none of points-lossless, points-raw")


class NuScenes:
    """A nuScenes or Lyft dataset, listed and checked.

    Building it reads all tables and looks at every file they name; it raises one `SourceError` with everything that is
    wrong. It holds the metadata as arrays (about 190 bytes a sample_data row) and no open files.

    >>> NuScenes("data/nuscenes", NuScenesOptions(version="v1.0-mini"))  # doctest: +SKIP
    """

    kind = "nuscenes"

    def __init__(self, path: str | Path, options: NuScenesOptions | None = None) -> None:
        self._options = options = options or NuScenesOptions()
        source = Path(path)
        folder = find_tables(source, options.version)
        shown = folder.relative_to(source).as_posix()
        roots = [folder.parent, source] if folder not in (source, source / folder.name) else [source]
        self._folder = Folder(roots)
        findings = Findings()
        self._tables = tables = load_tables(folder, shown, findings, limit_bytes=options.table_bytes)
        lidars = [channel for channel, modality in tables.channels if modality == "lidar"]
        extra = [BOXES] * (tables.annotations is not None) + [EGO]
        extra += [f"{name}{LABELS}" for name in lidars if any(tables.channel_of(label.row) == name for label in tables.labels)]
        scenes, channels, taken = choose(tables, options.split, options.sensors, extra, findings)
        check_rows(
            tables,
            np.isin(tables.sample_scene[tables.row_sample], scenes) & np.isin(tables.row_channel, channels),
            shown,
            findings,
        )
        self._chosen, self.ignored = check_files(
            tables,
            scenes,
            channels,
            folder=self._folder,
            tables_folder=folder,
            shown=shown,
            layout=options.points_layout,
            labels=any(name.endswith(LABELS) for name in taken),
            allow_missing=options.allow_missing,
            allow_empty_images=options.bad_images != "fail",
            findings=findings,
        )
        self._numbers: dict[str, int] = {}
        self.listings = self._list(shown, findings)
        findings.raise_if_any(f"cannot pack nuScenes source {str(source)!r}")
        version = folder.name
        self.licence = options.licence or next((text for start, text in _LICENCES.items() if version.startswith(start)), "")
        self.schema = self._schema(taken)

    schema: Schema
    licence: str
    listings: Sequence[DriveListing]
    ignored: Sequence[Ignored]

    def open_drive(self, name: str) -> SourceDrive:
        """Open one scene."""
        if name not in self._numbers:
            raise UsageError(
                f"no drive {name!r} in this source; it has {len(self._numbers)}, such as {next(iter(self._numbers), '')!r}"
            )
        drive = SceneDrive(
            tables=self._tables,
            chosen=self._chosen,
            folder=self._folder,
            layout=self._options.points_layout,
            drop_nan=self._options.drop_nan,
            schema=self.schema,
            scene=self._numbers[name],
        )
        return drive.open()

    def portion(self, drives: Sequence[str]) -> NuScenes:
        """Return the same source with these drives only; pickled, it takes no more room than they need."""
        part = object.__new__(NuScenes)
        part.__dict__.update(self.__dict__)  # shares the tables with the whole: they are cut when it is pickled
        part._numbers = {name: self._numbers[name] for name in drives}
        part.listings = [listing for listing in self.listings if listing.name in part._numbers]
        part.ignored = []
        return part

    def __getstate__(self) -> dict[str, Any]:  # Any: the attributes
        """Return what a pickle of this source holds: the tables of its own drives."""
        state = self.__dict__.copy()
        scenes = sorted(self._numbers.values())
        if len(scenes) < len(self._tables.scenes):
            state["_tables"], state["_chosen"] = cut_tables(self._tables, self._chosen, scenes)
            state["_numbers"] = {name: scenes.index(number) for name, number in self._numbers.items()}
        return state

    def _list(self, shown: str, findings: Findings) -> list[DriveListing]:
        tables, listings = self._tables, []
        scene_of_row = tables.sample_scene[tables.row_sample]
        held = self._chosen.sizes >= 0
        bytes_of = np.bincount(scene_of_row[held], self._chosen.sizes[held].astype(np.float64), minlength=len(tables.scenes))
        for number in self._chosen.scenes:
            scene = tables.scenes[number]
            if not (scene_of_row == number).any():
                if not findings.unread:
                    reason = f"scene {scene.name!r} has no sensor data; leave it out with --split"
                    findings.add("absent", f"{shown}/scene.json", reason)
                continue
            attributes: dict[str, str | int | float | bool] = {"description": scene.description, "scene_token": scene.token}
            if 0 <= scene.log < len(tables.logs):
                log = tables.logs[scene.log]
                attributes |= {"location": log.location, "vehicle": log.vehicle, "date": log.date, "log": log.logfile}
            self._numbers[scene.name] = number
            listings.append(DriveListing(name=scene.name, source_bytes=int(bytes_of[number]), attributes=attributes))
        if not self._chosen.scenes and not findings.counts:
            findings.add("absent", f"{shown}/scene.json", "no scene; check --version and --split")
        return listings

    def _schema(self, taken: frozenset[str]) -> Schema:
        tables, options = self._tables, self._options
        token = Column(name="token", dtype="uint8", shape=(max(1, tables.sample_token.dtype.itemsize),))
        sensors = [Sensor(name=REFERENCE, kind="array", codec=None, columns=(_TO_WORLD, token))]
        for channel in self._chosen.channels:
            name, modality = tables.channels[channel]
            if name.lower() in (REFERENCE, BOXES, EGO):
                raise UsageError(
                    f"cannot pack channel {name!r}: headway gives that name to a sensor of its own; leave it out (--sensors)"
                )
            if modality == "camera":
                sensors.append(self._camera(channel, name))
            else:
                fields = RADAR_FIELDS if modality == "radar" else LIDAR_LAYOUTS[options.points_layout]
                sensors.append(
                    Sensor(name=name, kind="points", codec=options.points_codec, columns=(_TO_EGO, _TO_WORLD), fields=fields)
                )
        if BOXES in taken:
            sensors.append(_boxes_sensor(tables.categories))
        if EGO in taken:
            sensors.append(Sensor(name=EGO, kind="array", codec=None, columns=(_TO_WORLD,)))
        label = Column(name="label", dtype="uint8", categories=tuple(tables.point_labels))
        for name in sorted(taken):
            if name.endswith(LABELS):
                sensors.append(Sensor(name=name, kind="points", codec=options.points_codec, fields=(label,)))
        return Schema(reference=REFERENCE, sensors=tuple(sensors))

    def _camera(self, channel: int, name: str) -> Sensor:
        rows = np.flatnonzero((self._tables.row_channel == channel) & (self._chosen.sizes >= 0))
        png = {self._tables.row_file[row].lower().endswith(b".png") for row in rows[:1]}
        return Sensor(name=name, kind="image", codec="png" if True in png else "jpeg", columns=_CAMERA_COLUMNS, camera=Camera())


def open_source(spec: SourceSpec) -> NuScenes:
    """Return the nuScenes source a spec names; options are the fields of `NuScenesOptions`."""
    known = {field.name for field in dataclasses.fields(NuScenesOptions)}
    for name in spec.options:
        if name not in known:
            raise UsageError(f"nuscenes has no option {name!r}; it has {', '.join(sorted(known))}")
    options = dict(spec.options)
    if isinstance(options.get("sensors"), str):
        options["sensors"] = tuple(str(options["sensors"]).split(","))
    return NuScenes(spec.path, NuScenesOptions(**options))  # type: ignore[arg-type]  # plain values from the command line, validated in __post_init__


def _boxes_sensor(categories: Sequence[str]) -> Sensor:
    return Sensor(
        name=BOXES,
        kind="table",
        codec="table",
        columns=(_TO_WORLD,),
        frame="world",
        fields=(
            Column(name="centre", dtype="float64", shape=(3,), unit="m", frame="world"),
            Column(name="size", dtype="float64", shape=(3,), unit="m"),
            Column(name="rotation", dtype="float64", shape=(4,), frame="world"),
            Column(name="velocity", dtype="float64", shape=(3,), unit="m/s", frame="world"),
            Column(name="category", dtype="int32", categories=tuple(categories)),
            Column(name="track_id", dtype="str"),
            Column(name="attributes", dtype="str"),
            Column(name="visibility", dtype="int8"),
            Column(name="lidar_points", dtype="int32"),
            Column(name="radar_points", dtype="int32"),
        ),
    )
