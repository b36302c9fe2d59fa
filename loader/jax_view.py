"""Batches as global JAX arrays: each process hands in its own samples, the sharding says where they go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .batch import Batch
from .numpy_view import numpy_batches
from .topology import Topology

if TYPE_CHECKING:
    from jax.sharding import Sharding

__all__ = ["jax_batches", "jax_topology"]


def jax_topology() -> Topology:
    """Return the place of this process by JAX, for `DataLoader(topology=…)`: every process feeds its own devices."""
    return Topology(rank=jax.process_index(), size=jax.process_count(), source="jax.process_index")


def jax_batches(loader: Iterable[Batch], sharding: Sharding) -> Iterator[dict[str, Any]]:  # Any: arrays of either kind, text
    """Yield batches whose arrays are split over their first axis, the global batch, as `sharding` says.

    Arrays that have no batch axis (points end to end, their offsets) and 64-bit numbers (stamps, ids, poses), which JAX
    would cut to 32 bits unless `jax_enable_x64` is set, stay this process's numpy arrays: cast what the model needs.
    """
    wide = bool(jax.config.jax_enable_x64)
    for batch in numpy_batches(loader):
        yield {name: _global(value, sharding, wide=wide) for name, value in batch.items()}


def _global(value: Any, sharding: Sharding, *, wide: bool) -> Any:  # Any: nested, see Batch
    if isinstance(value, dict):
        ragged = ("points", "offsets", "fields") if "offsets" in value else ()
        return {name: item if name in ragged else _global(item, sharding, wide=wide) for name, item in value.items()}
    if not isinstance(value, np.ndarray) or (value.dtype.itemsize == 8 and not wide):
        return value
    return jax.make_array_from_process_local_data(sharding, value)
