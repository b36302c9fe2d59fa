"""The quarantine ledger: one JSON line for each payload that could not be used, and what was done about it.

Lines are appended whole, by one write each, so several ranks of a machine may share a file and a killed run leaves whole lines.
The next view leaves out what it names: `headway.open(…, exclude=read_quarantine(path))`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..formats import HeadwayError, UsageError
from .payloads import place_of

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet
    from .view import View

__all__ = ["BadSample", "Quarantine", "Record", "quarantine_entries", "read_quarantine"]

_REASON_LIMIT: Final = 2000
"""Characters of an error kept: a line stays below the 4 KiB that every file system appends at once."""
_FILE_LIMIT: Final = 256 << 20
_KEYS: Final = ("set", "drive", "frame", "item", "action", "epoch", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSample:
    """A sample that failed, and what the fault policy decided."""

    planned: int
    """The item whose turn it was."""
    item: int
    """The item that failed: the planned one, or one drawn in its place."""
    error: HeadwayError
    action: str
    epoch: int
    step: int
    """Number of the batch within its epoch."""
    replaced: int
    """The item that takes the place; −1: none does."""


Record = Callable[[BadSample], None]


class Quarantine:
    """Appends to one ledger; thread-safe, and to be shared by processes of one machine."""

    def __init__(self, path: str | os.PathLike[str], packed: PackedSet, view: View, *, accumulate: int = 1) -> None:
        self._path, self._packed, self._view, self._accumulate = Path(path), packed, view, accumulate

    def __call__(self, bad: BadSample) -> None:
        """Append the line for `bad`; on storage at once, so that a crash right after it loses nothing."""
        line = json.dumps(self._entry(bad), ensure_ascii=True).encode() + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)

    def _entry(self, bad: BadSample) -> dict[str, Any]:  # Any: JSON
        frames = self._view.frames(np.array([bad.item], np.int64))
        drive = int(self._packed.drive_of(frames)[0])
        place = place_of(bad.error)
        return {
            "set": self._packed.set_id,
            "drive": self._packed.drives[drive].name,
            "frame": int(frames[0] - self._packed.frame_starts[drive]),
            "sensor": None if place is None else place.sensor,
            "stamp": int(self._packed.frame_stamps(frames)[0]) if place is None else place.stamp,
            "item": bad.planned,
            "failed": bad.item,
            "action": bad.action,
            "replaced": bad.replaced,
            "epoch": bad.epoch,
            "step": bad.step // self._accumulate,
            "error": type(bad.error).__name__,
            "reason": str(bad.error)[:_REASON_LIMIT],
        }


def quarantine_entries(path: str | os.PathLike[str]) -> list[dict[str, Any]]:  # Any: JSON
    """Return the entries of a ledger in the order they were written; a last line cut off by a crash is passed over.

    Raises:
        UsageError: the file is no ledger.
    """
    if os.path.getsize(path) > _FILE_LIMIT:
        raise UsageError(f"cannot read {str(path)!r} as a quarantine ledger: it is larger than {_FILE_LIMIT >> 20} MiB")
    data = Path(path).read_bytes()
    lines = data.split(b"\n")[:-1]
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not all(key in entry for key in _KEYS):
                raise ValueError(f"expected an object with {', '.join(_KEYS)}")
            if not isinstance(entry["drive"], str) or not isinstance(entry["frame"], int) or not isinstance(entry["set"], str):
                raise ValueError("drive and set must be text, frame a whole number")
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"cannot read {str(path)!r} as a quarantine ledger: line {number}: {error}; give the file that "
                "LoaderOptions(quarantine=…) named"
            ) from error
        entries.append(entry)
    return entries


def read_quarantine(path: str | os.PathLike[str], *, set_id: str | None = None) -> list[tuple[str, int]]:
    """Return the (drive, frame) pairs that a ledger names, each once: what `headway.open(…, exclude=…)` leaves out.

    With `set_id`, only those of that set; frames of one set mean nothing in another.

    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "bad.jsonl")
    >>> line = '{"set": "s", "drive": "a", "frame": 3, "item": 3, "action": "mask", "epoch": 0, "step": 1}'
    >>> _ = open(path, "w").write(line + chr(10) + line + chr(10))
    >>> read_quarantine(path)
    [('a', 3)]
    """
    chosen = [entry for entry in quarantine_entries(path) if set_id in (None, entry["set"])]
    if set_id is None and len({entry["set"] for entry in chosen}) > 1:
        raise UsageError(
            f"the ledger {str(path)!r} names several sets; say which one: read_quarantine(path, set_id=packed.set_id)"
        )
    return sorted({(entry["drive"], entry["frame"]) for entry in chosen})
