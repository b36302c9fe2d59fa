"""DeepSpeed, ZeRO stage 2: the engine trains, its checkpoint's client state holds the state of the last batch."""

from __future__ import annotations

from collections import defaultdict

import deepspeed
import torch
import torch.distributed as dist

from .common import Diary, Net, arguments, features, leave, make_loader

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2},
    "zero_force_ds_cpu_optimizer": False,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
}


def main() -> None:
    """Train; save after each step; go on if asked to."""
    given = arguments()
    # None of its own kernels, which it would look for and compile (a minute on a fresh machine): torch's do the same here.
    deepspeed.ops.__compatible_ops__ = defaultdict(bool)
    deepspeed.init_distributed("gloo")
    model = Net()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=CONFIG)
    loader = make_loader(given)  # not as training_data=: DeepSpeed would wrap the dataset in a loader of its own
    if given.resume:
        _, client = engine.load_checkpoint(str(given.out / "checkpoints"))
        loader.load_state_dict(client["loader"])
    diary = Diary(given, dist.get_rank())
    diary.write(size=loader.topology.size, length=len(loader))
    for batch in diary.iterated(loader):
        diary.step(batch)
        engine.backward(engine(features(batch)))
        engine.step()
        engine.save_checkpoint(str(given.out / "checkpoints"), client_state={"loader": batch["state"]})
        dist.barrier()
        diary.stepped()
    diary.write(stage=engine.zero_optimization_stage(), torch=torch.__version__)
    leave()


if __name__ == "__main__":
    main()
