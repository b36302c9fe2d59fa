"""The plan as torch's `DistributedSampler`: what frameworks look at to learn that a loader's order is distributed already.

Lightning, for one, replaces every loader whose sampler is not of that class, and the plan with it. It also tells the epoch
through the sampler. Nothing is sampled here: `DataLoader` never iterates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.utils.data import DistributedSampler

if TYPE_CHECKING:
    from .dataloader import DataLoader

__all__ = ["PlanSampler"]


class PlanSampler(DistributedSampler[int]):
    """Names the items that a loader of a packed set will hand to this rank in its next epoch."""

    def __init__(self, loader: DataLoader) -> None:  # torch's own would ask for a process group
        self._loader = loader

    @property
    def num_replicas(self) -> int:  # type: ignore[override]  # an attribute of torch's, known late here
        """Data-parallel ranks."""
        return self._loader.topology.size

    @property
    def rank(self) -> int:  # type: ignore[override]  # an attribute of torch's, known late here
        """Data-parallel rank."""
        return self._loader.topology.rank

    def __len__(self) -> int:
        batch_size = self._loader.batch_size
        assert batch_size is not None
        return len(self._loader) * batch_size

    def __iter__(self) -> Iterator[int]:
        return self._loader.planned_items()

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader which epoch comes next; see `DataLoader.set_epoch`."""
        self._loader.set_epoch(epoch)
