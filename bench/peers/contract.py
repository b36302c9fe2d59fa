"""What a peer states and does, so that all are tuned, packed and measured by one procedure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["BASE_REQUIREMENTS", "Peer", "Resumable", "Run", "Setting", "workers"]

Setting = dict[str, Any]
"""One way to run a peer: keyword arguments of its `open`; plain JSON values."""

BASE_REQUIREMENTS = ("torch==2.13.0", "numpy>=2,<2.5", "simplejpeg>=1.8", "opencv-python-headless>=5,<5.1", "psutil>=6")
"""What every peer's environment holds besides the peer."""


@dataclass(frozen=True, slots=True)
class Run:
    """Where things are in one run."""

    workload: str
    data: Path
    """The workload as `headway bench make-data` wrote it."""
    packed: Path
    """The peer's own format; whatever `pack` put there."""


@dataclass(frozen=True, slots=True)
class Resumable:
    """A loader whose place can be noted and found again, through whatever it offers its users for that."""

    batches: Callable[[], Iterator[Any]]
    """From where it stands to the end of the epoch; called again: the next one."""
    state: Callable[[], Any]
    """Of plain values and tensors: reading it back runs no code."""
    restore: Callable[[Any], None]
    """Called before `batches`, in a new process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One loader as its competent user would use it."""

    name: str
    requirements: tuple[str, ...]
    """For pip, on top of `BASE_REQUIREMENTS`."""
    settings: Callable[[str], list[Setting]]
    """The settings that are tried for a workload; the best is measured."""
    pack: Callable[[Run], None]
    open: Callable[..., Callable[[], Iterator[Any]]]
    """(run, **setting) → a function that gives an iterator over one shuffled epoch."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Workload → why this peer cannot do it."""
    packs_like: str = ""
    """Name of the peer whose packed files this one reads (then `pack` adds to them)."""
    imports: Callable[[], object] = lambda: None
    """Imports what `pack` needs, so that packing is timed without it."""
    resumable: Callable[[Run], Resumable] | None = None
    """Opens W3 as a user who wants to resume would; None: it keeps no state."""
    note: str = ""
    """One line on how it is used, for the report."""


def workers(workload: str, *, counts: tuple[int, ...] = (0, 1, 2, 3), **more: Any) -> list[Setting]:
    """Return worker-process counts worth trying on a small machine: in-process only where samples are cheap."""
    if workload in ("W3", "W4"):
        counts = tuple(count for count in counts if count in (0, 2))
    return [{"workers": count, **more} for count in counts if count or workload != "W1"]
