"""`DataLoader`: torch's class and signature; over a packed set it streams batches in a planned, resumable order.

Over any other dataset it is torch's DataLoader with `state_dict`, `load_state_dict`, `stats` and a watch over waits added.
Which path is taken depends on the dataset alone. Here arguments are checked and positions kept; order is `plan`'s job, making
batches `engine`'s.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch.utils.data import DataLoader as TorchLoader

from ..formats import StateError, UsageError
from ..formats.packed_set import PackedSet
from .arguments import refuse_ours, sampler_of, with_torchs
from .batch import Batch
from .buffers import BufferPool
from .caller_engine import CallerEngine
from .cores import Claim, decode_threads
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
from .plain import PlainState
from .plain_iterator import plain_iterator
from .plan import Plan
from .plan_sampler import PlanSampler
from .quarantine import Quarantine
from .recorder import Sources
from .sample_stage import SampleStage
from .state import State
from .stats import LoaderStats
from .steps import StepRecipe
from .store_values import store_values
from .topology import Topology
from .topology_detect import detect_topology

__all__ = ["DataLoader"]

log = logging.getLogger("headway")

# torch's arguments that a packed set has no use for: why, and what to do instead.
_NO_MEANING: Final[Mapping[str, str]] = {
    "batch_sampler": "the plan forms batches, so that they are equal on any number of ranks; give sampler= one of headway's",
    "collate_fn": "batches are assembled in place from the schema; change them after they come, or choose fields by windows=",
    "generator": "order and draws follow from a seed, so that they survive a resume; use options=LoaderOptions(seed=…)",
    "worker_init_fn": "there are no worker processes and no hidden random state; draws are keyed by LoaderOptions(seed=…)",
    "multiprocessing_context": "there are no worker processes: decode threads live in this one",
}


class DataLoader(TorchLoader[Any]):  # Any: a plain dataset yields whatever it likes
    """Batches of a dataset, in an order known beforehand.

    Over `headway.open(…)`: seeded, rank-aware, with equal steps on all ranks and a state in each batch. `batch_size` counts
    samples a rank and micro-batch; `num_workers` are decode threads of this process (None: chosen, 0: the caller decodes);
    `prefetch_factor` is `LoaderOptions.prefetch`; `timeout` is its `stall_s`. Breaking out of a loop ends that epoch: the next
    loop begins the next one, unless `load_state_dict` or `set_epoch` says otherwise. Nothing runs before iteration starts.

    Over anything else: torch's DataLoader, argument for argument; a wait longer than `LoaderOptions.stall_s` is logged with what
    is waited for and all stacks, and goes on.

    >>> loader = DataLoader(headway.open(drives_set), batch_size=4, shuffle=True, options=LoaderOptions(seed=3))
    >>> for batch in loader:
    ...     state = batch["state"]  # put it into the checkpoint: loader.load_state_dict(state) goes on after this batch
    >>> len(loader), state["epoch"]
    (5, 1)
    """

    _pacer: Pacer | None = None  # the last iterator's

    def __init__(
        self,
        dataset: Any,  # Any: a headway Dataset, or whatever torch accepts
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,  # Any: headway's Sampler, or what torch takes
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,  # Any: a name or a context, as torch takes it
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        options: LoaderOptions | None = None,
        topology: Topology | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        self._plain = None if isinstance(dataset, Dataset) else PlainState()
        self._packed_arguments: dict[str, Any] = {}  # Any: what the constructor was given, for pickling
        torchs_own = {
            "batch_sampler": batch_sampler,
            "collate_fn": collate_fn,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
        }
        if self._plain is not None:
            refuse_ours(topology=topology, decoder=decoder)
            self._stats, self._stall_s = LoaderStats(), _only_stall(options)
            more: dict[str, Any] = {} if in_order else {"in_order": False}  # Any: torch's argument; absent before 2.6
            super().__init__(
                dataset,
                batch_size,
                shuffle,
                sampler,
                num_workers=num_workers or 0,
                pin_memory=pin_memory,
                drop_last=drop_last,
                timeout=timeout,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                pin_memory_device=pin_memory_device,
                **torchs_own,
                **more,
            )
            return
        for name, value in torchs_own.items():
            if value is not None:
                raise UsageError(f"DataLoader over a packed set takes no {name}: {_NO_MEANING[name]}")
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise UsageError(f"DataLoader over a packed set: batch_size must be a whole number from 1, found {batch_size!r}")
        if num_workers is not None and num_workers < 0:
            raise UsageError(f"DataLoader: num_workers must be None (chosen), 0 (the caller) or threads, found {num_workers!r}")
        if not in_order:
            raise UsageError("DataLoader over a packed set delivers in the plan's order; in_order=False has no meaning there")
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if pin_memory_device not in ("", "cuda"):
            raise UsageError(f"DataLoader over a packed set: pin_memory_device must be '' or 'cuda', found {pin_memory_device!r}")
        self._packed_arguments = {
            "dataset": dataset,
            "batch_size": batch_size,
            "shuffle": shuffle,
            "sampler": sampler,
            "num_workers": num_workers,
            "pin_memory": pin_memory,
            "drop_last": drop_last,
            "timeout": timeout,
            "prefetch_factor": prefetch_factor,
            "options": options,
            "topology": topology,
            "decoder": decoder,
        }
        self._options = with_torchs(options or LoaderOptions(), prefetch_factor=prefetch_factor, timeout=timeout)
        self._given, self._found = topology, topology
        self._is_fixed = topology is not None
        self._order = sampler_of(sampler, shuffle=shuffle, drop_last=drop_last, on_error=self._options.on_error)
        self._dataset, self._view = dataset, dataset.view
        self._decoder = decoder or default_decoder()
        self._assembler = dataset.assembler(self._decoder)
        pool_bytes = self._options.memory_bytes
        self._epochs: EpochFetcher[Batch] | None = None
        self._fetch: FetchAhead[Batch] | None = None  # of the latest iterator
        if dataset.packed.is_remote:
            self._epochs = self._new_fetcher()
            pool_bytes -= int(pool_bytes * ENCODED_SHARE)
        self._pool = BufferPool(pool_bytes)
        self._stats = LoaderStats()
        self._pin = pin_memory and torch.cuda.is_available()
        if pin_memory and not self._pin:
            log.warning("headway: pin_memory=True has no effect: no CUDA device is available")
        self._start: State | None = None  # where the next iterator begins; None: epoch 0, its view not yet looked at
        self._position: State | None = None  # what the user has received
        self._is_loaded = False
        self._live: weakref.ref[_PackedIterator] | None = None
        self._is_accelerate_prepared = True  # read by Accelerate, which would replace a loader that is not
        super().__init__(dataset, batch_size, sampler=PlanSampler(self), num_workers=0, drop_last=self._order.drop_last)
        self._chooses_threads = num_workers is None
        self.num_workers = decode_threads(1) if num_workers is None else num_workers

    @property
    def topology(self) -> Topology:
        """The place of this process: as given; else as found now, and kept once an iterator or a loaded state depends on it.

        A loader may so be made before the process group, by scripts whose ranks a framework starts later.
        """
        if self._plain is not None:
            return detect_topology()
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
    def global_batch_size(self) -> int:
        """B: samples of a step over all ranks and micro-batches."""
        assert self.batch_size is not None
        return self.batch_size * self.topology.size * self._options.accumulate

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch annotates its private iterator class
        if self._plain is not None:
            return self._plain.begin(self, super().__iter__)  # torch's, which calls _get_iterator
        self._fix_topology()
        start = self._begin()
        kept = self._position, self._is_loaded
        self._start = start.next_epoch(self._view.info, self._order)
        self._position, self._is_loaded = start, False
        try:
            iterator = _PackedIterator(self, start)
        except BaseException:  # the epoch has not begun
            self._start, (self._position, self._is_loaded) = start, kept
            raise
        self._live = weakref.ref(iterator)
        return iterator

    def __len__(self) -> int:
        """Batches of the whole epoch: of the one being iterated, else of the next."""
        if self._plain is not None:
            return super().__len__()
        live = self._live_iterator()
        plan = live.plan if live is not None else self._begin().plan(self._view.info, self._order)
        return plan.steps * self._options.accumulate

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator begin epoch `epoch`; a position loaded in that very epoch is kept."""
        if self._plain is not None:
            for holder in (self.sampler, self.batch_sampler, self.dataset):
                tell = getattr(holder, "set_epoch", None)
                if tell is not None:
                    tell(epoch)
            return
        if epoch < 0:
            raise UsageError(f"set_epoch: epochs count from 0, found {epoch}")
        start = self._begin()
        if self._is_loaded and start.epoch == epoch:
            return
        self._start = start.next_epoch(self._view.info, self._order, epoch=epoch)
        self._is_loaded = False
        if self._live_iterator() is None:
            self._position = self._start

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was handed over, as JSON values (plain datasets: plus a tensor)."""
        if self._plain is not None:
            return self._plain.state(self)
        position = self._begin() if self._position is None else self._position
        return position.to_json()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next iterator go on after the batch that `state_dict` came with.

        Raises:
            StateError: the state belongs to another view, order or seed, or an iterator is under way.
        """
        if self._plain is not None:
            self._plain.load(state_dict)
            return
        if self._live_iterator() is not None:
            raise StateError(
                "cannot load a state while an iterator of this loader is under way: finish it, or delete it, and load before the "
                "next one is made"
            )
        self._fix_topology()
        self._start = self._position = State.from_json(state_dict).resume(
            self._view.info,
            self._order,
            seed=self._options.seed,
            batch_size=self.global_batch_size,
            ranks=self.topology.size,
            accumulation=self._options.accumulate,
            strict_batch=self._options.strict_batch,
        )
        self._is_loaded = True

    def stats(self) -> dict[str, float]:
        """Return how well this rank was fed so far; `LoaderStats.report` lists the numbers."""
        if self._plain is not None:
            return self._stats.report()
        live = self._live_iterator()
        fetched = {} if live is None or live._fetch is None else live._fetch.values()
        return self._stats.report() | ({} if self._pacer is None else self._pacer.values()) | fetched

    def __reduce__(self) -> Any:  # Any: the shape pickle asks for
        """Pickle as what was asked for and the position; a process that unpickles it finds its own place among the ranks."""
        if self._plain is not None:
            return super().__reduce__()
        return _unpickled, (type(self), self._packed_arguments, None if self._start is None else self.state_dict())

    def planned_items(self) -> Iterator[int]:
        """Yield the items that the next iterator will deliver to this rank, without reading any (−1: padding)."""
        begin = self._begin()
        plan, accumulate = begin.plan(self._view.info, self._order), self._options.accumulate
        share = self.global_batch_size // self.topology.size
        first = self.topology.rank * share
        received = begin.inside.micro * share // accumulate if begin.inside else 0
        for step in range(plan.first_step, plan.steps):
            yield from plan.step(step, first + (received if step == plan.first_step else 0), first + share).items.tolist()

    def _get_iterator(self) -> Any:  # Any: torch's iterators are private
        """Return what iterates a plain dataset: torch's, followed."""
        if self._plain is None or self._plain.position is None:
            return super()._get_iterator()
        return plain_iterator(self, self._plain.position, self._stats, self._stall_s)

    def _begin(self, epoch: int = 0) -> State:
        """Return where the next iterator begins: at `epoch`, unless that is known already."""
        place = self.topology  # looked at first: another one than before resets the start
        if self._start is None:
            assert self.batch_size is not None
            global_batch = self.batch_size * place.size * self._options.accumulate
            self._start = State.start(self._view.info, self._order, seed=self._options.seed, epoch=epoch, batch_size=global_batch)
        return self._start

    def _fix_topology(self) -> None:
        """Look the place up for good, as something is about to depend on it."""
        if self._is_fixed and self._given is None and self._found is not None:
            now = detect_topology()
            if now.size > 1 and (now.rank, now.size) != (self._found.rank, self._found.size):
                raise UsageError(
                    f"this loader began as data rank {self._found.rank} of {self._found.size} ({self._found.source}), and this "
                    f"process is now rank {now.rank} of {now.size} ({now.source}); make the loader again in each process"
                )
        place = self.topology
        self._is_fixed = True
        if self._chooses_threads:
            self.num_workers = decode_threads(place.local_size)

    def _live_iterator(self) -> _PackedIterator | None:
        iterator = None if self._live is None else self._live()
        return iterator if iterator is not None and not iterator.is_done else None

    def _engine(self, plan: Plan, first: int) -> Engine[Batch]:
        options, transforms = self._options, self._options.transforms
        assert self.batch_size is not None
        last = plan.steps * options.accumulate
        processes = transforms.process_count(self.num_workers)
        faults, deliver = self._faults(plan), self._delivery(plan, in_processes=processes > 0)
        waits = 2 if self._decoder.whole_step and not processes else 1
        # Threads that were asked for by number are not shared.
        claim = Claim(self.num_workers, at_least=waits) if self._chooses_threads and self.num_workers else None
        pacer = self._pacer = begin_pacer(
            options, self.topology, self._decoder, claim, threads=self.num_workers, in_processes=processes > 0, before=self._pacer
        )
        if processes:
            feeding = Feeding(
                dataset=self._dataset,
                decoder=self._packed_arguments["decoder"],
                plan=plan,
                options=options,
                batch_size=self.batch_size,
                rank=self.topology.rank,
                threads=self.num_workers if claim is None else claim.allowed(),
                first=first,
                last=last,
            )
            return FeederEngine(feeding, processes, self._pool, faults, deliver, claim, self._stats.trail)
        recipe = partial(self._recipe, plan, faults, deliver)
        fetch = self._fetch = None if self._epochs is None else self._epochs.begin(recipe, plan, first=first, last=last)
        if self.num_workers:
            self._decoder.start(self.num_workers)
        if (
            fetch is None
            and self.num_workers
            and self._assembler.is_native
            and not self._pin
            and not (transforms.sample or transforms.batch)
        ):
            return CallerEngine(
                recipe(),
                self._pool,
                first=first,
                last=last,
                threads=0,
                prefetch=pacer.batches,
                stall_s=options.stall_s,
                claim=claim,
                trail=self._stats.trail,
            )
        # A decoder with threads of its own needs two of ours: one waits for a step while the other prepares the next.
        threads = max(waits, pacer.most_threads) if self.num_workers else 0
        engine = Engine(
            recipe() if fetch is None else fetch,
            self._pool,
            first=first,
            last=last,
            threads=threads,
            prefetch=pacer.batches,
            stall_s=options.stall_s,
            claim=claim,
            trail=self._stats.trail,
            is_here=None if fetch is None else fetch.is_here,
        )
        if fetch is not None:
            fetch.wake = engine.wake
        return engine

    def _faults(self, plan: Plan) -> FaultPolicy:
        options = self._options
        ledger, packed = options.quarantine, self._dataset.packed
        record = None if ledger is None else Quarantine(ledger, packed, self._view, accumulate=options.accumulate)
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

    def _recipe(self, plan: Plan, faults: FaultPolicy, deliver: Delivery) -> StepRecipe[Batch]:
        assert self.batch_size is not None
        return StepRecipe(
            plan,
            self._assembler,
            faults,
            batch_size=self.batch_size,
            rank=self.topology.rank,
            accumulate=self._options.accumulate,
            deliver=deliver,
        )

    def _new_fetcher(self) -> EpochFetcher[Batch]:
        """Return who fetches for our iterators; it does not keep us alive."""
        options, us = self._options, weakref.ref(self)

        def node_ranks() -> range:
            loader = us()
            place = Topology() if loader is None else loader.topology
            # Ranks are numbered node by node by every launcher that we know.
            first = max(0, place.rank - place.local_rank)
            return range(first, min(place.size, first + place.local_size))

        def epoch_after() -> tuple[StepRecipe[Batch], int] | None:
            loader = us()
            return None if loader is None else loader._epoch_after()

        fetcher = EpochFetcher(
            self._dataset.packed,
            memory_bytes=options.memory_bytes,
            pace=options.pace,
            stall_s=options.stall_s,
            epoch_after=epoch_after,
            node_ranks=node_ranks,
        )
        weakref.finalize(self, fetcher.close)
        return fetcher

    def _epoch_after(self) -> tuple[StepRecipe[Batch], int] | None:
        """Return the recipe that the iterator after the one under way begins with, as things stand, and its batches."""
        if self._start is None:
            return None
        plan = self._start.plan(self._view.info, self._order)
        recipe = self._recipe(plan, self._faults(plan), self._delivery(plan, in_processes=False))
        return recipe, plan.steps * self._options.accumulate


