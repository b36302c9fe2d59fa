"""Megatron-core's parallel_state on CPU: what each of four ranks receives under tensor, pipeline and context parallelism."""

from __future__ import annotations

import dataclasses

import torch.distributed as dist
from megatron.core import parallel_state

from .common import Diary, arguments, leave, make_loader


def main() -> None:
    """Split four ranks along each axis in turn and write down an epoch of each."""
    given = arguments()
    dist.init_process_group("gloo")
    for axis in ("tensor", "pipeline", "context"):
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=2 if axis == "tensor" else 1,
            pipeline_model_parallel_size=2 if axis == "pipeline" else 1,
            context_parallel_size=2 if axis == "context" else 1,
        )
        loader = make_loader(given)
        given.called = axis
        diary = Diary(given, dist.get_rank())
        for batch in diary.iterated(loader):
            diary.step(batch, points=float(batch["LIDAR"]["points"].double().sum()))
        diary.write(topology=dataclasses.asdict(loader.topology))
        dist.barrier()
        parallel_state.destroy_model_parallel()
    leave()


if __name__ == "__main__":
    main()
