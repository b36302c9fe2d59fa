"""Which data-parallel rank this process is, and how many share its node.

One small detector each for what can know: an explicit argument wins, then an initialised torch.distributed, then the
environment of torchrun (which others set, too), then a single process. Two that contradict each other are an error that
lists what was seen; guessing would give two ranks the same data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ..formats import UsageError

__all__ = ["Topology", "detect_topology"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The place of this process among the consumers of data.

    >>> Topology(rank=1, size=4).local_size
    1
    """

    rank: int = 0
    """Data-parallel rank."""
    size: int = 1
    """Data-parallel ranks in all."""
    local_rank: int = 0
    """Rank within this node."""
    local_size: int = 1
    """Ranks on this node; they share its cores."""
    source: str = "explicit"
    """What said so."""

    def __post_init__(self) -> None:
        for low, high in (("rank", "size"), ("local_rank", "local_size")):
            rank, size = getattr(self, low), getattr(self, high)
            if size < 1 or not 0 <= rank < size:
                raise UsageError(f"topology ({self.source}): {low} must be from 0 to {high} − 1, found {rank} of {size}")


def detect_topology(environ: Mapping[str, str] | None = None) -> Topology:
    """Return what torch.distributed or the environment says, or a single process."""
    environ = os.environ if environ is None else environ
    seen = [found for found in (_torch_distributed(environ), _torchrun(environ)) if found is not None]
    if len({(found.rank, found.size) for found in seen}) > 1:
        raise UsageError(
            "the data-parallel rank is ambiguous: "
            + "; ".join(f"{found.source} says rank {found.rank} of {found.size}" for found in seen)
            + "; pass topology=Topology(rank=…, size=…) to DataLoader"
        )
    return seen[0] if seen else Topology(source="single process")


def _torch_distributed(environ: Mapping[str, str]) -> Topology | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    local_rank, local_size = _local(environ)
    return Topology(
        rank=distributed.get_rank(),
        size=distributed.get_world_size(),
        local_rank=local_rank,
        local_size=local_size,
        source="torch.distributed",
    )


def _torchrun(environ: Mapping[str, str]) -> Topology | None:
    if not {"RANK", "WORLD_SIZE"} <= environ.keys():
        return None
    local_rank, local_size = _local(environ)
    return Topology(
        rank=_number(environ, "RANK"),
        size=_number(environ, "WORLD_SIZE"),
        local_rank=local_rank,
        local_size=local_size,
        source="RANK and WORLD_SIZE of the environment",
    )


def _local(environ: Mapping[str, str]) -> tuple[int, int]:
    if {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= environ.keys():
        return _number(environ, "LOCAL_RANK"), _number(environ, "LOCAL_WORLD_SIZE")
    return 0, 1


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise UsageError(f"environment variable {name} must be a whole number, found {environ[name]!r}") from None
