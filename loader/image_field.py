"""A group of cameras as one batch field: pixels at one size, with the matrices that belong to exactly those pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import INTRINSICS, Column, CorruptShard, DecodeError, HeadwayError, UsageError
from ..formats.image_header import image_size
from ..formats.timeline import PayloadRefs
from .column_field import shared_columns, take_columns, with_matrices
from .decode import BROKEN, Decoder, DeviceDecoder, ImageJobs
from .draft import Draft, Prepared, Task
from .frames import comes_as_pixels, frame_size, frame_tasks, frames
from .image_draw import image_keys
from .images import Images
from .located import Ahead
from .payloads import PayloadReader
from .read_set import Resolved

__all__ = ["ImageField", "ImagePart", "look_ahead", "native_size", "rows_of"]

# Images of one task where the decoder leaves the spreading to us: few enough that threads end a step together.
_TASK_IMAGES: Final = 2
_ROWS: Final = "\0rows"  # no column is called so: names have no control characters
_STORED: Final = {"bfloat16": "uint16"}  # numpy has no bfloat16; the batch turns the bits into torch's


@dataclass(frozen=True, slots=True)
class ImagePart:
    """One camera of a group: where its rows are."""

    window: str
    place: int
    """Index on the window's sensor axis."""
    reader: PayloadReader


@dataclass(frozen=True, slots=True)
class _Image:
    """One image to decode."""

    reader: PayloadReader
    row: int
    place: int
    """Flat index on the [B, T, N] axes."""
    data: memoryview
    hash: int
    codec: str


class ImageField:
    """Fills batch[name] for one `Images`: "image" [B, T, N, 3, H, W] or [B, T, N, H, W, 3], and its geometry."""

    def __init__(self, images: Images, parts: Sequence[ImagePart], length: int, decoder: Decoder) -> None:
        self.key = images.name
        self.images = images if images.size is not None else replace(images, size=_native_size(images, parts))
        self.parts, self._length, self._decoder = list(parts), length, decoder
        height, width = self.images.size or (0, 0)
        self._shape = (3, height, width) if images.layout == "chw" else (height, width, 3)
        self._dtype = np.dtype(_STORED.get(images.dtype, images.dtype))
        self._columns = shared_columns([part.reader.sensor for part in parts])

    def ahead(self, windows: Mapping[str, Resolved]) -> Ahead:
        """Return stamps, columns with poses as matrices, and where the images lie; the cameras on the third axis."""
        return look_ahead(self.parts, self._columns, windows)

    def prepare(self, draft: Draft) -> Prepared:
        """Ask for memory for all pixels of the batch."""
        if isinstance(self._decoder, DeviceDecoder):
            return Prepared(fill=partial(self._fill, draft))
        images = len(draft.items) * self._length * len(self.parts)
        return Prepared(sizes=[images * int(np.prod(self._shape)) * self._dtype.itemsize], fill=partial(self._fill, draft))

    def _fill(self, draft: Draft, memory: Sequence[NDArray[np.uint8]]) -> list[Task]:
        lead = (len(draft.items), self._length, len(self.parts))
        if isinstance(self._decoder, DeviceDecoder):
            image = self._decoder.zeros((*lead, *self._shape), self.images.dtype)
        else:
            image = memory[0].view(self._dtype).reshape(*lead, *self._shape)
        found, refs = PayloadReader.split(draft.ahead[self.key])
        rows = rows_of(found)
        affine = np.zeros((*lead, 3, 3))
        draft.entries[self.key] = entry = {
            "image": image,
            "affine": affine,
            "sensors": [part.reader.sensor.name for part in self.parts],
            **found,
        }
        tasks = []
        there = np.flatnonzero(rows.ravel() >= 0)
        if len(there) < rows.size and memory:
            tasks.append(Task(partial(_clear, image, rows), f"absent images of {self.key!r}"))
        apart = np.array([comes_as_pixels(part.reader.sensor) for part in self.parts])[there % len(self.parts)]
        for jobs in frame_tasks(there[apart], length=self._length, cameras=len(self.parts)):
            tasks.append(Task(partial(self._decode, draft, rows, refs, image, affine, jobs), self._named(rows, jobs)))
        there = there[~apart]
        share = len(there) if self._decoder.whole_step else _TASK_IMAGES
        for start in range(0, len(there), max(share, 1)):
            jobs = there[start : start + share]
            tasks.append(Task(partial(self._decode, draft, rows, refs, image, affine, jobs), self._named(rows, jobs)))
        draft.finishers.append(partial(_intrinsics, entry))
        return tasks

    def _decode(
        self,
        draft: Draft,
        rows: NDArray[np.int64],
        refs: PayloadRefs,
        image: NDArray[Any],  # Any: of the look's dtype
        affine: NDArray[np.float64],
        jobs: NDArray[np.int64],
    ) -> None:
        """Decode the images at flat places `jobs` of the [B, T, N] axes."""
        found = self._locate(draft, rows, refs, affine, jobs)
        if not found:
            return
        index = np.array([each.place for each in found], np.int64)
        work = ImageJobs(
            data=[each.data for each in found],
            hashes=np.array([each.hash for each in found], np.uint64),
            codecs=[each.codec for each in found],
            affine=np.ascontiguousarray(affine.reshape(-1, 3, 3)[index, :2]),
            out=image.reshape(-1, *self._shape),
            index=index,
            look=self.images,
        )
        status = self._decoder.decode(work)
        for job in np.flatnonzero(status >= BROKEN).tolist():
            reader, row = found[job].reader, found[job].row
            reason = work.messages.get(job) or f"decoder {self._decoder.name!r} gave status {int(status[job])}"
            draft.fail(self._sample(found[job].place), _why(reader, row, reason))

    def _locate(
        self,
        draft: Draft,
        rows: NDArray[np.int64],
        refs: PayloadRefs,
        affine: NDArray[np.float64],
        jobs: NDArray[np.int64],
    ) -> list[_Image]:
        """Find the bytes and the affine of each image; those without a readable header fail here."""
        found: list[_Image] = []
        sizes: list[tuple[int, int]] = []
        flat_rows, flat_affine = rows.ravel(), affine.reshape(-1, 3, 3)
        for part_number, part in enumerate(self.parts):
            places = jobs[jobs % len(self.parts) == part_number]
            if len(places) and comes_as_pixels(part.reader.sensor):
                for place, frame in zip(places.tolist(), frames(part.reader, flat_rows[places]), strict=True):
                    if isinstance(frame, HeadwayError):
                        draft.fail(self._sample(place), frame)
                        continue
                    flat_affine[place] = self.images.affine(frame.shape[1], frame.shape[0])
                    found.append(_Image(part.reader, int(flat_rows[place]), place, frame.data, 0, "pixels"))
                    sizes.append((frame.shape[1], frame.shape[0]))
                continue
            chosen = refs.part(places)
            data, hashes = part.reader.views(chosen), chosen.hash
            for place, payload, payload_hash in zip(places.tolist(), data, hashes.tolist(), strict=True):
                row = int(flat_rows[place])
                try:
                    width, height = image_size(payload, str(part.reader.sensor.codec), most_bits=8)
                except DecodeError as error:
                    draft.fail(self._sample(place), _why(part.reader, row, str(error)))
                    continue
                flat_affine[place] = self.images.affine(width, height)
                found.append(_Image(part.reader, row, place, payload, payload_hash, str(part.reader.sensor.codec)))
                sizes.append((width, height))
        if self.images.augment is not None and found:
            places = np.array([each.place for each in found], np.int64)
            flat_affine[places] = self.images.augment.affines(
                flat_affine[places],
                source=np.array(sizes, np.int64),
                target=self.images.size or (0, 0),
                keys=image_keys(self.images.augment, draft, places, length=self._length, cameras=len(self.parts)),
            )
        return found

    def _sample(self, place: int) -> int:
        return place // (self._length * len(self.parts))

    def _named(self, rows: NDArray[np.int64], jobs: NDArray[np.int64]) -> str:
        first = int(jobs[0])
        part = self.parts[first % len(self.parts)]
        return f"{len(jobs)} image(s) from {part.reader.sensor.name!r} row {int(rows.ravel()[first])}"


