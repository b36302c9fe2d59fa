"""MosaicML Streaming: MDS shards on local disk, shuffled by its default algorithm."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .contract import Peer, Resumable, Run, Setting, workers
from .samples import BATCH, Stored, collate, one_thread, prepare

__all__ = ["PEER"]

_COLUMNS: dict[str, dict[str, str]] = {
    "W1": {
        "lidar": "ndarray:float32",
        "trajectory": "ndarray:float32:100,6",
        "calibration": "ndarray:float32",
        "boxes": "ndarray:float32",
    },
    "W2": {"label": "int"},
    "W3": {"trajectory": "ndarray:float32:100,6", "speed": "float32", "stamp": "int64", "command": "int32"},
    "W4": {"lidar": "ndarray:float32"},
}
_keep: list[Any] = []


def _without_torchvision_operators() -> None:
    """Define the two operators whose absence stops torchvision's import beside a CPU torch; streaming imports it always."""
    import torch

    if not _keep:
        library = torch.library.Library("torchvision", "DEF")  # kept for the life of the process
        library.define("nms(Tensor d, Tensor s, float t) -> Tensor")
        library.define("qnms(Tensor d, Tensor s, float t) -> Tensor")
        _keep.append(library)


def _writer() -> Any:
    _without_torchvision_operators()
    from streaming import MDSWriter

    return MDSWriter


def _pack(run: Run, *, compression: str | None = None) -> None:
    shutil.rmtree(run.packed, ignore_errors=True)
    stored = Stored(run.data)
    cameras = {name: "bytes" for name in stored[0] if name.startswith("cam")}
    with _writer()(out=str(run.packed), columns=cameras | _COLUMNS[run.workload], compression=compression) as sink:
        for index in range(len(stored)):
            sample = stored[index]
            if run.workload == "W3":
                sample |= {
                    "speed": np.float32(sample["speed"]),
                    "stamp": np.int64(sample["stamp"]),
                    "command": np.int32(sample["command"]),
                }
            sink.write(sample)


def _loader(run: Run, workers: int, **options: Any) -> Any:
    _without_torchvision_operators()
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    work = prepare(run.workload)

    class Prepared(StreamingDataset):
        def __getitem__(self, index: int) -> Any:
            return work(super().__getitem__(index))

    size = BATCH[run.workload]
    dataset = Prepared(local=str(run.packed), shuffle=True, batch_size=size, **options)
    more = {"persistent_workers": True, "worker_init_fn": one_thread} if workers else {}
    return StreamingDataLoader(dataset, batch_size=size, num_workers=workers, collate_fn=collate, drop_last=True, **more)


def _open(run: Run, *, workers: int) -> Callable[[], Iterator[Any]]:
    loader = _loader(run, workers)
    return lambda: iter(loader)


def _resumable(run: Run) -> Resumable:
    loader = _loader(run, 1, shuffle_seed=1)
    return Resumable(lambda: iter(loader), loader.state_dict, loader.load_state_dict)


def _settings(workload: str) -> list[Setting]:
    return workers(workload)


PEER = Peer(
    name="mosaicml-streaming",
    requirements=("mosaicml-streaming==0.13.0", "transformers>=4.50"),
    settings=_settings,
    pack=_pack,
    imports=_writer,
    open=_open,
    resumable=_resumable,
)
