"""Batches as nested dicts of numpy arrays over the same memory, for frameworks that do not speak torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from ..formats import UsageError
from .batch import Batch

__all__ = ["numpy_batch", "numpy_batches"]


def numpy_batches(loader: Iterable[Batch]) -> Iterator[dict[str, Any]]:  # Any: arrays, lists of text and dicts of them
    """Yield each batch of `loader` as numpy arrays; nothing is copied.

    An array keeps its batch's memory leased as a tensor does. Position and state stay with the loader.

    >>> loader = headway.DataLoader(headway.open(drives_set), 6)
    >>> [batch["LIDAR"]["points"].dtype.name for batch in numpy_batches(loader)]
    ['float32', 'float32', 'float32']
    """
    for batch in loader:
        yield numpy_batch(batch)


def numpy_batch(batch: Batch) -> dict[str, Any]:  # Any: arrays, lists of text and dicts of them
    """Return one batch as numpy arrays over the same memory; tensors on a device are copied to the host."""
    return {name: _array(value) for name, value in batch.items()}


def _array(value: Any) -> Any:  # Any: nested, see Batch
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        return tensor.view(torch.int16).numpy().view(_bfloat16()) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    if isinstance(value, dict):
        return {name: _array(item) for name, item in value.items()}
    return value


def _bfloat16() -> np.dtype[Any]:  # Any: a dtype that numpy itself lacks
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(
            "numpy has no bfloat16 of its own; `pip install ml_dtypes` (JAX brings it), or ask for Images(dtype='float16')"
        ) from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)  # Any: see above
    return found
