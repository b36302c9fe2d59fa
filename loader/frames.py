"""Pixels of sensors that no image decoder knows: frames of a video, decoded from their key frame on, and raw pixels.

They reach the decoder as codec "pixels": RGB as an array, which it only has to place. Rows asked for together share the decoding
of their group of pictures, so a window costs little more than its last frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..formats import CorruptShard, DecodeError, HeadwayError, Sensor, UsageError
from ..formats.raw_image import read_raw, states_size
from .payloads import PayloadReader

__all__ = ["check_decodable", "comes_as_pixels", "frame_size", "frame_tasks", "frames"]


def comes_as_pixels(sensor: Sensor) -> bool:
    """Whether a sensor's images are decoded here, and not by an image decoder."""
    return sensor.codec in ("video", "raw")


def check_decodable(sensor: Sensor) -> None:
    """Refuse image sensors whose pictures a batch of 8-bit RGB cannot hold without losing something."""
    colour = sensor.camera.colour if sensor.camera is not None else ""
    what = f"images of sensor {sensor.name!r} are {colour or 'of no declared colour'} in codec {sensor.codec!r}"
    if colour not in ("rgb", "mono"):
        raise UsageError(
            f"{what}, and 8-bit RGB holds only rgb and mono: depth would lose its unit and bayer its mosaic; ask for the numbers "
            "as they are by Images(…, dtype='source'), or for the other sensors by images= or windows="
        )
    if sensor.codec == "raw" and not (states_size(sensor) and sensor.fields[0].dtype == "uint8"):
        held = sensor.fields[0].dtype if sensor.fields else "of no declared type"
        raise UsageError(
            f"{what}, {held}, and raw pixels must be uint8 with a stated width and height; ask for the numbers as they are by "
            "Images(…, dtype='source'), or for the other sensors by images= or windows="
        )


def frame_size(reader: PayloadReader, row: int) -> tuple[int, int]:
    """Return (height, width) of one row."""
    if reader.sensor.has("width") and reader.sensor.has("height"):
        height, width = (int(reader.timeline.take(name, np.array([row]))[0]) for name in ("height", "width"))
        return height, width
    (found,) = frames(reader, np.array([row], np.int64))
    if isinstance(found, HeadwayError):
        raise found
    return found.shape[0], found.shape[1]


def frames(reader: PayloadReader, rows: NDArray[np.int64]) -> Sequence[NDArray[np.uint8] | HeadwayError]:
    """Return RGB (H, W, 3) of each row, contiguous, or what is wrong with it; hashes are compared."""
    try:
        return _frames(reader, rows)
    except (DecodeError, CorruptShard) as error:
        if len(rows) == 1:
            return [error if isinstance(error, CorruptShard) else reader.undecodable(int(rows[0]), str(error))]
    # One bad packet spoils what is decoded after it, and nothing else: ask row by row which those are.
    return [frames(reader, rows[at : at + 1])[0] for at in range(len(rows))]


def frame_tasks(places: NDArray[np.intp], *, length: int, cameras: int) -> list[NDArray[np.intp]]:
    """Split flat places of the [B, T, N] axes into one task for each sample and camera: the times of a window together."""
    key = places // (length * cameras) * cameras + places % cameras
    return [places[key == one] for one in np.unique(key).tolist()]


def _frames(reader: PayloadReader, rows: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    if reader.sensor.codec == "video":
        return [np.ascontiguousarray(frame) for frame in reader.timeline.frames(rows)]
    pictures = [read_raw(reader.timeline, row) for row in rows.tolist()]
    return [np.ascontiguousarray(each if each.ndim == 3 else np.repeat(each[..., None], 3, 2)) for each in pictures]
