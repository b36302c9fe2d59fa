"""What becomes of an image on its way into a set: it is checked, edited on request, and says columns about itself.

The packer adds those columns to every image sensor, whichever adapter it came from: size and coding as the stored bytes
state them, and, where an edit moved pixels, the affine. Nothing is ever rotated: an orientation tag is a column.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import DecodeError
from .image_header import image_header
from .jpeg import exif_orientation, scan
from .limits import Limits
from .raw_image import raw_pixels, states_size
from .schema import INTRINSICS, PACK_AFFINE, Column, Sensor

__all__ = ["IMAGE_SIZE", "CheckImages", "ImageFacts", "with_facts"]

CheckImages = Literal["markers", "decode"]

IMAGE_SIZE: Final = "image_size"
_SIZE: Final = Column(name=IMAGE_SIZE, dtype="int32", shape=(2,), unit="px")
_JPEG: Final = (
    _SIZE,
    Column(name="jpeg_process", dtype="uint8"),
    Column(name="jpeg_precision", dtype="uint8"),
    Column(name="jpeg_sampling", dtype="uint8", shape=(4, 2)),
    Column(name="jpeg_orientation", dtype="uint8"),
    Column(name="jpeg_adobe", dtype="int16"),
    Column(name="jpeg_restart", dtype="int32"),
    Column(name="jpeg_trailing", dtype="int32", unit="byte"),
)
"""Width and height; then the fields of `JpegFacts`: unused components have sampling 0, no Adobe segment is −1."""
_PNG: Final = (
    _SIZE,
    Column(name="png_bits", dtype="uint8"),
    Column(name="png_colour", dtype="uint8"),
    Column(name="png_orientation", dtype="uint8"),
)
"""Bits a channel, and the header's colour type: 0 grey, 2 RGB, 3 palette, 4 grey with alpha, 6 RGB with alpha."""


def with_facts(sensor: Sensor) -> Sensor:
    """Return the sensor with the columns its codec's facts go into; those the source gives itself stay."""
    added = _added(sensor)
    return replace(sensor, columns=(*sensor.columns, *added)) if added else sensor


class ImageFacts:
    """Takes in one sensor's images, row by row, and collects their facts."""

    def __init__(self, declared: Sensor, packed: Sensor, limits: Limits, *, check: CheckImages = "markers") -> None:
        """`declared` is the sensor as the source has it, `packed` as it will be in the set, with the columns added."""
        self.sensor = packed
        self.limits = limits
        self._check = check
        self.added = tuple(column for column in packed.columns if not declared.has(column.name))
        self._values: dict[str, list[Any]] = {column.name: [] for column in self.added}

    def take(self, data: bytes, row: Mapping[str, Any]) -> tuple[bytes, DecodeError | None]:
        """Return the bytes to be stored for one image, and what is wrong with it.

        A bad image stays as it is, with zeros for what is not known of it. `row` holds the row's column values.
        """
        facts: dict[str, Any] = {}
        problem: DecodeError | None = None
        try:
            facts = self._facts(data)
            if self._check == "decode":
                self._decode(data)
            if self.sensor.codec == "raw" and states_size(self.sensor):
                raw_pixels(data, self.sensor, int(row["width"]), int(row["height"]))
            if self.sensor.edit is not None:
                data, facts = self._edit(data, facts)
        except DecodeError as error:
            problem = error
        if PACK_AFFINE in self._values:
            facts.setdefault(PACK_AFFINE, np.eye(3))
        for column in self.added:
            self._values[column.name].append(facts.get(column.name, np.zeros(column.shape, column.dtype)))
        return data, problem

    def drop(self) -> None:
        """Forget the image taken in last."""
        for values in self._values.values():
            values.pop()

    def columns(self, declared: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the added columns, and those of the source's own that an edit changes; `declared` has the rows taken in."""
        made = {
            column.name: np.array(self._values[column.name], column.numpy_dtype).reshape(-1, *column.shape)
            for column in self.added
        }
        if PACK_AFFINE in made:
            if INTRINSICS in declared:
                made[INTRINSICS] = made[PACK_AFFINE] @ declared[INTRINSICS]
            moved = np.any(made[PACK_AFFINE] != np.eye(3), (1, 2))
            for place, name in enumerate(("width", "height")):
                if name in declared:
                    made[name] = np.where(moved, made[IMAGE_SIZE][:, place], declared[name]).astype(declared[name].dtype)
        return made

    def _edit(self, data: bytes, facts: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        from .image_edit import edit_image  # loads codecs that most packing never needs

        assert self.sensor.edit is not None
        edited, affine = edit_image(data, str(self.sensor.codec), self.sensor.edit, self.limits)
        orientation = {name: value for name, value in facts.items() if name.endswith("_orientation")}
        return edited, self._facts(edited) | orientation | {PACK_AFFINE: affine}

    def _decode(self, data: bytes) -> None:
        from .image_check import check_decodes  # loads codecs that most packing never needs

        check_decodes(data, str(self.sensor.codec), self.limits)

    def _facts(self, data: bytes) -> dict[str, Any]:
        if self.sensor.codec == "png":
            return _png_facts(data, self.limits)
        if self.sensor.codec != "jpeg":
            return {}
        facts = scan(data, limits=self.limits)
        sampling = np.zeros((4, 2), np.uint8)
        sampling[: facts.components] = facts.sampling
        return {
            IMAGE_SIZE: (facts.width, facts.height),
            "jpeg_process": facts.process,
            "jpeg_precision": facts.precision,
            "jpeg_sampling": sampling,
            "jpeg_orientation": facts.orientation,
            "jpeg_adobe": -1 if facts.adobe_transform is None else facts.adobe_transform,
            "jpeg_restart": facts.restart_interval,
            "jpeg_trailing": facts.trailing_bytes,
        }


def _added(sensor: Sensor) -> tuple[Column, ...]:
    columns = {"jpeg": _JPEG, "png": _PNG}.get(sensor.codec or "", ())
    return tuple(column for column in columns if not sensor.has(column.name))


def _png_facts(data: bytes, limits: Limits) -> dict[str, Any]:
    """Walk a PNG's chunks to its end; their CRCs are for decoders (and `--check-images decode`) to compare."""
    header = image_header(data, "png", limits)
    at, orientation = 8, 1
    while True:
        if at + 12 > len(data):
            raise DecodeError(f"expected a PNG that ends with IEND, found it cut short at {len(data)} bytes; replace the file")
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IEND":
            break
        if kind == b"eXIf":
            orientation = exif_orientation(data[at + 8 : at + 8 + length]) or orientation
        at += 12 + length
    return {
        IMAGE_SIZE: (header.width, header.height),
        "png_bits": header.bits,
        "png_colour": header.colour_type,
        "png_orientation": orientation,
    }
