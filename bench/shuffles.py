"""How well an order mixes drives and what it holds open for that: headway's plan against other published shuffles.

The others are written here from their public descriptions: `spread` is what MosaicML Streaming's documentation calls py1e (the
samples of each shard are moved within a range of the shuffled shard order), `buffered` is the shuffle buffer of WebDataset and
others (a buffer fed from shuffled shards gives a random one of its items for each that comes in).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..loader.plan import Plan
from ..loader.sampler import ViewInfo
from ..loader.shuffled import Shuffled

__all__ = ["WINDOWS", "Quality", "buffered", "headway", "ideal", "ideal_same_drive", "quality", "spread"]

Items = NDArray[np.int64]

WINDOWS = (1, 4, 16, 64)
"""Consecutive batches over which distinct drives are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What an order of items does to the batches made of it."""

    same_drive: float
    """Probability that two items of one batch are of the same drive."""
    distinct_drives: tuple[float, ...]
    """Mean number of drives over 1, 4, 16 and 64 consecutive batches."""
    open_blocks: float
    """Read units (blocks, shards) begun and not finished, mean over batches: what a cache has to hold."""
    open_items: float
    """The same in items."""


def quality(order: Items, *, batch_size: int, drive: Items, unit_items: int) -> Quality:
    """Return the quality of `order`; `drive` says each item's drive, `unit_items` how many items are read together."""
    steps = len(order) // batch_size
    order = order[: steps * batch_size]
    step = np.repeat(np.arange(steps), batch_size)
    drives = int(drive.max()) + 1
    _, together = np.unique(step * drives + drive[order], return_counts=True)
    pairs = float((together * (together - 1)).sum()) / (steps * batch_size * (batch_size - 1))
    distinct = []
    for window in WINDOWS:
        whole = steps // window * window * batch_size
        seen = np.unique(step[:whole] // window * drives + drive[order[:whole]])
        distinct.append(len(seen) / max(1, steps // window))
    unit = order // unit_items
    first, last = np.full(unit.max() + 1, steps), np.full(unit.max() + 1, -1)
    np.minimum.at(first, unit, step)
    np.maximum.at(last, unit, step)
    held = float((last - first + 1)[last >= 0].sum()) / steps
    return Quality(same_drive=pairs, distinct_drives=tuple(distinct), open_blocks=held, open_items=held * unit_items)


def ideal_same_drive(drive: Items) -> float:
    """Return the probability that two different items drawn from all are of the same drive."""
    sizes = np.bincount(drive).astype(np.float64)
    return float((sizes * (sizes - 1)).sum() / (len(drive) * (len(drive) - 1)))


def headway(view: ViewInfo, *, batch_size: int, sampler: Shuffled, seed: int) -> Items:
    """Return the order of headway's plan, step by step, slot by slot."""
    plan = Plan(view, sampler, seed=seed, epoch=0, segments=[(batch_size, 0)])
    items = plan.look_ahead(0, plan.steps).items
    return items[items >= 0]


def ideal(items: int, *, seed: int) -> Items:
    """Return a uniformly random order."""
    return np.random.default_rng(seed).permutation(items)


def spread(items: int, *, shard_items: int, range_items: int, seed: int) -> Items:
    """Return an order in which the items of each shard lie within about `range_items` of the shuffled shard order.

    Shards in random order, items shuffled within each; then each item is moved by a uniform draw, so that those of a shard
    cover a range of 0.75 to 1.25 × `range_items` (drawn per shard), bent back at both ends of the epoch.
    """
    rng = np.random.default_rng(seed)
    order, where, begin = [], [], 0
    for shard in rng.permutation(-(-items // shard_items)):
        members = rng.permutation(np.arange(shard * shard_items, min(items, (shard + 1) * shard_items)))
        reach = max(0.0, (rng.integers(int(0.75 * range_items), int(1.25 * range_items)) - len(members)) / 2)
        low, high = max(-reach, -begin), min(reach, items - begin - len(members))
        where.append(np.arange(begin, begin + len(members)) + rng.uniform(low, high, len(members)))
        order.append(members)
        begin += len(members)
    return np.concatenate(order)[np.argsort(np.concatenate(where), kind="stable")]


def buffered(items: int, *, shard_items: int, buffer_items: int, seed: int) -> Items:
    """Return an order as it leaves a shuffle buffer that is fed from shards in random order."""
    rng = np.random.default_rng(seed)
    shards = rng.permutation(-(-items // shard_items))
    stream = [item for shard in shards for item in range(shard * shard_items, min(items, (shard + 1) * shard_items))]
    buffer, order = stream[:buffer_items], []
    for item, place in zip(stream[buffer_items:], rng.integers(0, len(buffer), max(0, items - buffer_items)), strict=True):
        order.append(buffer[place])
        buffer[place] = item
    return np.array([*order, *rng.permutation(buffer)], np.int64)
