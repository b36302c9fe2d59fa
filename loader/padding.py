"""Stable shapes: points and tables padded to one of a few sizes, so that a compiled step is compiled once for each.

A pass over a finished batch's arrays, in the thread that made it. The size follows from the batch alone: the smallest that
holds its longest sweep or table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..formats import UsageError

__all__ = ["Padding", "pad"]

Over = Literal["raise", "thin"]
Entry = dict[str, Any]  # Any: arrays, lists of text; see Batch
Array = NDArray[Any]  # Any: dtypes by schema


@dataclass(frozen=True, slots=True)
class Padding:
    """Ask for entries of the batch to come padded.

    A points entry has "points" [B, T, size, C] then, and "count" [B, T] in place of "offsets"; a table's fields, which are padded
    anyway, have [B, T, size, …]. What is added is zeros.

    >>> Padding("LIDAR*", sizes=(20_000, 40_000)).size("LIDAR_TOP", 34_720)
    40000
    """

    entries: str | Sequence[str]
    """Keys of the batch, or shell patterns."""
    _: KW_ONLY
    sizes: Sequence[int]
    """Sizes to choose from. One gives one shape; each further one a compilation more, and less zeros where few points are."""
    over: Over = "raise"
    """A sweep or table longer than the largest size: raise; or thin it to that size evenly, with "found" [B, T] saying how many
    there were."""

    def __post_init__(self) -> None:
        entries = (self.entries,) if isinstance(self.entries, str) else tuple(self.entries)
        object.__setattr__(self, "entries", entries)
        object.__setattr__(self, "sizes", tuple(sorted(int(size) for size in self.sizes)))
        if not entries or not all(entries):
            raise UsageError(f"Padding: entries must be a key of the batch, a pattern or several of them, found {self.entries!r}")
        if not self.sizes or self.sizes[0] < 1 or self.sizes[-1] > 1 << 28:
            raise UsageError(f"Padding: sizes must be whole numbers from 1 to 2²⁸, found {self.sizes!r}")
        if self.over not in get_args(Over):
            raise UsageError(f"Padding: over {self.over!r} is none of {', '.join(get_args(Over))}")

    def names(self, key: str) -> bool:
        """Tell whether this padding is meant for entry `key`."""
        return any(fnmatchcase(key, pattern) for pattern in self.entries)

    def size(self, key: str, longest: int) -> int:
        """Return the size that a batch with a `longest` sweep or table gets."""
        for size in self.sizes:
            if longest <= size:
                return size
        if self.over == "thin":
            return self.sizes[-1]
        raise UsageError(
            f"Padding of {key!r}: found {longest} rows where at most {self.sizes[-1]} fit; give a size of {longest} or more, or "
            "over='thin'"
        )


def pad(contents: Entry, paddings: Sequence[Padding]) -> Entry:
    """Return a batch's contents with the entries that `paddings` name padded; the first that names an entry counts."""
    padded = dict(contents)
    for key, entry in contents.items():
        padding = next((each for each in paddings if each.names(key)), None)
        if padding is None or not isinstance(entry, Mapping):
            continue
        if "offsets" in entry:
            padded[key] = _points(key, entry, padding)
        elif "count" in entry:
            padded[key] = _table(key, entry, padding)
        else:
            raise UsageError(f"Padding of {key!r}: it has neither points nor rows of varying number; name points and tables only")
    unmatched = [each for each in paddings if not any(map(each.names, contents))]
    if unmatched:
        raise UsageError(f"Padding: no entry of the batch matches {unmatched[0].entries!r}; it has {sorted(contents)}")
    return padded


def _points(key: str, entry: Mapping[str, Any], padding: Padding) -> Entry:
    offsets: NDArray[np.int64] = entry["offsets"]
    found = np.diff(offsets)
    # A sample's sweeps, or the one cloud that was made of them.
    lead = (len(entry["mask"]), len(found) // len(entry["mask"]))
    size = padding.size(key, int(found.max(initial=0)))

    def laid_out(values: Array) -> Array:
        return _rows([values[first:last] for first, last in pairwise(offsets.tolist())], lead, size)

    padded = {name: value for name, value in entry.items() if name != "offsets"}
    padded["points"] = laid_out(entry["points"])
    if "fields" in entry:
        padded["fields"] = {name: laid_out(values) for name, values in entry["fields"].items()}
    return padded | _counts(found.reshape(lead), size, padding)


def _table(key: str, entry: Mapping[str, Any], padding: Padding) -> Entry:
    found: NDArray[np.int64] = entry["count"]
    longest = int(found.max(initial=0))
    size = padding.size(key, longest)
    padded = dict(entry)
    for name, value in entry.items():
        if isinstance(value, np.ndarray) and value.ndim > 2 and value.shape[:3] == (*found.shape, longest) and _is_field(name):
            rows = [table[:count] for table, count in zip(value.reshape(-1, *value.shape[2:]), found.ravel(), strict=True)]
            padded[name] = _rows(rows, found.shape, size)
    if longest > size:
        for name, value in entry.items():
            if isinstance(value, list) and value and isinstance(value[0], list):
                padded[name] = [[[texts[k] for k in _kept(len(texts), size)] for texts in times] for times in value]
    return padded | _counts(found, size, padding)


def _is_field(name: str) -> bool:
    """Tell a table's fields from the columns of its timeline, of which poses alone have three axes."""
    return name not in ("sensor_to_ego", "ego_to_world")


def _counts(found: NDArray[np.int64], size: int, padding: Padding) -> Entry:
    count = np.minimum(found, size)
    return {"count": count, "found": found} if padding.over == "thin" else {"count": count}


def _rows(parts: Sequence[Array], lead: tuple[int, ...], size: int) -> Array:
    shape, dtype = parts[0].shape[1:], parts[0].dtype
    out = np.zeros((len(parts), size, *shape), dtype)
    for place, values in zip(out, parts, strict=True):
        kept = values if len(values) <= size else values[_kept(len(values), size)]
        place[: len(kept)] = kept
    return out.reshape(*lead, size, *shape)


def _kept(found: int, size: int) -> NDArray[np.int64]:
    """Return which of `found` rows stay: all, or `size` of them, evenly spread."""
    return np.arange(found) if found <= size else np.arange(size) * found // size
