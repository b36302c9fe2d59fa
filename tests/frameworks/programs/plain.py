"""torchrun with DDP or FSDP2: the checkpoint holds the state of the batch that was trained on last."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .common import Diary, Net, arguments, features, leave, make_loader


def main() -> None:
    """Train; write a checkpoint after each step; go on from one if asked to."""
    given = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: torch.nn.Module = Net()
    if given.kind == "fsdp2":
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    loader = make_loader(given)
    checkpoint = given.out / "checkpoint.pt"
    if given.resume:
        loader.load_state_dict(torch.load(checkpoint)["loader"])
    diary = Diary(given, dist.get_rank())
    diary.write(rank=loader.topology.rank, size=loader.topology.size, length=len(loader))
    for batch in loader:
        diary.step(batch)
        optimizer.zero_grad()
        model(features(batch)).backward()
        optimizer.step()
        dist.barrier()  # a step counts when all ranks have done it
        if dist.get_rank() == 0:
            torch.save({"loader": batch["state"]}, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
        dist.barrier()
        diary.stepped()
    leave()


if __name__ == "__main__":
    main()
