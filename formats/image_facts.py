"""Columns that the packer adds to image sensors: what each encoded image says about its own size and coding."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import DecodeError
from .jpeg import scan
from .limits import Limits
from .schema import Column, Sensor

__all__ = ["IMAGE_SIZE", "ImageFacts", "with_facts"]

IMAGE_SIZE: Final = "image_size"
_PNG: Final = b"\x89PNG\r\n\x1a\n"
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


def with_facts(sensor: Sensor) -> Sensor:
    """Return the sensor with the columns its codec's facts go into; those the source gives itself stay."""
    added = _added(sensor)
    return replace(sensor, columns=(*sensor.columns, *added)) if added else sensor


class ImageFacts:
    """Collects the facts of one sensor's images, row by row."""

    def __init__(self, sensor: Sensor, limits: Limits) -> None:
        """`sensor` is as the source declares it, without the added columns."""
        self.sensor = sensor
        self.limits = limits
        self.added = _added(sensor)
        self._values: dict[str, list[Any]] = {column.name: [] for column in self.added}

    def add(self, data: bytes) -> DecodeError | None:
        """Take in one image, and return what is wrong with it; a bad image gets zeros for what is not known."""
        facts: dict[str, Any] = {}
        problem: DecodeError | None = None
        try:
            facts = self._facts(data)
        except DecodeError as error:
            problem = error
        for column in self.added:
            self._values[column.name].append(facts.get(column.name, np.zeros(column.shape, column.dtype)))
        return problem

    def drop(self) -> None:
        """Forget the image added last."""
        for values in self._values.values():
            values.pop()

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the added columns."""
        return {
            column.name: np.array(self._values[column.name], column.numpy_dtype).reshape(-1, *column.shape)
            for column in self.added
        }

    def _facts(self, data: bytes) -> dict[str, Any]:
        if self.sensor.codec == "png":
            return {IMAGE_SIZE: _png_size(data, self.limits)}
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
    columns = {"jpeg": _JPEG, "png": (_SIZE,)}.get(sensor.codec or "", ())
    return tuple(column for column in columns if not sensor.has(column.name))


def _png_size(data: bytes, limits: Limits) -> tuple[int, int]:
    """Check signature, header and end of a PNG; its chunks carry CRCs of their own for decoders to check."""
    if data[:8] != _PNG or data[12:16] != b"IHDR" or len(data) < 45:
        raise DecodeError(
            f"expected a PNG with its header, found {len(data)} bytes starting 0x{data[:8].hex()}; replace the file"
        )
    at = 8
    while data[at + 4 : at + 8] != b"IEND":
        (length,) = struct.unpack_from(">I", data, at)
        at += 12 + length
        if at + 12 > len(data):
            raise DecodeError(f"expected a PNG that ends with IEND, found it cut short at {len(data)} bytes; replace the file")
    width, height = struct.unpack_from(">II", data, 16)
    if not width or not height or max(width, height) > limits.image_side or width * height > limits.image_pixels:
        raise DecodeError(
            f"expected a PNG of at most {limits.image_pixels} px, found {width} × {height}; see Limits.image_pixels"
        )
    return width, height
