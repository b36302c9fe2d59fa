"""What a set contains: its sensors, what a payload of each holds, and which columns each timeline has.

A schema is plain data: it goes into the manifest as canonical JSON, the set id starts from it, and every batch field is
derived from it. Nothing about a dataset is known to the code that is not said here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, get_args

import numpy as np

from .errors import SetError, UsageError

__all__ = [
    "EGO_TO_WORLD",
    "INTRINSICS",
    "PACK_AFFINE",
    "SENSOR_TO_EGO",
    "Camera",
    "Column",
    "ImageEdit",
    "Kind",
    "Schema",
    "Sensor",
    "canonical_json",
]

Kind = Literal["image", "points", "array", "text", "table"]
Codec = Literal["jpeg", "png", "raw", "video", "points-raw", "points-lossless", "points-quantised", "array", "text", "table"]
Frame = Literal["", "sensor", "ego", "world"]

# Column names that mean the same in every set. Poses are float64 (7,): x y z in metres, then a unit quaternion w x y z
# (w first); `a_to_b` takes coordinates in frame a to frame b. Ego: x forward, y left, z up. Cameras: x right, y down,
# z forward. The centre of the top-left pixel is (0.5, 0.5) in every intrinsic matrix of a set.
SENSOR_TO_EGO: Final = "sensor_to_ego"
EGO_TO_WORLD: Final = "ego_to_world"
INTRINSICS: Final = "intrinsics"
# float64 (3, 3) of an edited image: source pixels → stored pixels. `intrinsics` have it in them already.
PACK_AFFINE: Final = "pack_affine"

_DTYPES: Final = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "str",
)
_MAX_NAME: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One named value: of a timeline row, of a point, of a table row, or the element of an array."""

    name: str
    dtype: str
    """numpy name (little-endian), or "str", which only tables may hold."""
    shape: tuple[int, ...] = ()
    """Shape of one value; () for a scalar."""
    unit: str = ""
    """"m", "rad", "m/s", "ns", "px"; empty where there is none."""
    frame: Frame = ""
    """Coordinate frame of geometric values."""
    categories: tuple[str, ...] = ()
    """Names behind the integers of a class column, as the source writes them."""

    def __post_init__(self) -> None:
        _check_name("column", self.name)
        if self.dtype not in _DTYPES:
            raise UsageError(f"column {self.name!r}: dtype {self.dtype!r} is none of {', '.join(_DTYPES)}")
        if any(side < 1 for side in self.shape):
            raise UsageError(f"column {self.name!r}: shape {self.shape} has a side below 1")

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The little-endian numpy dtype of one element."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def width(self) -> int:
        """Bytes of one value."""
        return self.numpy_dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """How an image sensor maps space to pixels; per-row `intrinsics` and `distortion` columns hold the numbers."""

    model: Literal["pinhole", "brown", "fisheye"] = "pinhole"
    """pinhole: K only, images undistorted. brown: k1 k2 p1 p2 k3 …  fisheye: Kannala–Brandt k1…k4."""
    colour: Literal["rgb", "mono", "depth", "bayer_rggb", "bayer_bggr", "bayer_grbg", "bayer_gbrg"] = "rgb"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageEdit:
    """What packing did to every image of a sensor: cut `crop`, then scale, then encode anew.

    The stored bytes are not the source's; `intrinsics`, `width` and `height` are those of the stored pixels, and the column
    `pack_affine` says per image which pixel came from where, so that nobody applies it a second time.
    """

    crop: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Source pixels cut off at top, bottom, left and right."""
    scale: float = 1.0
    """Stored ÷ cropped size, above 0 and at most 1; sizes are rounded to whole pixels, each side by itself."""
    jpeg_quality: int | None = None
    """1 to 100 for JPEGs; None: 95 where crop or scale make encoding necessary."""

    def __post_init__(self) -> None:
        sides = self.crop
        if len(sides) != 4 or any(type(side) is not int or side < 0 for side in sides):
            raise UsageError(f"crop must be four whole numbers of pixels from 0 (top, bottom, left, right), found {sides!r}")
        if not 0 < self.scale <= 1:
            raise UsageError(f"scale must be above 0 and at most 1, found {self.scale!r}; enlarging at pack time gains nothing")
        if self.jpeg_quality is not None and not 1 <= self.jpeg_quality <= 100:
            raise UsageError(f"jpeg_quality must be 1 to 100, found {self.jpeg_quality!r}")

    @property
    def moves_pixels(self) -> bool:
        """Whether it changes where a pixel is: crop or scale."""
        return any(self.crop) or self.scale != 1


@dataclass(frozen=True, kw_only=True)
class Sensor:
    """One named source of a drive: what its payloads are and which columns each of its rows carries."""

    name: str
    kind: Kind
    codec: Codec | None
    """How payloads are stored; None for a timeline of columns only (poses, CAN, states)."""
    columns: tuple[Column, ...] = ()
    """Small fixed-size values of each row, besides its stamp."""
    fields: tuple[Column, ...] = ()
    """Inside a payload: the columns of points or of a table, or the one element of an array. In storage order."""
    camera: Camera | None = None
    frame: Frame = "sensor"
    """Frame of the payload's coordinates."""
    deskewed: bool = False
    """Points only: ego motion during the sweep already taken out."""
    edit: ImageEdit | None = None
    """Images only: what packing did to them; None: their bytes are the source's."""

    def __post_init__(self) -> None:
        _check_name("sensor", self.name)
        if self.kind not in get_args(Kind):
            raise UsageError(f"sensor {self.name!r}: kind {self.kind!r} is none of {', '.join(get_args(Kind))}")
        for group in (self.columns, self.fields):
            names = [column.name for column in group]
            if len({name.lower() for name in names}) != len(names):
                raise UsageError(f"sensor {self.name!r}: two columns share a name (upper and lower case count as equal): {names}")
        if any(column.dtype == "str" for column in self.columns):
            raise UsageError(
                f"sensor {self.name!r}: timeline columns are of fixed size; text belongs into a text or table payload"
            )
        if {"stamp", "payload", "own", "hash", "offset", "length"} & {column.name for column in self.columns}:
            raise UsageError(f"sensor {self.name!r}: stamp, payload, own, hash, offset and length are the set's own columns")
        if self.kind != "table" and any(column.dtype == "str" for column in self.fields):
            raise UsageError(f"sensor {self.name!r}: only tables hold text columns")
        if (self.kind == "image") != (self.camera is not None):
            raise UsageError(f"sensor {self.name!r}: image sensors, and only they, state a camera")
        if self.kind in ("points", "table") and self.codec is not None and not self.fields:
            raise UsageError(f"sensor {self.name!r}: kind {self.kind!r} needs fields")
        if self.kind == "array" and self.codec is not None and len(self.fields) != 1:
            raise UsageError(f"sensor {self.name!r}: an array payload has exactly one field, its element")

    @cached_property
    def record_dtype(self) -> np.dtype[Any]:
        """Packed structured dtype of one point (or one array element): the fields in storage order."""
        return np.dtype([(field.name, field.numpy_dtype, field.shape) for field in self.fields])

    def column(self, name: str) -> Column:
        """Return the timeline column `name`."""
        for column in self.columns:
            if column.name == name:
                return column
        have = ", ".join(column.name for column in self.columns) or "none"
        raise UsageError(f"sensor {self.name!r} has no column {name!r}; it has: {have}")

    def has(self, name: str) -> bool:
        """Say whether the timeline has a column `name`."""
        return any(column.name == name for column in self.columns)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The sensors of a set, by name, and the one whose rows define its frames."""

    reference: str
    sensors: tuple[Sensor, ...]

    def __post_init__(self) -> None:
        names = [sensor.name for sensor in self.sensors]
        if len({name.lower() for name in names}) != len(names):
            raise UsageError(f"two sensors share a name (upper and lower case count as equal): {sorted(names)}")
        if self.reference not in names:
            raise UsageError(f"reference sensor {self.reference!r} is none of {', '.join(sorted(names))}")
        object.__setattr__(self, "sensors", tuple(sorted(self.sensors, key=lambda sensor: sensor.name)))

    def sensor(self, name: str) -> Sensor:
        """Return the sensor `name`."""
        found = self.by_name.get(name)
        if found is None:
            raise UsageError(f"no sensor {name!r} in this set; it has: {', '.join(self.by_name)}")
        return found

    @cached_property
    def by_name(self) -> Mapping[str, Sensor]:
        """Sensors by name, in name order."""
        return {sensor.name: sensor for sensor in self.sensors}

    def to_json(self) -> dict[str, Any]:
        """Return the schema as plain JSON data; defaults are left out."""
        return {"reference": self.reference, "sensors": [_sensor_to_json(sensor) for sensor in self.sensors]}

    @staticmethod
    def from_json(data: object) -> Schema:
        """Rebuild a schema from `to_json` data, refusing anything it does not know."""
        if not isinstance(data, dict) or set(data) != {"reference", "sensors"} or not isinstance(data["sensors"], list):
            raise SetError("manifest: 'schema' must be an object with 'reference' and 'sensors'")
        try:
            return Schema(reference=data["reference"], sensors=tuple(_sensor_from_json(item) for item in data["sensors"]))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise SetError(f"manifest: schema cannot be read: {error}") from error


def canonical_json(data: object) -> bytes:
    """Encode plain data as JSON in one way only: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _check_name(what: str, name: str) -> None:
    if (
        not isinstance(name, str)
        or not name
        or len(name.encode()) > _MAX_NAME
        or any(ord(char) < 32 or ord(char) == 127 for char in name)
    ):
        raise UsageError(f"{what} name {name!r} must be 1 to {_MAX_NAME} bytes of UTF-8 without control characters")


