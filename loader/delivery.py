"""The last stage of a batch: arrays become tensors, transforms of the user's have their turn, pages are pinned if asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..formats import UsageError
from .batch import Batch, to_tensors
from .sample_stage import SampleStage
from .samples import IDENTITY, Sample
from .stall import within
from .transforms import call_transform

__all__ = ["Delivery"]


class Delivery:
    """Makes what the consumer gets from a batch's arrays; called in the thread that finished it."""

    def __init__(
        self,
        *,
        bfloat16: frozenset[str],
        stage: SampleStage | None,
        batch: Callable[..., Any] | None,  # Any: see Transforms
        seed: int,
        pin: bool,
    ) -> None:
        self._bfloat16, self._stage, self._transform = bfloat16, stage, batch
        self._seed, self._pin = seed, pin

    def __call__(self, contents: Sample) -> Batch:
        """Return the batch."""
        if self._stage is not None:
            with within("transform"):
                contents = self._stage(contents)
        # A transform may have put other numbers where the loader had the bits of bfloat16.
        still = frozenset(key for key in self._bfloat16 if _is_bits(contents, key))
        batch, valid = Batch(to_tensors(contents, still)), contents["valid"]
        if self._transform is not None:
            with within("transform"):
                batch = self._transformed(batch, contents)
        if self._pin:
            with within("transfer"):
                batch = batch.pin_memory()
        batch.samples = int(np.count_nonzero(valid))
        return batch

    def _transformed(self, batch: Batch, contents: Sample) -> Batch:
        assert self._transform is not None
        key = (self._seed, int(contents["epoch"][0]), int(contents["id"][0]), int(contents["occurrence"][0]))
        what = f"the batch of items {contents['id'][:8].tolist()}"
        identity = {name: value for name, value in batch.items() if name in IDENTITY}
        made = call_transform(self._transform, batch, key, what=what)
        if not isinstance(made, Mapping):
            raise UsageError(f"a transform of batches must return a batch or a dict, found {type(made).__name__} for {what}")
        return Batch({**made, **identity})


def _is_bits(contents: Sample, key: str) -> bool:
    value: Any = contents  # Any: nested, see Batch
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return isinstance(value, np.ndarray) and value.dtype == np.uint16
