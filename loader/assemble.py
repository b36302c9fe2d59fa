"""Items → batch contents: which fields a view's batches have, from windows and schema, and how one batch is put together.

No sensor is known by name: its kind says how its payloads become arrays, its columns are taken as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..formats import UsageError, kernel
from .column_field import ColumnField
from .decode import Decoder
from .draft import Draft, Draws, Field, Prepared, Task
from .frames import check_decodable
from .image_field import ImageField, ImagePart, native_size
from .images import Images, match_sensors
from .located import Located
from .motion_field import SweepsField, TrajectoryField
from .padding import Padding, pad
from .payloads import PayloadReader
from .plane_field import PlaneField
from .point_field import PointField
from .sweeps import Sweeps
from .table_field import TableField
from .trajectory import Trajectory

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet
    from .view import View

__all__ = ["Assembler"]


class Assembler:
    """Puts batches of one view together; has no state that changes, and may be shared by threads."""

    def __init__(
        self, packed: PackedSet, view: View, images: Sequence[Images], decoder: Decoder, padding: Sequence[Padding] = ()
    ) -> None:
        self._packed, self.view, self._padding = packed, view, padding
        self._drive_names = np.array([drive.name for drive in packed.drives], object)
        self.fields: list[Field] = _fields(packed, view, images, decoder)
        self.reads: list[ImagePart] = _reads(self.fields, packed, view)
        """Where payloads are read from: by window, place on its sensor axis, and reader."""
        keys = [field.key for field in self.fields]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise UsageError(f"two fields of the batch are called {twice[0]!r}; give one of the windows or Images another name")
        self.bfloat16 = frozenset(
            f"{field.key}.image" for field in self.fields if isinstance(field, ImageField) and field.images.dtype == "bfloat16"
        )
        """Dotted keys whose arrays hold bfloat16 bits."""
        self.is_native = kernel.available() and not padding and all(map(_is_native, self.fields))
        """Whether the work on a batch is the native core's, but for what takes a few microseconds."""

    def locate(self, items: NDArray[np.int64], draws: Draws) -> Located:
        """Find the frames of `items` (−1: nothing) and the rows of their windows; reads columns, no payloads."""
        frames = self.view.frames(items)
        windows = self.view.resolve(items, seed=draws.seed, epoch=draws.epoch, occurrence=draws.occurrence)
        there = frames >= 0
        found = frames if there.all() else frames[there]
        drives = self._packed.drive_of(found)
        stamp, frame = self._packed.frame_stamps(found), found - self._packed.frame_starts[drives]
        drive = self._drive_names[drives]
        if found is not frames:
            stamp, frame, drive = _placed(stamp, there, 0), _placed(frame, there, -1), _placed(drive, there, "")
        ahead = {field.key: field.ahead(windows) for field in self.fields}
        return Located(frames=frames, stamp=stamp, frame=frame, drive=drive, windows=windows, ahead=ahead)

    def begin(
        self, step: int, items: NDArray[np.int64], draws: Draws, located: Located | None = None
    ) -> tuple[Draft, list[Prepared]]:
        """Start a batch of `items`, located before or now, and find out what memory it takes."""
        located = self.locate(items, draws) if located is None else located
        draft = Draft(step=step, items=items, draws=draws, located=located)
        return draft, [field.prepare(draft) for field in self.fields]

    def tasks(self, draft: Draft, prepared: Sequence[Prepared], memory: Sequence[NDArray[np.uint8]]) -> list[Task]:
        """Lay the batch out in `memory` (one piece for each size, in order) and return the work that fills it."""
        pieces = iter(memory)
        return [task for part in prepared for task in part.fill([next(pieces) for _ in part.sizes])]

    def finish(self, draft: Draft) -> dict[str, Any]:  # Any: see Draft.entries
        """Return the batch's contents as arrays, all tasks being done."""
        for finisher in draft.finishers:
            finisher()
        located = draft.located
        entries = pad(draft.entries, self._padding) if self._padding else draft.entries
        return {**entries, "stamp": located.stamp, "frame": located.frame, "drive": located.drive.tolist()}


def _placed(values: NDArray[Any], places: NDArray[np.bool_], empty: Any) -> NDArray[Any]:  # Any: numbers or names
    full = np.full(places.shape, empty, values.dtype)
    full[places] = values
    return full


def _is_native(field: Field) -> bool:
    return isinstance(field, ColumnField) or (isinstance(field, PointField) and field.is_copy)