def look_ahead(parts: Sequence[ImagePart], columns: Sequence[Column], windows: Mapping[str, Resolved]) -> Ahead:
    """Return stamps, columns with poses as matrices, and where the images of `parts` lie; the cameras on the third axis."""
    rows = np.stack([windows[part.window].rows[..., part.place] for part in parts], -1)
    found: dict[str, NDArray[Any]] = {  # Any: dtypes by schema
        name: np.stack([getattr(windows[part.window], field)[..., part.place] for part in parts], -1)
        for name, field in (("stamp", "stamps"), ("sync_error", "sync_error"), ("mask", "valid"))
    }
    taken = [take_columns(part.reader.timeline, columns, rows[..., k]) for k, part in enumerate(parts)]
    values = {name: np.stack([each[name] for each in taken], 2) for name in taken[0]}
    refs = [part.reader.ahead(rows[..., k]) for k, part in enumerate(parts)]
    places = {name: np.stack([each[name] for each in refs], 2) for name in refs[0]}
    return {**found, **with_matrices(columns, values), _ROWS: rows, **places}


def rows_of(found: dict[str, NDArray[Any]]) -> NDArray[np.int64]:  # Any: dtypes by schema
    """Take the rows (B, T, N) out of what `look_ahead` found."""
    return found.pop(_ROWS)


def _native_size(images: Images, parts: Sequence[ImagePart]) -> tuple[int, int]:
    """Return the one (height, width) that the first images of all sensors have."""
    sizes = {part.reader.sensor.name: native_size(part.reader) for part in parts}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {height} × {width}" for name, (height, width) in sizes.items())
        raise UsageError(f"Images {images.name!r}: sensors differ in size ({listed}); give a size, or one Images for each")
    return next(iter(sizes.values()))


def native_size(reader: PayloadReader) -> tuple[int, int]:
    """Return (height, width) of a sensor's first image."""
    if not len(reader.timeline):
        raise UsageError(f"sensor {reader.sensor.name!r} has no images in this set, so its size is unknown; give Images a size")
    if comes_as_pixels(reader.sensor):
        return frame_size(reader, 0)
    try:
        width, height = image_size(reader.read(0), str(reader.sensor.codec), most_bits=8)
    except DecodeError as error:
        raise reader.undecodable(0, str(error)) from error
    return height, width


def _why(reader: PayloadReader, row: int, reason: str) -> HeadwayError:
    """Return the error of an image that gave no picture: damaged since it was packed, or bad from the start."""
    try:
        reader.read(row)
    except CorruptShard as error:
        return error
    return reader.undecodable(row, reason)


def _clear(image: NDArray[Any], rows: NDArray[np.int64]) -> None:  # Any: of the look's dtype
    image[rows < 0] = 0  # memory is recycled: what is absent must not show an older batch


def _intrinsics(entry: dict[str, Any]) -> None:  # Any: see Draft.entries
    if INTRINSICS in entry:
        entry[INTRINSICS] = entry["affine"] @ entry[INTRINSICS]
