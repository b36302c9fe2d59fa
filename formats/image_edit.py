"""Pack-time changes of images on request: cut, scale, encode anew; and the affine that keeps intrinsics true.

Crop comes first, in source pixels; then the rest is scaled by area averaging. Pixel centres are at +0.5 on both sides, so
`affine` maps source to stored pixels and K' = affine @ K. JPEGs keep their subsampling and their orientation tag; every edit
decodes and encodes once (a crop at block borders, too: none of the libraries in use cuts without it).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import DecodeError, UsageError
from .image_check import decode_pixels
from .jpeg import scan
from .limits import Limits
from .schema import PACK_AFFINE, Column, ImageEdit, Sensor

__all__ = ["affine_of", "edit_image", "edited_size", "with_edit"]

_QUALITY: Final = 95
_SUBSAMPLING: Final = {"4:4:4": "444", "4:2:2": "422", "4:2:0": "420", "4:4:0": "440", "4:1:1": "411", "grey": "Gray"}


def with_edit(sensor: Sensor, edit: ImageEdit) -> Sensor:
    """Return the sensor with the edit on record; one whose images it does not concern as it is.

    Raises:
        UsageError: its pixels would have to move, and their kind does not allow it.
    """
    colour = sensor.camera.colour if sensor.camera is not None else "rgb"
    if sensor.codec == "jpeg" or (edit.moves_pixels and sensor.codec == "png" and colour in ("rgb", "mono")):
        if not edit.moves_pixels:
            return replace(sensor, edit=edit)
        column = Column(name=PACK_AFFINE, dtype="float64", shape=(3, 3), unit="px")
        return replace(sensor, edit=edit, columns=(*sensor.columns, column))
    if not edit.moves_pixels:
        return sensor
    raise UsageError(
        f"cannot crop or scale images of sensor {sensor.name!r}: they are {colour} in codec {sensor.codec!r}, and only jpeg and "
        "rgb or mono png can be; choose the sensors with --camera-sensors"
    )


def edited_size(width: int, height: int, edit: ImageEdit) -> tuple[int, int]:
    """Return (width, height) of the stored image."""
    top, bottom, left, right = edit.crop
    width, height = width - left - right, height - top - bottom
    if width < 1 or height < 1:
        raise DecodeError(f"expected an image larger than the crop {edit.crop}, found nothing left of it; crop less")
    return max(1, round(width * edit.scale)), max(1, round(height * edit.scale))


def affine_of(width: int, height: int, edit: ImageEdit) -> NDArray[np.float64]:
    """Return the (3, 3) matrix from pixels of a `width` × `height` source image to stored pixels."""
    top, bottom, left, right = edit.crop
    stored = edited_size(width, height, edit)
    across, down = stored[0] / (width - left - right), stored[1] / (height - top - bottom)
    return np.array([[across, 0.0, -across * left], [0.0, down, -down * top], [0.0, 0.0, 1.0]])


def edit_image(data: bytes, codec: str, edit: ImageEdit, limits: Limits) -> tuple[bytes, NDArray[np.float64]]:
    """Return the image as it is to be stored, and its affine.

    Raises:
        DecodeError: it does not decode, or is smaller than the crop.
    """
    import cv2  # packing only, and only when asked for

    pixels = decode_pixels(data, codec, limits)
    height, width = pixels.shape[:2]
    affine, (to_width, to_height) = affine_of(width, height, edit), edited_size(width, height, edit)
    top, bottom, left, right = edit.crop
    pixels = pixels[top : height - bottom, left : width - right]
    if pixels.shape[:2] != (to_height, to_width):
        pixels = cv2.resize(pixels, (to_width, to_height), interpolation=cv2.INTER_AREA)
    if codec == "png":
        return bytes(cv2.imencode(".png", pixels)[1]), affine
    return _encode_jpeg(np.ascontiguousarray(pixels), data, edit.jpeg_quality or _QUALITY, limits), affine


def _encode_jpeg(pixels: NDArray[Any], source: bytes, quality: int, limits: Limits) -> bytes:  # Any: uint8
    import simplejpeg  # packing only, and only when asked for

    facts = scan(source, limits=limits)
    grey = pixels.ndim == 2
    encoded: bytes = simplejpeg.encode_jpeg(
        pixels[..., None] if grey else pixels,
        quality=quality,
        colorspace="GRAY" if grey else "RGB",
        colorsubsampling="Gray" if grey else _SUBSAMPLING.get(facts.subsampling, "444"),
    )
    if facts.orientation == 1:
        return encoded
    # A TIFF of one entry: tag 0x0112, one SHORT. It goes before the JFIF segment, where EXIF wants to be first.
    exif = b"Exif\0\0II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, facts.orientation, 0, 0)
    return encoded[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(exif)) + exif + encoded[2:]
