"""A packed set, opened and seen through windows: what `DataLoader` streams, and a map of decoded samples by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..formats.limits import DEFAULT_LIMITS, Limits
from ..formats.packed_set import PackedSet, open_set
from ..formats.range_cache import DEFAULT_CACHE, CacheOptions
from .assemble import Assembler
from .decode import Decoder
from .draft import Draws
from .image_field import ImagePart
from .images import Images
from .native_decode import default_decoder
from .padding import Padding
from .view import AnyWindow, View

__all__ = ["Dataset", "open_dataset"]

Where = Any  # Any: pyarrow is untyped; a boolean pyarrow.compute expression, or frame numbers
Exclude = Sequence[str | tuple[str, int]]


def open_dataset(
    location: str | os.PathLike[str],
    *,
    windows: Sequence[AnyWindow] = (),
    images: Sequence[Images] | Images = (),
    padding: Sequence[Padding] | Padding = (),
    where: Where = None,
    exclude: Exclude = (),
    limits: Limits = DEFAULT_LIMITS,
    cache: CacheOptions = DEFAULT_CACHE,
) -> Dataset:
    """Open a packed set for training; `headway.open` is this function.

    Args:
        location: the set's directory, or its URL in a store (`s3://bucket/prefix`), from where it is read as it is needed.
        windows: what a sample takes of each timeline (`Window`, `Trajectory`, `Sweeps`); without any, every sensor's own
            payload of the frame.
        images: how images are to look (`Images`); sensors that none of them names are not read. Without any, all cameras at
            their own size.
        padding: which points and tables come padded to stable shapes (`Padding`).
        where: which frames are items: a boolean `pyarrow.compute` expression over the facts of frames, or frame numbers.
        exclude: drives, or (drive, frame) pairs, to leave out.
        limits: sizes above which data is refused.
        cache: where, and how much of, a set in a store stays on this node.

    Raises:
        NotASet, UnsupportedFormat, CorruptShard: the set cannot be used.
        UsageError: windows, images or filters do not fit it.
    """
    looks = (images,) if isinstance(images, Images) else tuple(images)
    pads = (padding,) if isinstance(padding, Padding) else tuple(padding)
    packed = open_set(location, limits=limits, cache=cache)
    return Dataset(packed, windows=tuple(windows), images=looks, padding=pads, where=where, exclude=tuple(exclude))


class Dataset:
    """The items of a view, in (drive, stamp) order.

    Give it to `headway.DataLoader`, which streams whole batches. Indexing decodes one sample on the spot, so that it also
    works wherever a map-style dataset does, at a map-style dataset's speed. Safe to use from several threads; pickling it
    reopens the set by its location.

    >>> dataset = headway.open(drives_set, images=[Images("CAM_*", size=(24, 32))])
    >>> len(dataset), tuple(dataset[0]["camera"]["image"].shape)
    (18, (1, 3, 3, 24, 32))
    """

    def __init__(
        self,
        packed: PackedSet,
        *,
        windows: Sequence[AnyWindow] = (),
        images: Sequence[Images] = (),
        padding: Sequence[Padding] = (),
        where: Where = None,
        exclude: Exclude = (),
    ) -> None:
        self.packed = packed
        self.images, self.padding = tuple(images), tuple(padding)
        self.view = View(packed, windows=windows, where=where, exclude=exclude)
        self._arguments = {"windows": windows, "images": images, "padding": padding, "where": where, "exclude": exclude}
        self._assembler = self.assembler(default_decoder())

    @property
    def reads(self) -> list[ImagePart]:
        """Where payloads of a sample are read from."""
        return self._assembler.reads

    def assembler(self, decoder: Decoder) -> Assembler:
        """Return what puts batches of this dataset together, with `decoder` for the images."""
        return Assembler(self.packed, self.view, self.images, decoder, self.padding)

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, item: int) -> dict[str, Any]:  # Any: see Batch
        """Return sample `item`: a batch of one without its first axis. Random windows draw as for seed 0, epoch 0."""
        from .batch import to_tensors  # torch is loaded by who needs tensors

        if not -len(self) <= item < len(self):
            raise IndexError(f"item {item} is out of range: this dataset has {len(self)} items")
        items = np.array([item % len(self)], np.int64)
        draws = Draws(seed=0, epoch=0, occurrence=np.zeros(1, np.int64))
        draft, prepared = self._assembler.begin(0, items, draws)
        memory = [np.empty(size, np.uint8) for part in prepared for size in part.sizes]
        for task in self._assembler.tasks(draft, prepared, memory):
            task.run()
        if draft.failures:
            raise draft.failures[0]
        contents = to_tensors(self._assembler.finish(draft), self._assembler.bfloat16)
        sample = {name: _first(value) for name, value in contents.items()}
        return {**sample, "id": int(items[0])}

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:  # Any: see Batch
        """Return several samples, as torch's fetcher asks for them."""
        return [self[item] for item in items]

    def __iter__(self) -> Iterator[dict[str, Any]]:  # Any: see Batch
        return (self[item] for item in range(len(self)))

    def close(self) -> None:
        """Let go of the set's shards; mappings go when the last view of them does."""
        self.packed.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:  # Any: the shape pickle asks for
        return _reopened, (self.packed, self._arguments)

    def __repr__(self) -> str:
        return f"Dataset({str(self.packed.location)!r}, items={len(self)}, windows={list(self.view.names)})"


def _reopened(packed: PackedSet, arguments: dict[str, Any]) -> Dataset:  # Any: the constructor's own arguments
    return Dataset(packed, **arguments)


def _first(value: Any) -> Any:  # Any: nested, see Batch
    """Take the only sample out of a batch of one; packed points have no batch axis and stay as they are."""
    if isinstance(value, dict):
        whole = {"columns", "coordinates", "sensors"} | ({"points", "offsets", "fields"} if "offsets" in value else set())
        return {name: item if name in whole else _first(item) for name, item in value.items()}
    return value[0]
