"""What training libraries that are loaded in this process say about its place: a small detector for each.

No library is imported for it: one that this process has not loaded has not placed it. `sightings_of_libraries` tells who counts
processes, `splits_of_libraries` who knows how they are split into data ranks and peers.
"""

from __future__ import annotations

import sys
from typing import Any

from .topology import Peers, Topology
from .topology_environment import Sighting
from .topology_mesh import topology_of_mesh

__all__ = ["sightings_of_libraries", "splits_of_libraries"]


def sightings_of_libraries() -> list[Sighting]:
    """Return rank and size of this process among all, from each library that knows them."""
    return [seen for seen in (_torch_distributed(), _accelerate(), _ray_train()) if seen is not None]


def splits_of_libraries() -> list[Topology]:
    """Return data rank and peers from each library that splits models (local facts are left out)."""
    return [seen for seen in (_megatron(), _deepspeed(), _accelerate_mesh()) if seen is not None]


def _torch_distributed() -> Sighting | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Sighting(source="torch.distributed", rank=distributed.get_rank(), size=distributed.get_world_size())


def _accelerate() -> Sighting | None:
    state = _accelerate_state("PartialState")
    if state is None or "process_index" not in state:
        return None
    return Sighting(
        source="Accelerate",
        rank=int(state["process_index"]),
        size=int(state["num_processes"]),
        local_rank=int(state["local_process_index"]),
    )


def _ray_train() -> Sighting | None:
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        size = context.get_world_size()
    except RuntimeError:  # what ray raises outside a training function
        return None
    if size is None:
        return None
    return Sighting(
        source="Ray Train",
        rank=context.get_world_rank(),
        size=size,
        local_rank=context.get_local_rank(),
        local_size=context.get_local_world_size(),
        node=context.get_node_rank(),
    )


def _megatron() -> Topology | None:
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    return _of_parallel_state(state, "Megatron-core parallel_state")


def _of_parallel_state(state: Any, source: str) -> Topology:  # Any: a module without types
    """Ask an object with Megatron's functions; data ranks exclude context peers, which share samples."""
    has_context = hasattr(state, "get_context_parallel_rank")
    has_pipeline = hasattr(state, "get_pipeline_model_parallel_rank")
    return Topology(
        rank=state.get_data_parallel_rank(),
        size=state.get_data_parallel_world_size(),
        tensor=Peers(rank=state.get_tensor_model_parallel_rank(), size=state.get_tensor_model_parallel_world_size()),
        pipeline=Peers(rank=state.get_pipeline_model_parallel_rank(), size=state.get_pipeline_model_parallel_world_size())
        if has_pipeline
        else Peers(),
        context=Peers(rank=state.get_context_parallel_rank(), size=state.get_context_parallel_world_size())
        if has_context
        else Peers(),
        source=source,
    )


def _deepspeed() -> Topology | None:
    """Plain ZeRO splits data over all processes, which torch.distributed says already; an mpu or a mesh says more."""
    groups = sys.modules.get("deepspeed.utils.groups")
    if groups is None:
        return None
    if getattr(groups, "mesh_device", None) is not None:
        names = groups.mesh_device.mesh_dim_names or ()
        context = "sequence_parallel" if "sequence_parallel" in names else None
        return topology_of_mesh(groups.mesh_device, data=("data_parallel",), context=context, source="DeepSpeed's mesh")
    mpu = getattr(groups, "mpu", None)
    if mpu is None or not hasattr(mpu, "get_tensor_model_parallel_rank"):
        return None
    return _of_parallel_state(mpu, "DeepSpeed's mpu")


def _accelerate_mesh() -> Topology | None:
    state = _accelerate_state("AcceleratorState")
    mesh = None if state is None else state.get("device_mesh")
    if mesh is None:
        return None
    names = mesh.mesh_dim_names or ()
    return topology_of_mesh(
        mesh,
        data=[name for name in ("dp_replicate", "dp_shard") if name in names],
        tensor="tp" if "tp" in names else None,
        context=next((name for name in ("cp", "sp") if name in names), None),
        source="Accelerate's mesh",
    )


def _accelerate_state(name: str) -> dict[str, Any] | None:  # Any: attributes of a foreign class
    module = sys.modules.get("accelerate.state")
    holder = None if module is None else getattr(module, name, None)
    shared = getattr(holder, "_shared_state", None)  # asking an instance would make one, and with it a process group
    return dict(shared) if shared else None
