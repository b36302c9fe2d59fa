"""LitData: optimised chunks of 64 MB on local disk, StreamingDataset and StreamingDataLoader."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from .contract import Peer, Resumable, Run, workers
from .samples import BATCH, Stored, collate, one_thread, prepare

__all__ = ["PEER"]


@cache
def _stored(directory: str) -> Stored:
    return Stored(Path(directory))


def _sample(index: int, *, directory: str) -> Any:
    return _stored(directory)[index]


def _pack(run: Run) -> None:
    import litdata

    shutil.rmtree(run.packed, ignore_errors=True)
    litdata.optimize(
        fn=partial(_sample, directory=str(run.data)),
        inputs=list(range(len(Stored(run.data)))),
        output_dir=str(run.packed),
        num_workers=2,
        chunk_bytes="64MB",
        start_method="fork",
    )


def _loader(run: Run, workers: int) -> Any:
    import litdata

    work = prepare(run.workload)

    class Prepared(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return work(super().__getitem__(index))

    dataset = Prepared(str(run.packed), shuffle=True, drop_last=True, max_cache_size="20GB")
    more = {"persistent_workers": True, "worker_init_fn": one_thread} if workers else {}
    return litdata.StreamingDataLoader(
        dataset, batch_size=BATCH[run.workload], num_workers=workers, collate_fn=collate, drop_last=True, **more
    )


def _open(run: Run, *, workers: int) -> Callable[[], Iterator[Any]]:
    loader = _loader(run, workers)
    return lambda: iter(loader)


def _resumable(run: Run) -> Resumable:
    loader = _loader(run, 1)
    return Resumable(lambda: iter(loader), loader.state_dict, loader.load_state_dict)


PEER = Peer(name="litdata", requirements=("litdata==0.2.76",), settings=workers, pack=_pack, open=_open, resumable=_resumable)