def _fields(packed: PackedSet, view: View, images: Sequence[Images], decoder: Decoder) -> list[Field]:
    fields: list[Field] = []
    cameras: dict[str, list[tuple[ImagePart, int]]] = {}
    for window, name in zip(view.windows, view.names, strict=True):
        sensors = view.sensors(name)
        for place, sensor in enumerate(map(packed.schema.sensor, sensors)):
            # One sensor: the window's name. Several of a kind: each its own, under the window's where that was given.
            key = name if len(sensors) == 1 else f"{window.name}.{sensor.name}" if window.name else sensor.name
            reader = PayloadReader(packed, sensor)
            if isinstance(window, Trajectory):
                fields.append(TrajectoryField(key, packed.timeline(sensor.name), window=name))
            elif isinstance(window, Sweeps):
                ego = packed.timeline("ego") if "ego" in packed.schema.by_name else packed.timeline(packed.schema.reference)
                fields.append(SweepsField(key, reader, window, window=name, ego=ego))
            elif sensor.codec is None:
                fields.append(ColumnField(key, sensor, packed.timeline(sensor.name), window=name, place=place))
            elif sensor.kind == "image":
                part = ImagePart(window=name, place=place, reader=reader)
                cameras.setdefault(sensor.name, []).append((part, window.length))
            elif sensor.kind == "points":
                fields.append(PointField(key, reader, window=name, place=place))
            else:
                fields.append(TableField(key, reader, window=name, place=place))
    return fields + _image_fields(cameras, images, decoder)


def _reads(fields: Sequence[Field], packed: PackedSet, view: View) -> list[ImagePart]:
    """Return what payloads the fields read. Images that no `Images` names are in no field, and not read."""
    shown = {part.reader.sensor.name for field in fields if isinstance(field, ImageField | PlaneField) for part in field.parts}
    return [
        ImagePart(window=name, place=place, reader=PayloadReader(packed, sensor))
        for name in view.names
        for place, sensor in enumerate(map(packed.schema.sensor, view.sensors(name)))
        if sensor.codec is not None and (sensor.kind != "image" or sensor.name in shown)
    ]


def _image_fields(cameras: dict[str, list[tuple[ImagePart, int]]], images: Sequence[Images], decoder: Decoder) -> list[Field]:
    """Return one field for each `Images`; without any, one for each native size.

    Image sensors that no `Images` names are not read: decoding them at full size unasked would cost most of the machine.
    """
    fields: list[Field] = []
    for look in images or _native_groups(cameras):
        parts: list[ImagePart] = []
        lengths: dict[int, str] = {}
        for name in match_sensors(look.sensors, list(cameras)):
            windows = cameras[name]
            if look.dtype != "source":
                check_decodable(windows[0][0].reader.sensor)
            # A sensor in several windows: the Images named like the window means that one.
            chosen = [pair for pair in windows if pair[0].window == look.name] or windows
            if len(chosen) > 1:
                names = ", ".join(repr(part.window) for part, _ in chosen)
                raise UsageError(f"Images {look.name!r}: sensor {name!r} is in windows {names}; call the Images like one of them")
            parts.append(chosen[0][0])
            lengths.setdefault(chosen[0][1], name)
        if len(lengths) > 1:
            listed = ", ".join(f"{name!r} has {length}" for length, name in lengths.items())
            raise UsageError(f"Images {look.name!r}: its sensors differ in payloads a sample ({listed}); use one Images for each")
        length = next(iter(lengths))
        source = look.dtype == "source"
        fields.append(PlaneField(look, parts, length) if source else ImageField(look, parts, length, decoder))
    return fields


def _native_groups(cameras: dict[str, list[tuple[ImagePart, int]]]) -> list[Images]:
    """Return one `Images` for each window and native size: "camera", or "camera_900x1600" where sizes differ."""
    groups: dict[str, dict[tuple[int, int], list[str]]] = {}
    for name, windows in cameras.items():
        for part, _ in windows:
            check_decodable(part.reader.sensor)
            groups.setdefault(part.window, {}).setdefault(native_size(part.reader), []).append(name)
    looks = []
    for window, sizes in groups.items():
        for (height, width), names in sizes.items():
            look = Images([_literal(name) for name in names], size=(height, width), name=window)
            looks.append(look if len(sizes) == 1 else replace(look, name=f"{window}_{height}x{width}"))
    return looks


def _literal(name: str) -> str:
    """Return a shell pattern that matches exactly `name`."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
