"""What an adapter hands to the packer: drives, their timelines, and payloads read one at a time.

A `Source` is other people's data seen as headway sees it. Building one is the preflight: it reads indexes and tables,
checks that every referenced file is there, and raises one `SourceError` naming everything wrong. Payload bytes are read
later, drive by drive, by whichever pack worker owns the drive, so a source must be cheap to build again in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .schema import Schema

__all__ = ["Attachment", "DriveListing", "Ignored", "Payload", "Source", "SourceDrive", "SourceTimeline"]

Payload = bytes | NDArray[Any] | Mapping[str, Any] | str
"""By sensor kind. image: the encoded bytes, untouched. points: structured (N,) of the sensor's `record_dtype`.
array: an ndarray of the field's dtype, (n, *field.shape). table: column name → ndarray (n, *shape), or a list of str.
text: str."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """Something the source holds that is deliberately not packed; this is no error."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveListing:
    """What preflight knows of a drive: enough to place it into a shard without opening it again."""

    name: str
    source_bytes: int
    """Bytes of all payload files, as stored in the source: shard borders are a function of these."""
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Location, vehicle, weather, description …; goes into the manifest and can be filtered on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that belongs to a drive as a whole: a map, a log, a licence."""

    name: str
    media_type: str
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTimeline:
    """The rows of one sensor in one drive, sorted by stamp; stamps may not repeat."""

    stamps: NDArray[np.int64]
    """(n,), ns."""
    columns: Mapping[str, NDArray[Any]]
    """Every column of the sensor's schema: (n, *shape)."""
    read: Callable[[int], Payload] | None = None
    """Payload of row i; called mostly in row order. Raises `DecodeError` or OSError for a payload that cannot be read."""
    origin: Callable[[int], str] = str
    """Where row i comes from (file, message), for messages and reject lists."""
    own: NDArray[np.int64] | None = None
    """(frames,): the row the source ties to each frame, −1 for none; None: the nearest within half a reference period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDrive:
    """One opened drive."""

    timelines: Mapping[str, SourceTimeline]
    """By sensor name; a sensor without rows in this drive may be absent. The reference is never absent or empty."""
    attachments: Sequence[Attachment] = ()


class Source(Protocol):
    """A dataset of other people's, listed and checked, ready to be read drive by drive."""

    kind: str
    """Name of the adapter, as on the command line."""
    schema: Schema
    licence: str
    listings: Sequence[DriveListing]
    """Sorted by name."""
    ignored: Sequence[Ignored]

    def open_drive(self, name: str) -> SourceDrive:
        """Open one drive of `listings`."""
        ...
