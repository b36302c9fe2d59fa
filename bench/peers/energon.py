"""Megatron-Energon: WebDataset tars prepared by its own tool, crude samples cooked by a task encoder."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .contract import Peer, Resumable, Run, Setting
from .samples import BATCH, collate
from .webdataset_loader import SHUFFLE_BUFFER, parser, write_tars

__all__ = ["PEER"]


def _pack(run: Run) -> None:
    write_tars(run)
    tool = Path(sys.executable).with_name("energon")
    options = [
        "--non-interactive",
        "--num-workers",
        "2",
        "--split-ratio",
        "1,0,0",
        "--sample-type",
        "CrudeWebdataset",
        "--force-overwrite",
    ]
    done = subprocess.run([str(tool), "prepare", *options, str(run.packed)], capture_output=True, text=True, check=False)
    if done.returncode or not (run.packed / ".nv-meta" / "dataset.yaml").exists():
        raise RuntimeError(f"energon prepare ended with {done.returncode}: {done.stderr[-500:]}")


def _dataset(run: Run, workers: int) -> tuple[Any, Any]:
    from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_train_dataset
    from megatron.energon.task_encoder import stateless

    parse = parser(run.workload)

    @stateless
    def cook(sample: Any) -> Any:
        return dict(sample)

    class Encoder(DefaultTaskEncoder):
        cookers = [Cooker(cook)]  # noqa: RUF012  # energon's own way to state them
        decoder = None  # bytes are wanted; `parse` decodes

        @stateless
        def encode_sample(self, sample: Any) -> Any:
            return parse(sample)

        @stateless
        def batch(self, samples: Any) -> Any:
            return collate(samples)

        @stateless
        def encode_batch(self, batch: Any) -> Any:
            return batch

    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    dataset = get_train_dataset(
        str(run.packed),
        split_part="train",
        worker_config=config,
        batch_size=BATCH[run.workload],
        batch_drop_last=True,
        shuffle_buffer_size=SHUFFLE_BUFFER[run.workload],
        max_samples_per_sequence=100,
        task_encoder=Encoder(),
    )
    return dataset, config


def _open(run: Run, *, workers: int) -> Callable[[], Iterator[Any]]:
    from megatron.energon import get_loader

    dataset, config = _dataset(run, workers)
    loader = get_loader(dataset, worker_config=config)
    return lambda: iter(loader)


def _resumable(run: Run) -> Resumable:
    from megatron.energon import get_savable_loader

    dataset, config = _dataset(run, 1)
    loader = get_savable_loader(dataset, worker_config=config)
    return Resumable(
        lambda: iter(loader), lambda: _plain(loader.save_state_rank()), lambda state: loader.restore_state_rank(_unplain(state))
    )


def _plain(value: Any) -> Any:
    """Write a saved rank as plain values and tensors: its dataclasses by name, its dictionaries and tuples marked."""
    import torch

    if dataclasses.is_dataclass(value):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": fields}
    if isinstance(value, dict):
        return {"class": type(value).__name__, "items": [(_plain(key), _plain(item)) for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"class": type(value).__name__, "values": [_plain(item) for item in value]}
    if isinstance(value, np.ndarray):
        return {"class": "ndarray", "array": torch.from_numpy(value.astype(np.int64)), "dtype": str(value.dtype)}
    return value


def _unplain(value: Any) -> Any:
    """Return what `_plain` was given; only the classes that states consist of are made."""
    if not isinstance(value, dict):
        return value
    kind = value["class"]
    if "array" in value:
        return value["array"].numpy().astype(value["dtype"])
    if "items" in value:
        items = {_unplain(key): _unplain(item) for key, item in value["items"]}
        return items if kind == "dict" else _state_classes()[kind](**items)
    if "values" in value:
        return (tuple if kind == "tuple" else list)(_unplain(item) for item in value["values"])
    return _state_classes()[kind](**{name: _unplain(item) for name, item in value["fields"].items()})


def _state_classes() -> dict[str, Any]:
    from megatron.energon.flavors.webdataset.sample_loader import SliceState
    from megatron.energon.rng import SystemRngState
    from megatron.energon.savable_loader import SavableDataLoaderState, SavableDatasetCheckpoint, SavableDatasetState
    from megatron.energon.state import FlexState

    classes = (SliceState, SystemRngState, SavableDataLoaderState, SavableDatasetCheckpoint, SavableDatasetState, FlexState)
    return {each.__name__: each for each in classes}


def _settings(workload: str) -> list[Setting]:
    return [{"workers": count} for count in ((1, 2, 3) if workload == "W1" else (0, 2))]


PEER = Peer(
    name="energon",
    requirements=("megatron-energon==7.4.1",),
    settings=_settings,
    pack=_pack,
    open=_open,
    resumable=_resumable,
)
