"""Whose waits cost the job what: the loss of each step, and the rank and stage that it is due to.

In synchronous training a step ends for all ranks when the last one is done, so a step loses, on every rank, what the rank that
waited longest waited; the waits of the others disappear in that. No clocks are compared between machines. Ranks whose progress
drifts apart are not synchronous: there each rank loses its own waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ._waits import RunWaits

__all__ = ["Blame", "Culprit", "SlowNode", "SlowRank", "find_blame"]

_DRIFT: Final = 0.05  # of the time taken: launch jitter and clock rates stay far below, independent ranks pass it soon
_MOST: Final = 0.5  # of the loss
_FACTOR: Final = 2.0  # × what is usual among the others
_FEW_STEPS: Final = 5

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Culprit:
    """What one rank lost the job in one stage."""

    rank: int
    node: int
    stage: str
    lost_gpu_s: float
    steps: int
    """In which it made the job wait."""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """One rank that most of the loss is due to."""

    rank: int
    node: int
    factor: float
    """Its waits over the median of the others'; infinite where those do not wait."""


@dataclass(frozen=True, slots=True)
class SlowNode:
    """One node, several ranks of which wait as the other nodes' do not."""

    node: int
    host: str
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class Blame:
    """The loss and whom it is due to."""

    is_synchronous: bool
    lost: Seconds
    """(R, S) GPU-seconds that the job lost because of rank r at step s."""
    culprits: list[Culprit]
    """The largest first."""
    slow_rank: SlowRank | None
    slow_node: SlowNode | None

    @property
    def lost_gpu_s(self) -> float:
        """GPU-seconds."""
        return float(self.lost.sum())

    def of_stage(self, run: RunWaits, stage: str) -> Seconds:
        """Return (R, S): the part of `lost` that is due to one stage."""
        return self.lost * _part(run, stage)


def find_blame(run: RunWaits) -> Blame:
    """Return what the waits of a run cost and whom that is due to."""
    is_synchronous = _is_synchronous(run)
    lost = run.waited
    if is_synchronous:
        slowest = run.waited.argmax(axis=0)
        lost = np.zeros_like(run.waited)
        every = np.arange(run.waited.shape[1])
        lost[slowest, every] = run.waited[slowest, every] * len(run.ranks)
    culprits = []
    for stage in run.waits:
        part = lost * _part(run, stage)
        for rank in np.flatnonzero(part.sum(axis=1) > 0).tolist():
            steps = int(np.count_nonzero(part[rank]))
            at = run.ranks[rank]
            culprits.append(Culprit(at.rank, int(run.nodes[rank]), stage, float(part[rank].sum()), steps))
    culprits.sort(key=lambda each: (-each.lost_gpu_s, each.rank))
    steady = lost * np.divide(run.steady, run.waited, where=run.waited > 0, out=np.zeros_like(lost))
    slow_node = _slow_node(run, steady)
    slow_rank = None if slow_node is not None else _slow_rank(run, steady)
    return Blame(is_synchronous, lost, culprits, slow_rank, slow_node)


def _part(run: RunWaits, stage: str) -> Seconds:
    return np.asarray(np.divide(run.waits[stage], run.waited, where=run.waited > 0, out=np.zeros_like(run.waited)))


def _is_synchronous(run: RunWaits) -> bool:
    """Whether the ranks keep step: the time from the second to the last common request is the same on all."""
    if len(run.ranks) < 2 or run.waited.shape[1] < _FEW_STEPS:
        return len(run.ranks) > 1
    took = run.asked[:, -1] - run.asked[:, 1]  # ranks need not ask for the first batch at the same time
    return float(np.ptp(took)) <= _DRIFT * float(np.median(took)) + float(np.median(run.waited + run.consumer))


def _slow_rank(run: RunWaits, lost: Seconds) -> SlowRank | None:
    by_rank, total = lost.sum(axis=1), float(lost.sum())
    if len(run.ranks) < 2 or not total:
        return None
    worst = int(by_rank.argmax())
    waited = run.steady.sum(axis=1)
    usual, own = float(np.median(np.delete(waited, worst))), float(waited[worst])
    if by_rank[worst] < _MOST * total or own < _FACTOR * usual:
        return None
    at = run.ranks[worst]
    return SlowRank(at.rank, int(run.nodes[worst]), own / usual if usual else float("inf"))


def _slow_node(run: RunWaits, lost: Seconds) -> SlowNode | None:
    nodes, total = run.nodes, float(lost.sum())
    waited = run.steady.sum(axis=1)
    names = np.unique(nodes)
    if len(names) < 2 or not total:
        return None
    by_node = [float(lost[nodes == node].sum()) for node in names]
    worst = int(names[int(np.argmax(by_node))])
    inside = nodes == worst
    usual = float(np.median(waited[~inside]))
    slow = np.flatnonzero(inside & (waited >= _FACTOR * usual) & (waited > 0))
    if max(by_node) < _MOST * total or len(slow) < 2 or 2 * len(slow) <= int(inside.sum()):
        return None
    host = str(run.ranks[int(slow[0])].header.get("host", ""))
    return SlowNode(worst, host, [run.ranks[rank].rank for rank in slow.tolist()])
