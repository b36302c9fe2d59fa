"""Drawn views, samplers and topologies for the laws of order, and ranks simulated in process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.loader.mixture import Mixture
from headway.loader.plan import Plan, ViewInfo
from headway.loader.sampler import Sampler
from headway.loader.sequential import Evaluation, Sequential
from headway.loader.shuffled import Shuffled
from headway.loader.sticky import SlotSticky
from headway.loader.weighted import Weighted
from headway.loader.weights import WeightTable

Items = NDArray[np.int64]


WEIGHTS: list[tuple[float, ...]] = [(1, 1), (3, 1), (2, 1), (1, 31), (2, 1, 1), (5, 2, 1), (8, 4, 3, 1)]
"""Of mixtures. Most repeat after a few items: a table of 65,536 takes longer to make than a law takes to check."""


@dataclass(frozen=True)
class Topology:
    """Ranks R, accumulation k and micro-batch size of a global batch B = R · k · size."""

    ranks: int
    accumulation: int
    size: int

    @property
    def batch_size(self) -> int:
        return self.ranks * self.accumulation * self.size


def view_of(items: int, *, drive: int = 7, name: str = "view") -> ViewInfo:
    """Return a view of drives of `drive` items."""
    return ViewInfo(view_id=name, items=items, drive_starts=np.append(np.arange(0, items, drive), items))


@st.composite
def views(draw: st.DrawFn, *, most: int = 400) -> ViewInfo:
    """Draw a view of drives of uneven lengths, some of them empty."""
    lengths = draw(st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any))
    starts = np.minimum(np.cumsum([0, *lengths]), most)
    return ViewInfo(view_id="view", items=int(starts[-1]), drive_starts=starts.astype(np.int64))


@st.composite
def once_samplers(draw: st.DrawFn, *, drop_last: bool | None = False) -> Sampler:
    """Draw a sampler that hands out each item once an epoch."""
    drop = draw(st.booleans()) if drop_last is None else drop_last
    blocks = draw(st.none() | st.integers(1, 40))
    samplers: list[Sampler] = [
        Shuffled(block_items=blocks, span_blocks=draw(st.integers(1, 12)), drop_last=drop),
        Sequential(drop_last=drop),
        SlotSticky(chunk_items=blocks, drop_last=drop),
    ]
    if not drop:
        samplers.append(Evaluation())
    return draw(st.sampled_from(samplers))


@st.composite
def orders(draw: st.DrawFn) -> tuple[ViewInfo, Sampler]:
    """Draw a view and any sampler for it."""
    kind = draw(st.sampled_from(["once", "weighted", "mixture"]))
    view = draw(views())
    if kind == "once":
        return view, draw(once_samplers(drop_last=None))
    drop, epoch_items = draw(st.booleans()), draw(st.none() | st.integers(1, 300))
    if kind == "weighted":
        weights = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 9, view.items)
        weights[0] += 1
        return view, Weighted(table=WeightTable.of(weights), epoch_items=epoch_items, drop_last=drop)
    parts = draw(st.sampled_from(WEIGHTS))
    sets = [view, *draw(st.lists(views(most=50), min_size=len(parts) - 1, max_size=len(parts) - 1))]
    mixture = Mixture(
        weights=parts,
        virtual_slots=draw(st.integers(1, 20)),
        span_blocks=draw(st.integers(1, 5)),
        epoch_items=epoch_items,
        drop_last=drop,
    )
    return ViewInfo.joined(sets), mixture


def topologies(*, most: int = 48) -> st.SearchStrategy[Topology]:
    """Draw a topology with a global batch of at most `most`."""
    return st.builds(Topology, st.integers(1, 8), st.integers(1, 4), st.integers(1, 6)).filter(lambda t: t.batch_size <= most)


def received(plan: Plan, topology: Topology, *, ahead: int, steps: range) -> Iterator[Items]:
    """Yield each step's global batch as ranks, each looking `ahead` steps, put it together from their micro-batches."""
    share = topology.batch_size // topology.ranks
    for begin in range(steps.start, steps.stop, ahead):
        count = min(ahead, steps.stop - begin)
        parts = [
            plan.look_ahead(begin, count, rank * share + micro * topology.size, rank * share + (micro + 1) * topology.size)
            for rank in range(topology.ranks)
            for micro in range(topology.accumulation)
        ]
        yield from np.concatenate([part.items for part in parts], axis=1)
