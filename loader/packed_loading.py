"""What `DataLoader` is over a packed set: where it stands in which epoch, for whom, and the iterators that move it on."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

import torch

from ..formats import StateError, UsageError
from .arguments import Asked, sampler_of, with_torchs
from .batch import Batch
from .cores import decode_threads
from .packed_engines import PackedEngines
from .packed_iterator import PackedIterator
from .state import State
from .stats import LoaderStats
from .steps import StepRecipe
from .topology import Topology
from .topology_detect import detect_topology

__all__ = ["PackedLoading"]

log = logging.getLogger("headway")
T = TypeVar("T")


class PackedLoading:
    """Keeps positions; order is `plan`'s job, making batches the engines'."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.options = with_torchs(asked.options, prefetch_factor=asked.prefetch_factor, timeout=asked.timeout)
        self.order = sampler_of(asked.sampler, shuffle=asked.shuffle, drop_last=asked.drop_last, on_error=self.options.on_error)
        self.counted = LoaderStats()
        self._found = asked.topology
        self._is_fixed = asked.topology is not None
        self._view = asked.dataset.view
        pin = asked.pin_memory and torch.cuda.is_available()
        if asked.pin_memory and not pin:
            log.warning("headway: pin_memory=True has no effect: no CUDA device is available")
        us = weakref.ref(self)
        self.engines = PackedEngines(
            asked.dataset,
            self.options,
            batch_size=asked.batch_size,
            decoder=asked.decoder,
            pin=pin,
            stats=self.counted,
            epoch_after=partial(_of, us, PackedLoading._epoch_after, None),
            node_ranks=partial(_of, us, PackedLoading._node_ranks, range(1)),
        )
        self._start: State | None = None  # where the next iterator begins; None: epoch 0, its view not yet looked at
        self._position: State | None = None  # what the user has received
        self._is_loaded = False
        self._live: weakref.ref[PackedIterator] | None = None

    @property
    def topology(self) -> Topology:
        """The place of this process: as given; else as found now, and kept once an iterator or a loaded state depends on it.

        A loader may so be made before the process group, by scripts whose ranks a framework starts later.
        """
        if self._is_fixed and self._found is not None:
            return self._found
        found = detect_topology()
        if self._found is not None and found != self._found and self._start is not None:
            epoch, self._start, self._position = self._start.epoch, None, None  # their global batch was of another size
            self._found = found
            self._start = self._begin(epoch)
        self._found = found
        return found

    @property
    def threads(self) -> int:
        """Decode threads: as asked for, else chosen for the ranks of this node."""
        if self.asked.num_workers is not None:
            return self.asked.num_workers
        return decode_threads(self.topology.local_size if self._is_fixed else 1)

    @property
    def global_batch_size(self) -> int:
        """B: samples of a step over all ranks and micro-batches."""
        return self.asked.batch_size * self.topology.size * self.options.accumulate

    @property
    def iterator(self) -> PackedIterator | None:
        """The iterator under way."""
        iterator = None if self._live is None else self._live()
        return iterator if iterator is not None and not iterator.is_done else None

    def begin(self) -> PackedIterator:
        """Return an iterator over the rest of the epoch where this loader stands; the one after it begins the next epoch."""
        self._fix_topology()
        start = self._begin()
        kept = self._position, self._is_loaded
        self._start = start.next_epoch(self._view.info, self.order)
        self._position, self._is_loaded = start, False
        try:
            iterator = self._iterator(start)
        except BaseException:  # the epoch has not begun
            self._start, (self._position, self._is_loaded) = start, kept
            raise
        self._live = weakref.ref(iterator)
        return iterator

    def batches(self) -> int:
        """Return the batches of the whole epoch: of the one being iterated, else of the next."""
        live = self.iterator
        plan = live.plan if live is not None else self._begin().plan(self._view.info, self.order)
        return plan.steps * self.options.accumulate

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator begin epoch `epoch`; a position loaded in that very epoch is kept."""
        if epoch < 0:
            raise UsageError(f"set_epoch: epochs count from 0, found {epoch}")
        start = self._begin()
        if self._is_loaded and start.epoch == epoch:
            return
        self._start = start.next_epoch(self._view.info, self.order, epoch=epoch)
        self._is_loaded = False
        if self.iterator is None:
            self._position = self._start

    def state(self) -> dict[str, Any]:  # Any: JSON values
        """Return the position after the last batch that was handed over."""
        position = self._begin() if self._position is None else self._position
        return position.to_json()

    def load(self, state: dict[str, Any]) -> None:  # Any: as above
        """Go on after the batch that `state` came with.

        Raises:
            StateError: the state belongs to another view, order or seed, or an iterator is under way.
        """
        if self.iterator is not None:
            raise StateError(
                "cannot load a state while an iterator of this loader is under way: finish it, or delete it, and load before the "
                "next one is made"
            )
        self._fix_topology()
        self._start = self._position = State.from_json(state).resume(
            self._view.info,
            self.order,
            seed=self.options.seed,
            batch_size=self.global_batch_size,
            ranks=self.topology.size,
            accumulation=self.options.accumulate,
            strict_batch=self.options.strict_batch,
        )
        self._is_loaded = True

    def stats(self) -> dict[str, float]:
        """Return how well this rank was fed so far, and what is chosen now."""
        live, pacer = self.iterator, self.engines.pacer
        fetched = {} if live is None or live.fetch is None else live.fetch.values()
        return self.counted.report() | ({} if pacer is None else pacer.values()) | fetched

    def pickled(self) -> tuple[dict[str, Any], dict[str, Any] | None]:  # Any: arguments, and JSON values
        """Return what was asked for, and the position if there is one."""
        asked = {field.name: getattr(self.asked, field.name) for field in fields(self.asked)}
        return asked, None if self._start is None else self.state()

    def planned_items(self) -> Iterator[int]:
        """Yield the items that the next iterator will deliver to this rank, without reading any (−1: padding)."""
        begin = self._begin()
        plan, accumulate = begin.plan(self._view.info, self.order), self.options.accumulate
        share = self.global_batch_size // self.topology.size
        first = self.topology.rank * share
        received = begin.inside.micro * share // accumulate if begin.inside else 0
        for step in range(plan.first_step, plan.steps):
            yield from plan.step(step, first + (received if step == plan.first_step else 0), first + share).items.tolist()

    def _iterator(self, start: State) -> PackedIterator:
        options, place = self.options, self.topology
        plan, first = start.plan(self._view.info, self.order), start.first_batch(options.accumulate)
        self.counted.show(options.telemetry, place)
        self.counted.begin(epoch=plan.epoch, number=first)
        making = self.engines.make(plan, first, place, self.threads, chooses_threads=self.asked.num_workers is None)
        return PackedIterator(
            making,
            plan,
            start,
            accumulate=options.accumulate,
            ranks=place.size,
            stats=self.counted,
            moved=self._moved,
            packed=self.asked.dataset.packed,
        )

    def _moved(self, position: State) -> None:
        self._position = position

    def _begin(self, epoch: int = 0) -> State:
        """Return where the next iterator begins: at `epoch`, unless that is known already."""
        place = self.topology  # looked at first: another one than before resets the start
        if self._start is None:
            global_batch = self.asked.batch_size * place.size * self.options.accumulate
            self._start = State.start(self._view.info, self.order, seed=self.options.seed, epoch=epoch, batch_size=global_batch)
        return self._start

    def _fix_topology(self) -> None:
        """Look the place up for good, as something is about to depend on it."""
        if self._is_fixed and self.asked.topology is None and self._found is not None:
            now = detect_topology()
            if now.size > 1 and (now.rank, now.size) != (self._found.rank, self._found.size):
                raise UsageError(
                    f"this loader began as data rank {self._found.rank} of {self._found.size} ({self._found.source}), and this "
                    f"process is now rank {now.rank} of {now.size} ({now.source}); make the loader again in each process"
                )
        self._found, self._is_fixed = self.topology, True

    def _node_ranks(self) -> range:
        place = self.topology
        # Ranks are numbered node by node by every launcher that we know.
        first = max(0, place.rank - place.local_rank)
        return range(first, min(place.size, first + place.local_size))

    def _epoch_after(self) -> tuple[StepRecipe[Batch], int] | None:
        """Return the recipe that the iterator after the one under way begins with, as things stand, and its batches."""
        if self._start is None:
            return None
        plan = self._start.plan(self._view.info, self.order)
        return self.engines.recipe(plan, self.topology.rank), plan.steps * self.options.accumulate


def _of(loading: weakref.ref[PackedLoading], ask: Callable[[PackedLoading], T], otherwise: T) -> T:
    """Return what a loading says of itself; `otherwise` once it is gone, as whoever asks does not keep it alive."""
    alive = loading()
    return otherwise if alive is None else ask(alive)
