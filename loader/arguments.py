"""torch's arguments where they mean something else over a packed set: checked, translated, or refused with the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ..formats import UsageError
from .dataset import Dataset
from .decode import Decoder
from .options import LoaderOptions
from .sampler import Sampler
from .sequential import Sequential
from .shuffled import Shuffled
from .topology import Topology

__all__ = ["Asked", "only_stall", "refuse_ours", "refuse_torchs", "sampler_of", "with_torchs"]

# torch's arguments that a packed set has no use for: why, and what to do instead.
_NO_MEANING: Final[Mapping[str, str]] = {
    "batch_sampler": "the plan forms batches, so that they are equal on any number of ranks; give sampler= one of headway's",
    "collate_fn": "batches are assembled in place from the schema; change them after they come, or choose fields by windows=",
    "generator": "order and draws follow from a seed, so that they survive a resume; use options=LoaderOptions(seed=…)",
    "worker_init_fn": "there are no worker processes and no hidden random state; draws are keyed by LoaderOptions(seed=…)",
    "multiprocessing_context": "there are no worker processes: decode threads live in this one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What `DataLoader` was asked for over a packed set; its fields are the arguments' names.

    Raises:
        UsageError, ValueError: an argument makes no sense, whatever the set.
    """

    dataset: Dataset
    batch_size: int
    shuffle: bool | None
    sampler: Any  # Any: one of headway's, which `sampler_of` checks
    num_workers: int | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    prefetch_factor: int | None
    options: LoaderOptions
    topology: Topology | None
    decoder: Decoder | None

    def __post_init__(self) -> None:
        size, threads = self.batch_size, self.num_workers
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"DataLoader over a packed set: batch_size must be a whole number from 1, found {size!r}")
        if threads is not None and threads < 0:
            raise UsageError(f"DataLoader: num_workers must be None (chosen), 0 (the caller) or threads, found {threads!r}")
        if self.timeout < 0:
            raise ValueError("timeout option should be non-negative")


def refuse_torchs(*, in_order: bool, pin_memory_device: str, **given: object) -> None:
    """Refuse what has no meaning over a packed set."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"DataLoader over a packed set takes no {name}: {_NO_MEANING[name]}")
    if not in_order:
        raise UsageError("DataLoader over a packed set delivers in the plan's order; in_order=False has no meaning there")
    if pin_memory_device not in ("", "cuda"):
        raise UsageError(f"DataLoader over a packed set: pin_memory_device must be '' or 'cuda', found {pin_memory_device!r}")


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


def only_stall(options: LoaderOptions | None) -> float:
    """Return the one option that means something over a plain dataset."""
    given = options or LoaderOptions()
    if given != LoaderOptions(stall_s=given.stall_s):
        raise UsageError(
            f"DataLoader over a plain dataset: of LoaderOptions only stall_s has a meaning there, the rest is for packed sets "
            f"(headway.open), found {given!r}"
        )
    return given.stall_s
