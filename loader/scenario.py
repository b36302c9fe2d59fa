"""What `simulate` is told: the job, its nodes, the store, and what a batch costs; plain numbers, measured or assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

from ..formats.errors import UsageError
from .pace import Pace

__all__ = ["BatchCost", "Job", "Machine", "Scenario", "StoreModel"]

_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The ranks and their consumer."""

    ranks: int = 1
    ranks_per_node: int = 1
    batch_size: int = 4
    """Samples a rank and step."""
    step_s: float = 0.1
    """The consumer's own time a step; all ranks wait for the last one each step."""
    step_spread: float = 0.0
    """Standard deviation of a rank's step, as a share of it."""
    epoch_steps: int = 0
    """Steps of an epoch, where the loader begins anew: nothing is decoded ahead across its end. 0: it never ends."""
    holds_batch: bool = True
    """The consumer keeps its batch's memory during the step."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.ranks_per_node < 1 or self.batch_size < 1 or self.step_s < 0:
            raise UsageError(f"cannot simulate {self}: ranks and batch size count from 1, a step takes 0 s or more")
        if self.ranks % self.ranks_per_node:
            raise UsageError(f"{self.ranks} ranks do not fill nodes of {self.ranks_per_node}; give a multiple of --gpus-per-node")

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return self.ranks // self.ranks_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCost:
    """What making one batch of one rank costs on this machine: t threads deliver one every `serial_s + parallel_s / t`."""

    serial_s: float = 0.0
    """The part that more threads do not shorten (Python, planning)."""
    parallel_s: float
    """Core-seconds of the part that threads share."""
    cpu_s: float
    """Core-seconds in all, which the ranks of a node compete for."""
    decoded_bytes: float
    encoded_bytes: float
    handover_s: float = 0.0
    """What handing a batch over adds to the consumer's step."""
    first_s: float = 0.0
    """From a new iterator to its first batch: threads started, steps planned, nothing ready yet."""
    spread: float = 0.0
    """Standard deviation of a batch's cost, as a share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node, and what a rank may use of it."""

    cores: float
    """Cores for making batches: those of the node, less what the consumers use themselves."""
    threads: int = 1
    """Decode threads of a rank."""
    memory_bytes: float = float(1 << 30)
    """Of a rank, for batches and what is encoded."""
    prefetch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreModel:
    """Where encoded bytes come from. The default is a local set in the page cache: they cost nothing beyond decoding."""

    latency_s: float = 0.0
    """Median time to the first byte."""
    latency_p99_s: float = 0.0
    """Its 99th percentile: latencies are log-normal."""
    stall_share: float = 0.0
    """Share of requests that take `stall_s` instead."""
    stall_s: float = 3.0
    bandwidth: float = math.inf
    """Bytes a second of one node."""
    request_bytes: float = float(8 << 20)
    """Ranges are joined up to this size."""
    cached_share: float = 0.0
    """Share of the ranges that the node's cache holds when the epoch begins."""

    @property
    def is_local(self) -> bool:
        """Whether nothing has to be fetched."""
        return self.latency_s == 0 and math.isinf(self.bandwidth)

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of the latency."""
        if self.latency_s <= 0 or self.latency_p99_s <= self.latency_s:
            return 0.0
        return math.log(self.latency_p99_s / self.latency_s) / _NORMAL.inv_cdf(0.99)

    def quantile(self, share: float) -> float:
        """Return the time within which this share of all requests, stalled ones too, is answered."""
        usual = share / (1 - self.stall_share) if self.stall_share < 1 else 1.0
        if usual >= 1:
            return max(self.stall_s, self.latency_s)
        return self.latency_s * math.exp(self.sigma * _NORMAL.inv_cdf(usual)) if self.sigma and usual > 0 else self.latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All of it."""

    job: Job
    cost: BatchCost
    machine: Machine
    store: StoreModel = field(default_factory=StoreModel)
    pace: Pace = field(default_factory=Pace)
    seed: int = 0
