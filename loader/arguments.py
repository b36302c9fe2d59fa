"""torch's arguments where they mean something else over a packed set: checked, translated, or refused with the remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..formats import UsageError
from .options import LoaderOptions
from .sampler import Sampler
from .sequential import Sequential
from .shuffled import Shuffled

__all__ = ["refuse_ours", "sampler_of", "with_torchs"]


def sampler_of(
    sampler: Any, *, shuffle: bool | None, drop_last: bool, on_error: str
) -> Sampler:  # Any: torch's samplers, which are refused
    """Return the sampler that torch's arguments mean."""
    if sampler is None:
        if shuffle:
            return Shuffled(drop_last=drop_last)
        return Sequential(drop_last=drop_last)
    if not hasattr(sampler, "order") or not hasattr(sampler, "describe"):
        raise UsageError(
            f"DataLoader over a packed set takes headway's samplers, found {type(sampler).__name__}: the order must be a "
            "function of position to be equal on all ranks and to resume; use Shuffled, Sequential, Weighted, Mixture …"
        )
    if shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if drop_last and not sampler.drop_last:
        raise UsageError(f"drop_last=True belongs into the sampler: {type(sampler).__name__}(drop_last=True), if it has that")
    if on_error == "replace" and sampler.kind in ("evaluation", "sticky"):
        raise UsageError(
            f"on_error='replace' would change what sampler {sampler.kind!r} promises (each item itself, in its place); use 'mask'"
        )
    chosen: Sampler = sampler
    return chosen


def with_torchs(options: LoaderOptions, *, prefetch_factor: int | None, timeout: float) -> LoaderOptions:
    """Return the options with torch's two arguments of the same meaning put in; both set differently is an error."""
    changes: dict[str, Any] = {}  # Any: an int and a float
    for name, ours, value in (("prefetch_factor", "prefetch", prefetch_factor), ("timeout", "stall_s", timeout or None)):
        if value is None:
            continue
        if getattr(options, ours) not in (value, getattr(LoaderOptions(), ours)):
            raise UsageError(f"{name}={value!r} and LoaderOptions.{ours}={getattr(options, ours)!r} differ; give one")
        changes[ours] = value
    return replace(options, **changes)


def refuse_ours(**given: object) -> None:
    """Refuse what only packed sets have."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"DataLoader: {name}= is for packed sets (headway.open); over plain datasets torch does the loading")
