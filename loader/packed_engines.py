"""Who makes a packed set's batches: the engine that fits, with recipe, pace, fault policy and what is fetched ahead for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .batch import Batch
from .buffers import BufferPool
from .caller_engine import CallerEngine
from .cores import Claim, usable_cores
from .dataset import Dataset
from .decode import Decoder
from .delivery import Delivery
from .engine import Engine
from .faults import FaultPolicy
from .feeder import FeederEngine, Feeding
from .fetch import FetchAhead
from .fetch_epochs import ENCODED_SHARE, EpochFetcher
from .native_decode import default_decoder
from .options import LoaderOptions
from .pacer import Pacer, begin_pacer
from .plan import Plan
from .quarantine import Quarantine
from .sample_stage import SampleStage
from .stats import LoaderStats
from .steps import StepRecipe
from .topology import Topology

__all__ = ["Making", "PackedEngines"]


@dataclass(frozen=True, slots=True)
class Making:
    """What makes the batches of one iterator, ended by it."""

    engine: Engine[Batch]
    pacer: Pacer
    fetch: FetchAhead[Batch] | None
    """None: the set lies on disks of this machine, or is read by feeder processes."""


class PackedEngines:
    """Makes an engine for each iterator of one loader; their batch memory is one pool."""

    def __init__(
        self,
        dataset: Dataset,
        options: LoaderOptions,
        *,
        batch_size: int,
        decoder: Decoder | None,
        pin: bool,
        stats: LoaderStats,
        epoch_after: Callable[[], tuple[StepRecipe[Batch], int] | None],
        node_ranks: Callable[[], range],
    ) -> None:
        self._dataset, self._options, self._batch_size, self._pin, self._stats = dataset, options, batch_size, pin, stats
        self._given, self._decoder = decoder, decoder or default_decoder()
        self._assembler = dataset.assembler(self._decoder)
        memory = options.memory_bytes
        self._epochs: EpochFetcher[Batch] | None = None
        if dataset.packed.is_remote:
            self._epochs = EpochFetcher(
                dataset.packed,
                memory_bytes=memory,
                pace=options.pace,
                stall_s=options.stall_s,
                epoch_after=epoch_after,
                node_ranks=node_ranks,
            )
            weakref.finalize(self, self._epochs.close)
            memory -= int(memory * ENCODED_SHARE)
        transformed = options.transforms.sample or options.transforms.batch
        self._is_all_native = self._assembler.is_native and self._epochs is None and not pin and not transformed
        self.pool = BufferPool(memory)
        self.pacer: Pacer | None = None
        """The last iterator's: what it found out, the next one begins with."""

    def make(self, plan: Plan, first: int, place: Topology, threads: int, *, chooses_threads: bool) -> Making:
        """Return what makes the batches of `plan` from number `first` on; nothing runs yet.

        Args:
            threads: decode threads; 0: the caller decodes.
            chooses_threads: their number was not asked for; only then are they shared with other iterators.
        """
        options, transforms = self._options, self._options.transforms
        last = plan.steps * options.accumulate
        processes = transforms.process_count(threads)
        in_caller = self._is_all_native and threads > 0 and not processes
        if in_caller and chooses_threads:
            threads = max(1, min(threads, usable_cores() // place.local_size - 1))  # the caller has its share of the work
        faults, deliver = self._faults(plan), self._delivery(plan, in_processes=processes > 0)
        # A decoder with threads of its own needs two of ours: one waits for a step while the other prepares the next.
        waits = 2 if self._decoder.whole_step and not processes else 1
        claim = Claim(threads, at_least=waits) if chooses_threads and threads else None
        pacer = self.pacer = begin_pacer(
            options, place, self._decoder, claim, threads=threads, in_processes=processes > 0, before=self.pacer
        )
        if processes:
            feeding = Feeding(
                dataset=self._dataset,
                decoder=self._given,
                plan=plan,
                options=options,
                batch_size=self._batch_size,
                rank=place.rank,
                threads=threads if claim is None else claim.allowed(),
                first=first,
                last=last,
            )
            return Making(FeederEngine(feeding, processes, self.pool, faults, deliver, claim, self._stats.trail), pacer, None)
        recipe = partial(self._recipe, plan, place.rank, faults, deliver)
        fetch = None if self._epochs is None else self._epochs.begin(recipe, plan, first=first, last=last)
        if threads:
            self._decoder.start(threads)
        if in_caller:
            caller = CallerEngine(
                recipe(),
                self.pool,
                first=first,
                last=last,
                threads=0,
                prefetch=pacer.batches,
                stall_s=options.stall_s,
                claim=claim,
                trail=self._stats.trail,
            )
            return Making(caller, pacer, None)
        engine = Engine(
            recipe() if fetch is None else fetch,
            self.pool,
            first=first,
            last=last,
            threads=max(waits, pacer.most_threads) if threads else 0,
            prefetch=pacer.batches,
            stall_s=options.stall_s,
            claim=claim,
            trail=self._stats.trail,
            is_here=None if fetch is None else fetch.is_here,
        )
        if fetch is not None:
            fetch.wake = engine.wake
        return Making(engine, pacer, fetch)

    def recipe(self, plan: Plan, rank: int) -> StepRecipe[Batch]:
        """Return how `rank` makes the batches of `plan` in this process."""
        return self._recipe(plan, rank, self._faults(plan), self._delivery(plan, in_processes=False))

    def _recipe(self, plan: Plan, rank: int, faults: FaultPolicy, deliver: Delivery) -> StepRecipe[Batch]:
        return StepRecipe(
            plan,
            self._assembler,
            faults,
            batch_size=self._batch_size,
            rank=rank,
            accumulate=self._options.accumulate,
            deliver=deliver,
        )

    def _faults(self, plan: Plan) -> FaultPolicy:
        options, dataset = self._options, self._dataset
        record = None
        if options.quarantine is not None:
            record = Quarantine(options.quarantine, dataset.packed, dataset.view, accumulate=options.accumulate)
        return FaultPolicy(options, view=plan.view, epoch=plan.epoch, record=record)

    def _delivery(self, plan: Plan, *, in_processes: bool) -> Delivery:
        transforms = self._options.transforms
        return Delivery(
            bfloat16=self._assembler.bfloat16,
            stage=None if in_processes or transforms.sample is None else SampleStage(transforms.sample, self._assembler, plan),
            batch=transforms.batch,
            seed=plan.seed,
            pin=self._pin,
        )
