"""A loader's batches as a `tf.data.Dataset` with a full signature; what it carries is chosen by dotted names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
import torch

from ..formats import UsageError
from .dataloader import DataLoader
from .numpy_view import numpy_batches

__all__ = ["tensorflow_dataset"]


def tensorflow_dataset(loader: DataLoader, entries: Sequence[str]) -> Any:  # Any: TensorFlow has no types
    """Return a `tf.data.Dataset` of the loader's next epoch: dicts of `entries`, and "state".

    `entries` are names such as "camera.image" or "id". Axes that differ from batch to batch (points end to end, rows of tables)
    are None in the signature. "state" is the JSON text from which a loader goes on after that batch: TensorFlow fetches
    ahead, so a checkpoint must hold it rather than `loader.state_dict()`. Each pass over the dataset is an epoch of the loader.
    """
    batch_size = loader.batch_size
    assert batch_size is not None
    sample = loader.dataset[0]
    signature = {name: _signature(name, sample, batch_size) for name in entries}
    signature["state"] = tf.TensorSpec((), tf.string)

    def batches() -> Iterator[dict[str, Any]]:  # Any: arrays
        for batch in numpy_batches(loader):
            yield {name: _named(name, batch) for name in entries} | {"state": json.dumps(batch["state"])}

    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def _signature(name: str, sample: dict[str, Any], batch_size: int) -> Any:  # Any: see above
    entry = _named(name.rpartition(".")[0], sample) if "." in name else sample
    key = name.rpartition(".")[2]
    if name in ("slot", "replaced", "valid"):  # a sample by itself is in no batch
        return tf.TensorSpec((batch_size,), tf.bool if name == "valid" else tf.int64)
    value = _named(name, sample)
    if isinstance(value, int):  # one number a sample
        value = torch.tensor(value)
    if not isinstance(value, torch.Tensor):
        raise UsageError(f"tensorflow_dataset: {name!r} is no array, but {type(value).__name__}; name entries that are")
    shape: list[int | None] = [batch_size, *value.shape]
    if "offsets" in entry and key in ("points", "offsets"):
        shape = [None, *value.shape[1:]] if key == "points" else [batch_size * (len(value) - 1) + 1]
    elif "count" in entry and value.ndim > 1 and key not in ("sensor_to_ego", "ego_to_world"):
        shape[2] = None  # rows, or points that are padded to one of several sizes
    return tf.TensorSpec(shape, getattr(tf, str(value.dtype).removeprefix("torch.")))


def _named(name: str, batch: dict[str, Any]) -> Any:  # Any: nested, see Batch
    value: Any = batch  # Any: see above
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            there = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise UsageError(f"tensorflow_dataset: the batch has no {name!r}; at {part!r} there is {there}")
        value = value[part]
    return value
