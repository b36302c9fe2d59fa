"""What the programs share: arguments, the loader, a model so small that only the data matters, and a diary a rank."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import headway
from headway import DataLoader, LoaderOptions, Window
from headway.loader.packed_iterator import PackedIterator

FEATURES = 16


def arguments() -> argparse.Namespace:
    """Parse what the tests pass; started anew by torchrun after a kill, go on as the second run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("set", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--called", default="first")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--kill-after", type=int, default=0, help="steps after which this process kills itself; 0: never")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kind", default="")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    if given.kill_after and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        given.called, given.resume, given.kill_after = "second", True, 0
    return given


def make_loader(given: argparse.Namespace, **more: Any) -> DataLoader:
    """Return the loader that all programs train from."""
    dataset = headway.open(given.set, windows=[Window("note"), Window("ego"), Window("LIDAR")])
    return DataLoader(dataset, given.batch_size, shuffle=True, num_workers=1, options=LoaderOptions(seed=3), **more)


def features(batch: Any) -> torch.Tensor:
    """Return (B, FEATURES) numbers of a batch: the ego's pose, and 0 where nothing is."""
    poses: torch.Tensor = batch["ego"]["ego_to_world"]
    return poses.flatten(1).float() / 100


def leave() -> None:
    """End this process once all ranks are done, without tearing gloo down: its threads abort some ends after all work is done."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


class Net(torch.nn.Module):
    """One linear layer; its loss is the mean of what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return one number."""
        out: torch.Tensor = self.layer(inputs).square().mean()
        return out


class Diary:
    """One line a step in a file of this rank, written through, so that a killed process has said what it saw."""

    def __init__(self, given: argparse.Namespace, rank: int) -> None:
        given.out.mkdir(parents=True, exist_ok=True)
        self._file = (given.out / f"{given.called}-{rank}.jsonl").open("a", buffering=1)
        self._kill_after, self._steps = given.kill_after, 0

    def write(self, **entry: Any) -> None:
        """Write one entry."""
        self._file.write(json.dumps(entry) + "\n")

    def iterated(self, loader: Any) -> Any:
        """Begin an epoch of what a framework has made of a loader, and write whether it is headway's that is iterated."""
        iterator = iter(loader)
        self.write(is_ours=type(iterator) is PackedIterator)
        return iterator

    def step(self, batch: Any, **more: Any) -> None:
        """Write what a step received."""
        self.write(ids=batch["id"].tolist(), **more)

    def stepped(self) -> int:
        """Count a step as done; dies where the test wants it."""
        self._steps += 1
        if self._steps == self._kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._steps
