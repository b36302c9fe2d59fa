"""Ray Train on this machine: two workers, one reported failure, and Ray's own retry from the reported checkpoint."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from headway.loader.packed_iterator import PackedIterator

from .common import Diary, Net, arguments, features, make_loader
from .start_ray import start_ray


def train(config: dict[str, Any]) -> None:
    """Train on one worker; the first time, die after three steps."""
    given = argparse.Namespace(**config)
    context = ray.train.get_context()
    model = torch.nn.parallel.DistributedDataParallel(Net())
    loader = make_loader(given)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        given.called, given.kill_after = "second", 0
        with checkpoint.as_directory() as folder:
            loader.load_state_dict(json.loads((Path(folder) / "loader.json").read_text()))
    fails_after, given.kill_after = given.kill_after, 0  # a raised error here: Ray sees one sooner than a dead process
    diary = Diary(given, context.get_world_rank())
    prepared = ray.train.torch.prepare_data_loader(loader)  # moves batches to the device, and fetches one ahead for it
    diary.write(source=loader.topology.source, size=loader.topology.size, length=len(prepared))
    for batch in prepared:
        diary.write(is_ours=type(prepared.dataloader_iter) is PackedIterator)
        diary.step(batch)
        model(features(batch)).backward()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "loader.json").write_text(json.dumps(batch["state"]))
            holder = Checkpoint.from_directory(folder) if context.get_world_rank() == 0 else None
            ray.train.report({"items": len(batch["id"])}, checkpoint=holder)
        torch.distributed.barrier()
        if diary.stepped() == fails_after:
            raise RuntimeError("this worker fails on purpose")


def main() -> None:
    """Start Ray, fit, stop Ray."""
    given = arguments()
    start_ray()
    trainer = TorchTrainer(
        train,
        train_loop_config=vars(given),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(given.out / "ray"), name="run", failure_config=FailureConfig(max_failures=1)),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
