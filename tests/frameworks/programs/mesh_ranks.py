"""A torch DeviceMesh of 2 × 2: the mesh says the data rank, one peer of each tensor-parallel pair loads for both."""

from __future__ import annotations

import dataclasses

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from headway import Shared, mesh_topology

from .common import Diary, arguments, leave, make_loader


def main() -> None:
    """Write down an epoch."""
    given = arguments()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    loader = make_loader(given, topology=mesh_topology(mesh, data=("dp",), tensor="tp"))
    diary = Diary(given, dist.get_rank())
    for batch in Shared(loader, group=mesh["tp"].get_group()):  # the peer that loads iterates the loader itself
        diary.step(batch, points=float(batch["LIDAR"]["points"].double().sum()))
    diary.write(topology=dataclasses.asdict(loader.topology), loaded=loader.stats()["steps"])
    leave()


if __name__ == "__main__":
    main()
