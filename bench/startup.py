"""From the constructor to the first batch, by the size of the set and the number of workers.

Sets of 10³ to 10⁷ frames of one number each show what planning and opening cost; a set of the user's own, what first images
do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..formats.adapters import SourceSpec
from ..formats.packer import pack
from .counted_source import SPEC_KIND
from .resume import first_batches

__all__ = ["THREADS", "counted_set", "measure_startup"]

THREADS: tuple[int | None, ...] = (None, 0, 1, 4)
_REPEATS = 3


def counted_set(frames: int, cache: Path, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """Return a set of `frames` frames of one number each, packed into the cache when first asked for."""
    place = cache / f"counted-{frames}"
    if not (place / "manifest.json").exists():
        say(f"packing {frames:,} frames")
        pack(SourceSpec(kind=SPEC_KIND, path="counted", options={"frames": frames}), str(place))
    return place


def measure_startup(
    location: Path, *, batch_size: int, cameras: str, threads: Sequence[int | None] = THREADS
) -> list[dict[str, Any]]:
    """Return a row for each number of workers: median seconds from the constructor to the first batch, in new processes."""
    rows = []
    for count in threads:
        task = {"set": str(location), "batch_size": batch_size, "cameras": cameras, "state": None, "batches": 1, "threads": count}
        runs = sorted((first_batches(task) for _ in range(_REPEATS)), key=lambda run: float(run["first_batch_s"]))
        middle, first = runs[len(runs) // 2], ("open_s", "first_batch_s", "process_s")
        rows.append({"items": middle["items"], "threads": count, **{name: middle[name] for name in first}})
    return rows
