"""Images as the numbers they are: 16-bit PNGs, depth, bayer and raw pixels, in their own dtype and at their own size.

Nothing is resampled, normalised or converted, because each would invent values that the sensor never gave. What a number
means (millimetres, a mosaic's colour) is the schema's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import CorruptShard, DecodeError, UsageError
from ..formats.image_check import decode_pixels
from ..formats.raw_image import read_raw, states_size
from .column_field import shared_columns
from .draft import Draft, Prepared, Task
from .image_field import ImagePart, look_ahead, rows_of
from .images import Images
from .located import Ahead
from .payloads import PayloadReader
from .read_set import Resolved

__all__ = ["PlaneField"]

Pixels = NDArray[Any]  # Any: the source's dtype
_TASK_IMAGES: Final = 2


class PlaneField:
    """Fills batch[name] for `Images(dtype="source")`: "image" [B, T, N, H, W], with a channel axis where pixels have channels."""

    def __init__(self, images: Images, parts: Sequence[ImagePart], length: int) -> None:
        self.key = images.name
        self.parts, self._length, self._chw = list(parts), length, images.layout == "chw"
        found = {part.reader.sensor.name: self._first(part.reader) for part in parts}
        if len({(pixels.shape, pixels.dtype) for pixels in found.values()}) > 1:
            listed = ", ".join(f"{name} {pixels.shape} {pixels.dtype}" for name, pixels in found.items())
            raise UsageError(f"Images {images.name!r}: sensors differ in what they hold ({listed}); use one Images for each")
        pixels = next(iter(found.values()))
        self._shape, self._dtype = pixels.shape, pixels.dtype
        self._columns = shared_columns([part.reader.sensor for part in parts])

    def ahead(self, windows: Mapping[str, Resolved]) -> Ahead:
        """Return stamps, columns with poses as matrices, and where the images lie."""
        return look_ahead(self.parts, self._columns, windows)

    def prepare(self, draft: Draft) -> Prepared:
        """Ask for memory for all pixels of the batch."""
        images = len(draft.items) * self._length * len(self.parts)
        return Prepared(sizes=[images * int(np.prod(self._shape)) * self._dtype.itemsize], fill=partial(self._fill, draft))

    def _fill(self, draft: Draft, memory: Sequence[NDArray[np.uint8]]) -> list[Task]:
        lead = (len(draft.items), self._length, len(self.parts))
        image = memory[0].view(self._dtype).reshape(*lead, *self._shape)
        found, _ = PayloadReader.split(draft.ahead[self.key])
        rows = rows_of(found)
        affine = np.zeros((*lead, 3, 3))
        affine[rows >= 0] = np.eye(3)
        image[rows < 0] = 0  # memory is recycled: what is absent must not show an older batch
        sensors = [part.reader.sensor.name for part in self.parts]
        draft.entries[self.key] = {"image": image, "affine": affine, "sensors": sensors, **found}
        there = np.flatnonzero(rows.ravel() >= 0)
        flat = image.reshape(-1, *self._shape)
        return [
            Task(partial(self._decode, draft, rows.ravel(), flat, there[start : start + _TASK_IMAGES]), f"pixels of {self.key!r}")
            for start in range(0, len(there), _TASK_IMAGES)
        ]

    def _decode(self, draft: Draft, rows: NDArray[np.int64], out: Pixels, places: NDArray[np.intp]) -> None:
        for place in places.tolist():
            reader, row = self.parts[place % len(self.parts)].reader, int(rows[place])
            sample = place // (self._length * len(self.parts))
            try:
                pixels = self._pixels(reader, row)
                if pixels.shape != self._shape or pixels.dtype != self._dtype:
                    raise DecodeError(
                        f"expected pixels {self._shape} of {self._dtype}, as the sensor's first image has, found {pixels.shape} "
                        f"of {pixels.dtype}"
                    )
                out[place] = pixels
            except CorruptShard as error:
                draft.fail(sample, error)
            except DecodeError as error:
                draft.fail(sample, reader.undecodable(row, str(error)))

    def _first(self, reader: PayloadReader) -> Pixels:
        sensor = reader.sensor
        if sensor.codec != "png" and not (sensor.codec == "raw" and states_size(sensor)):
            raise UsageError(
                f"images of sensor {sensor.name!r} are of codec {sensor.codec!r}, and only png and raw pixels of stated size "
                'have numbers of their own; ask for dtype "uint8"'
            )
        if not len(reader.timeline):
            raise UsageError(f"sensor {sensor.name!r} has no images in this set, so their size is unknown; leave it out")
        try:
            return self._pixels(reader, 0)
        except DecodeError as error:
            raise reader.undecodable(0, str(error)) from error

    def _pixels(self, reader: PayloadReader, row: int) -> Pixels:
        """Return (H, W) or, by layout, (C, H, W) or (H, W, C), channels in the order red, green, blue, alpha."""
        if reader.sensor.codec == "raw":
            pixels = read_raw(reader.timeline, row)
        else:
            pixels = decode_pixels(bytes(reader.read(row)), "png")
            if pixels.ndim == 3:
                pixels = pixels[..., [2, 1, 0, *range(3, pixels.shape[2])]]
        return pixels.transpose(2, 0, 1) if self._chw and pixels.ndim == 3 else pixels
