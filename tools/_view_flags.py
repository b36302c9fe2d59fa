"""The flags that say which view of a set is meant, shared by the commands that explain an order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..formats import UsageError

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet
    from ..loader.view import View

__all__ = ["ExcludeFlag", "WhereFlag", "WindowsFlag", "open_view", "read_json"]

# A list of windows, or a state, is a few kilobytes; anything much bigger is another file given by mistake.
_MAX_BYTES = 1 << 20

WindowsFlag = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help='JSON list of windows, such as [{"kind": "sweeps", "past": 9}]; default: frames\' own payloads.'
    ),
]
WhereFlag = Annotated[
    str | None, typer.Option(metavar="FILTER", help="Frames of the view: \"drive.location == 'boston' and frame >= 10\".")
]
ExcludeFlag = Annotated[
    list[str] | None, typer.Option(metavar="DRIVE[:FRAME]", help="Leave out a drive, or one frame of it; repeat for more.")
]


def open_view(packed: PackedSet, windows: Path | None, where: str | None, exclude: Sequence[str] | None) -> View:
    """Return the view that the flags describe."""
    from ..loader.view import View
    from ..loader.window_list import windows_from_json
    from .where_text import parse_where

    return View(
        packed,
        windows=() if windows is None else windows_from_json(read_json(windows)),
        where=None if where is None else parse_where(where),
        exclude=[_tombstone(packed, text) for text in exclude or ()],
    )


def read_json(path: Path) -> Any:  # Any: JSON
    """Return the JSON value in a small file."""
    with open(path, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise UsageError(f"cannot read {str(path)!r}: it is larger than {_MAX_BYTES} bytes, so not what is asked for here")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {str(path)!r} as JSON: {error}") from error


def _tombstone(packed: PackedSet, text: str) -> str | tuple[str, int]:
    # A drive's name may hold colons itself; the whole text as a name wins.
    name, colon, frame = text.rpartition(":")
    if colon and frame.isdecimal() and all(drive.name != text for drive in packed.drives):
        return name, int(frame)
    return text
