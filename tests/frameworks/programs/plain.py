"""torchrun with DDP or FSDP2: the checkpoint holds the state of the batch that was trained on last.

As kind "elastic" it keeps a global batch of 8 on however many ranks torchrun has for it, and goes on after each of its restarts.
"""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .common import Diary, Net, arguments, features, leave, make_loader


def main() -> None:
    """Train; write a checkpoint after each step; go on from one if asked to."""
    given = arguments()
    dist.init_process_group("gloo")
    if given.kind == "elastic":
        given.batch_size = 8 // dist.get_world_size()
        given.called = f"restart{os.environ['TORCHELASTIC_RESTART_COUNT']}-{dist.get_world_size()}"
        given.resume = (given.out / "checkpoint.pt").exists()
        while not given.resume and dist.get_world_size() == 2:
            time.sleep(1)  # the other agent is late: this one starts both ranks anew once it has come
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
    for batch in diary.iterated(loader):
        diary.step(batch)
        optimizer.zero_grad()
        model(features(batch)).backward()
        optimizer.step()
        dist.barrier()  # a step counts when all ranks have done it
        if dist.get_rank() == 0:
            torch.save({"loader": batch["state"]}, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
        dist.barrier()
        if diary.stepped() == 2 and os.environ.get("DIES_WITH_ITS_NODE"):
            os.kill(os.getppid(), signal.SIGKILL)  # the agent: nobody is left to say that this node is gone
            os.kill(os.getpid(), signal.SIGKILL)
    leave()


if __name__ == "__main__":
    main()
