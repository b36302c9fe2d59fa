"""`DataLoader`: torch's class and signature; over a packed set it streams batches in a planned, resumable order.

Over any other dataset it is torch's DataLoader with `state_dict`, `load_state_dict`, `stats` and a watch over waits added.
Which of the two depends on the dataset alone; `packed_loading` and `plain` say what each is. Here is what torch and users see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader

from .arguments import Asked, only_stall, refuse_ours, refuse_torchs
from .dataset import Dataset
from .decode import Decoder
from .options import LoaderOptions
from .packed_loading import PackedLoading
from .plain import PlainLoading
from .plain_iterator import plain_iterator
from .plan_sampler import PlanSampler
from .topology import Topology
from .topology_detect import detect_topology

__all__ = ["DataLoader"]


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
        torchs_own = {
            "batch_sampler": batch_sampler,
            "collate_fn": collate_fn,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
        }
        self._loading: PackedLoading | PlainLoading
        if not isinstance(dataset, Dataset):
            refuse_ours(topology=topology, decoder=decoder)
            self._loading = PlainLoading(only_stall(options))
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
        refuse_torchs(in_order=in_order, pin_memory_device=pin_memory_device, **torchs_own)
        self._loading = PackedLoading(
            Asked(
                dataset=dataset,
                batch_size=batch_size,  # type: ignore[arg-type]  # None is refused there
                shuffle=shuffle,
                sampler=sampler,
                num_workers=num_workers,
                pin_memory=pin_memory,
                drop_last=drop_last,
                timeout=timeout,
                prefetch_factor=prefetch_factor,
                options=options or LoaderOptions(),
                topology=topology,
                decoder=decoder,
            )
        )
        self._is_accelerate_prepared = True  # read by Accelerate, which would replace a loader that is not
        drop_last = self._loading.order.drop_last
        super().__init__(dataset, batch_size, sampler=PlanSampler(self), num_workers=0, drop_last=drop_last)  # type: ignore[arg-type]  # ours
        self.num_workers = self._loading.threads

    @property
    def topology(self) -> Topology:
        """The place of this process: as given; else as found now, and kept once an iterator or a loaded state depends on it.

        A loader may so be made before the process group, by scripts whose ranks a framework starts later.
        """
        return detect_topology() if isinstance(self._loading, PlainLoading) else self._loading.topology

    @property
    def global_batch_size(self) -> int:
        """B: samples of a step over all ranks and micro-batches."""
        return self._packed.global_batch_size

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch annotates its private iterator class
        if isinstance(self._loading, PlainLoading):
            return self._loading.begin(self, super().__iter__)  # torch's, which calls _get_iterator
        iterator = self._loading.begin()
        self.num_workers = self._loading.threads  # may depend on the ranks of this node, which are known now
        return iterator

    def __len__(self) -> int:
        """Batches of the whole epoch: of the one being iterated, else of the next."""
        return super().__len__() if isinstance(self._loading, PlainLoading) else self._loading.batches()

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator begin epoch `epoch`; a position loaded in that very epoch is kept."""
        if isinstance(self._loading, PlainLoading):
            self._loading.set_epoch(self, epoch)
        else:
            self._loading.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was handed over, as JSON values (plain datasets: plus a tensor)."""
        return self._loading.state(self) if isinstance(self._loading, PlainLoading) else self._loading.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next iterator go on after the batch that `state_dict` came with.

        Raises:
            StateError: the state belongs to another view, order or seed, or an iterator is under way.
        """
        self._loading.load(state_dict)
        if isinstance(self._loading, PackedLoading):
            self.num_workers = self._loading.threads

    def stats(self) -> dict[str, float]:
        """Return how well this rank was fed so far; `LoaderStats.report` lists the numbers."""
        return self._loading.stats()

    def __reduce__(self) -> Any:  # Any: the shape pickle asks for
        """Pickle as what was asked for and the position; a process that unpickles it finds its own place among the ranks."""
        if isinstance(self._loading, PlainLoading):
            return super().__reduce__()
        return _unpickled, (type(self), *self._loading.pickled())

    def planned_items(self) -> Iterator[int]:
        """Yield the items that the next iterator will deliver to this rank, without reading any (−1: padding)."""
        return self._packed.planned_items()

    @property
    def _packed(self) -> PackedLoading:
        if isinstance(self._loading, PlainLoading):
            raise AttributeError("only a loader of a packed set (headway.open) knows what it will deliver")
        return self._loading

    def _get_iterator(self) -> Any:  # Any: torch's iterators are private
        """Return what iterates a plain dataset: torch's, followed."""
        if isinstance(self._loading, PackedLoading) or self._loading.position is None:
            return super()._get_iterator()
        return plain_iterator(self, self._loading)


def _unpickled(kind: type[DataLoader], arguments: dict[str, Any], state: dict[str, Any] | None) -> DataLoader:  # Any: see above
    loader = kind(**arguments)
    if state is not None:
        loader.load_state_dict(state)
    return loader