def _column_to_json(column: Column) -> dict[str, Any]:
    full = {
        "name": column.name,
        "dtype": column.dtype,
        "shape": list(column.shape),
        "unit": column.unit,
        "frame": column.frame,
        "categories": list(column.categories),
    }
    return {key: value for key, value in full.items() if value}


def _sensor_to_json(sensor: Sensor) -> dict[str, Any]:
    full = {
        "name": sensor.name,
        "kind": sensor.kind,
        "codec": sensor.codec,
        "columns": [_column_to_json(column) for column in sensor.columns],
        "fields": [_column_to_json(column) for column in sensor.fields],
        "camera": None if sensor.camera is None else {"model": sensor.camera.model, "colour": sensor.camera.colour},
        "frame": sensor.frame,
        "deskewed": sensor.deskewed,
        "edit": None if sensor.edit is None else _edit_to_json(sensor.edit),
    }
    return {key: value for key, value in full.items() if value}


def _edit_to_json(edit: ImageEdit) -> dict[str, Any]:
    return {"crop": list(edit.crop), "scale": edit.scale, "jpeg_quality": edit.jpeg_quality}


def _edit_from_json(item: dict[str, Any] | None) -> ImageEdit | None:
    return None if item is None else ImageEdit(**{**item, "crop": tuple(item["crop"])})


def _column_from_json(item: dict[str, Any]) -> Column:
    item = dict(item)
    shape, categories = tuple(item.pop("shape", ())), tuple(item.pop("categories", ()))
    if not all(type(side) is int for side in shape) or not all(isinstance(name, str) for name in categories):
        raise SetError(f"manifest: column {item.get('name')!r} has a malformed shape or categories")
    return Column(shape=shape, categories=categories, **item)


def _sensor_from_json(item: dict[str, Any]) -> Sensor:
    item = dict(item)
    camera = item.pop("camera", None)
    return Sensor(
        codec=item.pop("codec", None),
        columns=tuple(_column_from_json(column) for column in item.pop("columns", ())),
        fields=tuple(_column_from_json(column) for column in item.pop("fields", ())),
        camera=None if camera is None else Camera(**camera),
        frame=item.pop("frame", ""),
        edit=_edit_from_json(item.pop("edit", None)),
        **item,
    )
