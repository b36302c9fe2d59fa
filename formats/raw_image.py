"""Raw images as arrays: rows of pixels of the sensor's one field, with the size that the row's columns state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import DecodeError
from .schema import Sensor

if TYPE_CHECKING:
    from .timeline import Timeline

__all__ = ["raw_pixels", "read_raw", "states_size"]


def states_size(sensor: Sensor) -> bool:
    """Whether a raw sensor says what its pixels are and, row by row, how many."""
    return len(sensor.fields) == 1 and sensor.has("width") and sensor.has("height")


def raw_pixels(data: bytes | memoryview, sensor: Sensor, width: int, height: int) -> NDArray[Any]:  # Any: the field's dtype
    """Return a view (height, width, *pixel shape) of raw bytes.

    Raises:
        DecodeError: they are not as many as the size says.
    """
    (pixel,) = sensor.fields
    if width < 1 or height < 1 or len(data) != width * height * pixel.width:
        raise DecodeError(
            f"expected {width} × {height} raw pixels of {pixel.width} bytes, found {len(data)} bytes; mend the source or its size"
        )
    return np.frombuffer(data, pixel.numpy_dtype).reshape(height, width, *pixel.shape)


def read_raw(timeline: Timeline, row: int) -> NDArray[Any]:  # Any: the field's dtype
    """Return the pixels of one row of a raw sensor that states its size, read-only, their hash compared."""
    width, height = (int(timeline.take(name, np.array([row]))[0]) for name in ("width", "height"))
    return raw_pixels(timeline.payload(row), timeline.sensor, width, height)
