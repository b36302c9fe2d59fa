"""State for torch's own loaders over datasets that are not ours: what was delivered, and the random state it began with.

Everything else about such datasets is torch's: headway adds no order, no collation and no workers of its own there. The
protocol is that of torchdata's StatefulDataLoader; `plain_iterator` counts what is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from ..formats import StateError
from .stats import LoaderStats

__all__ = ["PlainLoading", "Position", "generator_of"]

_FORMAT: Final = "headway-plain"


@dataclass(slots=True)
class Position:
    """How far one iterator has come; written by it, read by its loader's `state_dict`."""

    random: torch.Tensor
    """State of the generator from which the epoch's order is drawn, uint8; after the epoch: the next one's."""
    delivered: int = 0
    """Batches handed over in this epoch; 0 again when it has ended."""
    skip: int = 0
    """Entries of the sampler that the iterator passes over, as they were delivered before."""

    def end(self, generator: torch.Generator) -> None:
        """The epoch is over: whoever resumes here begins the next one."""
        self.random, self.delivered = generator.get_state(), 0


class PlainLoading:
    """Follows the iterators of one torch loader, so that an epoch can be resumed after the batches delivered.

    What `DataLoader` is over a dataset that is not ours; a wait longer than `stall_s` is logged.

    The state names how many batches were handed over and the random state from which the epoch's order was drawn. Resuming
    draws the same order and passes over what was delivered: without loading it where the dataset is map-style, else by
    loading and dropping it. A dataset with a `state_dict` of its own, iterated in this process, resumes by that instead.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self.counted = LoaderStats()
        self.position: Position | None = None
        self._resume: dict[str, Any] | None = None  # Any: see `state`

    def begin(self, loader: TorchLoader[Any], make: Callable[[], Any]) -> Iterator[Any]:  # Any: whatever the dataset yields
        """Return the iterator that `make` makes, at the loaded position where there is one."""
        resume, self._resume = self._resume, None
        generator = generator_of(loader)
        delivered = 0
        if resume is not None:
            generator.set_state(resume["random"])
            delivered = resume["delivered"]
            if "dataset" in resume:
                loader.dataset.load_state_dict(resume["dataset"])  # type: ignore[attr-defined]  # of whoever wrote the dataset
        is_stream = isinstance(loader.dataset, IterableDataset)
        self.position = Position(generator.get_state(), delivered, 0 if is_stream else delivered)
        iterator = make()
        if is_stream and resume is not None and "dataset" not in resume:
            iterator.pass_over(delivered)
        return iterator  # type: ignore[no-any-return]  # torch's iterator classes are private

    def state(self, loader: TorchLoader[Any]) -> dict[str, Any]:  # Any: as below
        """Return what a later run resumes from; holds a uint8 tensor (the random state) besides plain values.

        Raises:
            StateError: batches come in whatever order workers finish them, which nothing can repeat.
        """
        if self._resume is not None:
            return dict(self._resume)
        if loader.num_workers and not getattr(loader, "in_order", True):
            raise StateError(
                "cannot say where a loader with in_order=False is: which batches were delivered depends on how fast its workers "
                "were; leave in_order at True where runs are to be resumed"
            )
        position = self.position or Position(generator_of(loader).get_state())
        state = {"format": _FORMAT, "delivered": position.delivered, "random": position.random}
        if not loader.num_workers and _keeps_its_own(loader.dataset):
            state["dataset"] = loader.dataset.state_dict()  # type: ignore[attr-defined]  # checked in the line above
        return state

    def load(self, state: dict[str, Any]) -> None:  # Any: see `state`
        """Take a state; the next iterator goes on there."""
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise StateError(
                f"cannot resume a loader of a plain dataset: expected a state of format {_FORMAT!r}, "
                f"found {state.get('format') if isinstance(state, dict) else type(state).__name__!r}; "
                "states of packed sets only fit loaders of packed sets"
            )
        self._resume = {**state, "delivered": int(state["delivered"])}

    def stats(self) -> dict[str, float]:
        """Return how well this rank was fed so far."""
        return self.counted.report()

    @staticmethod
    def set_epoch(loader: TorchLoader[Any], epoch: int) -> None:  # Any: as above
        """Tell whatever of `loader` wants to know which epoch begins."""
        for holder in (loader.sampler, loader.batch_sampler, loader.dataset):
            tell = getattr(holder, "set_epoch", None)
            if tell is not None:
                tell(epoch)


def generator_of(loader: TorchLoader[Any]) -> torch.Generator:  # Any: whatever the dataset yields
    """Return the generator from which torch draws the order of `loader`."""
    return loader.generator if isinstance(loader.generator, torch.Generator) else torch.default_generator


def _keeps_its_own(dataset: object) -> bool:
    return callable(getattr(dataset, "state_dict", None)) and callable(getattr(dataset, "load_state_dict", None))
