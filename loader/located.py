"""Where the items of a run of batches lie, and what is cheap to know of them: found once, handed out batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .read_set import Resolved

__all__ = ["Ahead", "Located"]

Ahead = Mapping[str, NDArray[Any]]  # Any: dtypes by schema
"""What a field knows of n items before their batches are made: arrays (n, …) by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Where n items lie. Finding it for many batches at once costs little more than for one; parts of it are views."""

    frames: NDArray[np.int64]
    """(n,) global frame numbers; −1 for padding."""
    stamp: NDArray[np.int64]
    """(n,) reference stamp, ns; 0 for padding."""
    frame: NDArray[np.int64]
    """(n,) number of the frame in its drive; −1 for padding."""
    drive: NDArray[np.object_]
    """(n,) name of the drive; "" for padding."""
    windows: Mapping[str, Resolved]
    ahead: Mapping[str, Ahead]
    """By field key."""

    @property
    def ahead_bytes(self) -> int:
        """Bytes of all that fields know ahead."""
        return sum(values.nbytes for ahead in self.ahead.values() for values in ahead.values())

    def part(self, start: int, stop: int) -> Located:
        """Return items `start` to `stop`."""
        chosen = slice(start, stop)
        return Located(
            frames=self.frames[chosen],
            stamp=self.stamp[chosen],
            frame=self.frame[chosen],
            drive=self.drive[chosen],
            windows=_Parts(self.windows, start, stop),
            ahead={key: {name: values[chosen] for name, values in ahead.items()} for key, ahead in self.ahead.items()},
        )


class _Parts(Mapping[str, Resolved]):
    """The same part of each window, cut when asked for: fields that knew all ahead never ask."""

    def __init__(self, windows: Mapping[str, Resolved], start: int, stop: int) -> None:
        self._windows, self._start, self._stop = windows, start, stop

    def __getitem__(self, name: str) -> Resolved:
        return self._windows[name].part(self._start, self._stop)

    def __iter__(self) -> Iterator[str]:
        return iter(self._windows)

    def __len__(self) -> int:
        return len(self._windows)
