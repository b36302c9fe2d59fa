"""WebDataset: tars of 50 to 10,000 samples, shard shuffle and a sample buffer, decoding in worker processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .contract import Peer, Run, Setting, workers
from .samples import BATCH, Stored, collate, one_thread, prepare

__all__ = ["PEER", "SHARD_SAMPLES", "SHUFFLE_BUFFER", "tars", "write_tars"]

SHARD_SAMPLES = {"W1": 50, "W2": 500, "W3": 10_000, "W4": 50}
SHUFFLE_BUFFER = {"W1": 50, "W2": 1000, "W3": 5000, "W4": 50}


def _writer() -> Any:
    import webdataset

    return webdataset.TarWriter


def write_tars(run: Run) -> None:
    """Write a workload as WebDataset tars: arrays as raw float32, numbers as JSON."""
    writer = _writer()
    stored = Stored(run.data)
    run.packed.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(stored), SHARD_SAMPLES[run.workload]):
        path = run.packed / f"{start // SHARD_SAMPLES[run.workload]:05d}.tar"
        with writer(str(path)) as sink:
            for index in range(start, min(len(stored), start + SHARD_SAMPLES[run.workload])):
                record: dict[str, Any] = {"__key__": f"{index:07d}"}
                numbers = {}
                for name, value in stored[index].items():
                    if isinstance(value, bytes):
                        record[f"{name}.jpg"] = value
                    elif isinstance(value, np.ndarray):
                        record[f"{name}.bin"] = np.ascontiguousarray(value, np.float32).tobytes()
                    else:
                        numbers[name] = value
                if numbers:
                    record["json"] = json.dumps(numbers).encode()
                sink.write(record)


def tars(packed: Path) -> list[str]:
    """Return the tars of a packed workload."""
    return sorted(str(path) for path in packed.glob("*.tar"))


def parser(workload: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what turns one raw WebDataset sample into a prepared one."""
    work = prepare(workload)

    def parse(record: dict[str, Any]) -> dict[str, Any]:
        sample = json.loads(record["json"]) if "json" in record else {}
        for name, value in record.items():
            stem, _, kind = name.rpartition(".")
            if kind == "jpg":
                sample[stem] = value
            elif kind == "bin":
                sample[stem] = np.frombuffer(value, np.float32)
        return work(sample)

    return parse


def _open(run: Run, *, workers: int) -> Callable[[], Iterator[Any]]:
    import webdataset as wds

    urls = tars(run.packed)
    dataset = (
        wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
        .shuffle(SHUFFLE_BUFFER[run.workload])
        .map(parser(run.workload))
        .batched(BATCH[run.workload], collation_fn=_collate, partial=False)
    )
    more = {"persistent_workers": True, "worker_init_fn": one_thread} if workers else {}
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers, **more)
    return lambda: iter(loader)


def _collate(samples: list[dict[str, Any]]) -> Any:
    """Leave out the key, which `map` puts back into each sample."""
    return collate([{name: value for name, value in sample.items() if name != "__key__"} for sample in samples])


def _settings(workload: str) -> list[Setting]:
    return workers(workload)


PEER = Peer(
    name="webdataset",
    requirements=("webdataset==1.0.2",),
    settings=_settings,
    pack=write_tars,
    imports=_writer,
    open=_open,
)
