"""How many decode threads a rank should run: the cores it may really use, shared fairly with the ranks beside it."""

from __future__ import annotations

from ..formats.cores import usable_cores

__all__ = ["decode_threads", "usable_cores"]


def decode_threads(local_size: int, cores: int | None = None) -> int:
    """Return the threads for one of `local_size` ranks on a node.

    From four cores a rank on, one is left to the trainer: over-subscribed cores slow it more than a late batch does.
    """
    share = (usable_cores() if cores is None else cores) // local_size
    return max(1, share - 1 if share >= 4 else share)
