"""The place of a process among those that train together: its data rank, its node, and its model-parallel peers.

A value and its checks; finding it out is `topology_detect`'s job. Data rank and size say which slots of the global batch this
process reads; all peers that compute one replica together have the same data rank, and so get identical batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..formats import UsageError

__all__ = ["ALONE", "Peers", "Topology"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The place of this process along one axis of model parallelism."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise UsageError(f"Peers: rank must be from 0 to size − 1, found {self.rank} of {self.size}")


ALONE = Peers()
"""No peers on that axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The place of this process among the consumers of data.

    >>> Topology(rank=1, size=4).local_size
    1
    >>> Topology(rank=0, size=2, tensor=Peers(rank=1, size=4)).processes
    8
    """

    rank: int = 0
    """Data-parallel rank."""
    size: int = 1
    """Data-parallel ranks in all."""
    local_rank: int = 0
    """Number of this process on its node."""
    local_size: int = 1
    """Processes on this node, peers included; they share its cores."""
    node: int = 0
    """Number of this node."""
    nodes: int = 1
    """Nodes in all."""
    tensor: Peers = ALONE
    """Peers that hold parts of the same layers: they need identical batches."""
    pipeline: Peers = ALONE
    """Peers that hold other layers: they need the same samples, and each only its own fields."""
    context: Peers = ALONE
    """Peers that share one sequence: the same samples, of which each takes its part (`context_part`)."""
    source: str = "explicit"
    """What said so."""

    def __post_init__(self) -> None:
        for low, high in (("rank", "size"), ("local_rank", "local_size"), ("node", "nodes")):
            rank, size = getattr(self, low), getattr(self, high)
            if size < 1 or not 0 <= rank < size:
                raise UsageError(f"topology ({self.source}): {low} must be from 0 to {high} − 1, found {rank} of {size}")

    @property
    def processes(self) -> int:
        """Processes that train together."""
        return self.size * self.tensor.size * self.pipeline.size * self.context.size
