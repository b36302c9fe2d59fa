"""torch's DataLoader with hand-written batched reads of memory-mapped arrays: what an expert does for small records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .contract import Peer, Run, workers
from .samples import FileSamples, Stored, w3_batch
from .torch_loader import torch_dataloader

__all__ = ["PEER"]


class _Rows:
    def __init__(self, samples: FileSamples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, index: list[int]) -> dict[str, Any]:
        return w3_batch(self.samples.small, np.asarray(index))


def _as_it_is(batch: Any) -> Any:
    return batch


def _open(run: Run, *, workers: int) -> Callable[[], Iterator[Any]]:
    rows = _Rows(FileSamples(run.packed, run.workload))
    loader = torch_dataloader(rows, run.workload, workers, shuffle=True, collate_fn=_as_it_is)
    return lambda: iter(loader)


PEER = Peer(
    name="torch_np",
    requirements=(),
    settings=lambda workload: workers(workload, counts=(0, 2)),
    pack=lambda run: FileSamples.write(Stored(run.data), run.packed),
    open=_open,
    cannot=dict.fromkeys(("W1", "W2", "W4"), "for small fixed-size records only"),
    packs_like="torch",
)