class _PackedIterator:
    """One pass over (the rest of) an epoch; owns the engine, which ends with it."""

    def __init__(self, loader: DataLoader, start: State) -> None:
        self._loader, self._start = loader, start
        self.plan = start.plan(loader._view.info, loader._order)
        self.is_done = False
        self._accumulate = loader._options.accumulate
        self._number = start.steps_done * self._accumulate + (start.inside.micro if start.inside else 0)
        loader._stats.show(loader._options.telemetry, loader.topology)
        loader._stats.begin(epoch=self.plan.epoch, number=self._number)
        self._engine = loader._engine(self.plan, self._number)
        weakref.finalize(self, self._engine.close, wait=False).atexit = False
        self._fetch, loader._fetch = loader._fetch, None
        if self._fetch is not None:
            weakref.finalize(self, self._fetch.close)
        assert loader._pacer is not None
        self._pacer = loader._pacer
        weakref.finalize(self, self._pacer.close)
        self._engine.start()
        values = partial(_values, self._engine, self._pacer, self._fetch, loader._dataset.packed)
        loader._stats.begun(Sources(values, self._engine.awaited))

    def __iter__(self) -> _PackedIterator:
        return self

    def __len__(self) -> int:
        return self.plan.steps * self._accumulate

    def __next__(self) -> Batch:
        loader = self._loader
        ready = self._engine.ready
        loader._stats.asked(ready)
        self._pacer.asked(time.monotonic(), ready)
        if self._fetch is not None:
            self._fetch.asked(self._number)
        try:
            batch = self._engine.next()
        except StopIteration:
            self._end()
            loader._stats.ended()
            raise
        except BaseException:
            if self._engine.has_failed:  # it has closed itself, or hangs and is not to be waited for
                self._leave()
            raise
        step, micro = divmod(self._number, self._accumulate)
        self._number += 1
        position = self._start.after(self.plan, step=step, micro=micro, ranks=loader.topology.size, accumulation=self._accumulate)
        batch["state"] = position.to_json()
        loader._position = position
        trail = self._engine.trail or loader._stats.trail()
        if self._number == len(self):
            trail.begin("end")
            self._engine.close()  # the threads go with the last batch: a loop that stops by count ends them, too
            trail.end()
        size = batch.nbytes
        loader._stats.delivered(batch.samples, size, trail)
        self._pacer.delivered(time.monotonic(), size)
        if self._fetch is not None:
            self._fetch.delivered()
        self._engine.prefetch = self._pacer.batches
        if self._number == len(self):
            self._end()
        return batch

    def _end(self) -> None:
        if not self.is_done:
            self._engine.close()
            self._leave()

    def _leave(self) -> None:
        """Be under way no more, even where a traceback keeps this iterator alive."""
        if not self.is_done:
            self.is_done = True
            self._pacer.close()
            if self._fetch is not None:
                self._fetch.close()
            self._loader._stats.ended()


def _values(engine: Engine[Batch], pacer: Pacer, fetch: FetchAhead[Batch] | None, packed: PackedSet) -> dict[str, float]:
    """Return what is chosen and held now, by its name in `metrics`."""
    ahead = {} if fetch is None else fetch.values()
    return engine.values() | pacer.values() | store_values(packed, time.monotonic()) | ahead


def _unpickled(kind: type[DataLoader], arguments: dict[str, Any], state: dict[str, Any] | None) -> DataLoader:  # Any: see above
    loader = kind(**arguments)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def _only_stall(options: LoaderOptions | None) -> float:
    """Return the one option that means something over a plain dataset."""
    given = options or LoaderOptions()
    if given != LoaderOptions(stall_s=given.stall_s):
        raise UsageError(
            f"DataLoader over a plain dataset: of LoaderOptions only stall_s has a meaning there, the rest is for packed sets "
            f"(headway.open), found {given!r}"
        )
    return given.stall_s
