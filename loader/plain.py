"""State for torch's own loaders over datasets that are not ours: what was delivered, and the random state it began with.

Everything else about such datasets is torch's: headway adds no order, no collation and no workers of its own there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from ..formats import StateError

__all__ = ["PlainState"]

_FORMAT: Final = "headway-plain"


class PlainState:
    """Follows the iterators of one torch loader, so that an epoch can be resumed after the batches delivered.

    The state names how many batches were handed over and the random state from which the epoch's order was drawn. Resuming
    draws the same order and passes over what was delivered: without loading it where a map-style dataset is loaded in
    this process, else by loading and dropping it, which is what torchdata's StatefulDataLoader does as well.
    """

    def __init__(self) -> None:
        self._iterator: Any = None  # Any: torch's iterator classes are private
        self._random: torch.Tensor | None = None
        self._resume: dict[str, Any] | None = None  # Any: JSON values and a tensor

    def begin(self, loader: TorchLoader[Any], make: Any) -> Iterator[Any]:  # Any: whatever the dataset yields
        """Return the iterator that `make` makes, at the loaded position where there is one."""
        resume, self._resume = self._resume, None
        generator = loader.generator if isinstance(loader.generator, torch.Generator) else torch.default_generator
        if resume is not None:
            generator.set_state(resume["random"])
        self._random = generator.get_state()
        self._iterator = iterator = make()
        if resume is not None:
            _pass_over(loader, iterator, resume["delivered"])
        return iterator  # type: ignore[no-any-return]  # torch's iterator classes are private

    def __getstate__(self) -> dict[str, Any]:  # Any: as the attributes
        return {"_iterator": None, "_random": self._random, "_resume": self._resume}

    def state(self) -> dict[str, Any]:
        """Return what a later run resumes from; holds a uint8 tensor (the random state) besides plain values."""
        if self._resume is not None:
            return dict(self._resume)
        delivered = getattr(self._iterator, "_num_yielded", 0)
        random = torch.get_rng_state() if self._random is None else self._random
        return {"format": _FORMAT, "delivered": int(delivered), "random": random}

    def load(self, state: dict[str, Any]) -> None:
        """Take a state; the next iterator goes on there."""
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise StateError(
                f"cannot resume a loader of a plain dataset: expected a state of format {_FORMAT!r}, "
                f"found {state.get('format') if isinstance(state, dict) else type(state).__name__!r}; "
                "states of packed sets only fit loaders of packed sets"
            )
        self._resume = {"format": _FORMAT, "delivered": int(state["delivered"]), "random": state["random"]}


def _pass_over(loader: TorchLoader[Any], iterator: Any, delivered: int) -> None:  # Any: torch's private class
    sampler = getattr(iterator, "_sampler_iter", None)
    if loader.num_workers == 0 and sampler is not None and not isinstance(loader.dataset, IterableDataset):
        for _ in range(delivered):
            if next(sampler, None) is None:
                break
            iterator._num_yielded += 1
        return
    for _ in range(delivered):
        if next(iterator, iterator) is iterator:
            break
