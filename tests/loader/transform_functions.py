"""Transforms for the loader's tests, at the top level of a module that loads no torch, as other processes need them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

import numpy as np

__all__ = [
    "change_everything",
    "crash",
    "fail_once",
    "killed_when_told",
    "name_process",
    "never_return",
    "out_of_memory",
    "touch_nothing",
    "vanish",
]

Sample = dict[str, Any]  # Any: see Batch
FATAL = 7
"""The item at which the bad ones misbehave."""


def touch_nothing(sample: Sample) -> Sample:
    """Return the sample as it is."""
    return sample


def change_everything(sample: Sample, rng: np.random.Generator) -> Sample:
    """Change arrays in place and anew, drop points and boxes, add a big array, a number and a text."""
    image = sample["camera"]["image"]
    image[...] = np.minimum(image, 240) + rng.integers(0, 9, dtype=np.uint8)
    lidar = sample["LIDAR"]
    kept = rng.random(len(lidar["points"])) < 0.5
    lidar["points"] = lidar["points"][kept]
    lidar["offsets"] = np.array([0, int(kept.sum())])
    boxes = sample["boxes"]
    boxes["centre"] = boxes["centre"][:, :1]
    boxes["count"] = np.minimum(boxes["count"], 1)
    sample["noise"] = rng.normal(size=70_000).astype(np.float32)
    sample["draw"] = float(rng.random())
    sample["text"] = f"item {int(sample['id'])}"
    return sample


def name_process(sample: Sample) -> Sample:
    """Say which process this is, and whether it has torch."""
    return {"pid": os.getpid(), "has_torch": "torch" in sys.modules}


def fail_once(sample: Sample) -> Sample:
    """Fail at one item."""
    if int(sample["id"]) == FATAL:
        raise LookupError("no such thing")
    return sample


def vanish(sample: Sample) -> Sample:
    """End the process without a word at one item."""
    if int(sample["id"]) == FATAL:
        os._exit(3)
    return sample


def crash(sample: Sample) -> Sample:
    """Read where nothing is mapped at one item."""
    if int(sample["id"]) == FATAL:
        ctypes.string_at(8)
    return sample


def killed_when_told(sample: Sample) -> Sample:
    """Be killed at one item, as the system does where memory runs out."""
    if int(sample["id"]) == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def out_of_memory(sample: Sample) -> Sample:
    """Run out of memory at one item."""
    if int(sample["id"]) == FATAL:
        raise MemoryError
    return sample


def never_return(sample: Sample) -> Sample:
    """Hang at one item."""
    while int(sample["id"]) == FATAL:
        time.sleep(60)
    return sample
