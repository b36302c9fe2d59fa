"""Data rank and peers from a torch DeviceMesh (or any with its few methods), by the names of its dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..formats import UsageError
from .topology import ALONE, Peers, Topology

__all__ = ["Mesh", "topology_of_mesh"]


class Mesh(Protocol):
    """The part of `torch.distributed.device_mesh.DeviceMesh` that is asked."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """Names of the dimensions, if they have any."""
        ...

    def size(self, mesh_dim: int | None = None) -> int:
        """Return the processes along a dimension."""
        ...

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return the place of this process along a dimension."""
        ...


def topology_of_mesh(
    mesh: Mesh,
    *,
    data: Sequence[str],
    tensor: str | None = None,
    pipeline: str | None = None,
    context: str | None = None,
    source: str = "DeviceMesh",
) -> Topology:
    """Return the place that a mesh gives this process; the node is left to others.

    `data` names the dimensions over which data is split, outermost first (for HSDP both of them). A dimension of more than
    one process that is named nowhere is refused: its processes would read the same data unasked.
    """
    names = list(mesh.mesh_dim_names or ())
    if not names:
        raise UsageError(f"{source}: its dimensions have no names; make it with mesh_dim_names=(…), so that roles can be told")
    asked = [*data, *(name for name in (tensor, pipeline, context) if name)]
    unknown = [name for name in asked if name not in names]
    if unknown or len(set(asked)) < len(asked):
        raise UsageError(
            f"{source}: asked for dimensions {asked}, it has {names}; name each dimension once, by data=(…), tensor=, pipeline= "
            "or context="
        )
    silent = [name for name in names if name not in asked and mesh.size(names.index(name)) > 1]
    if silent:
        raise UsageError(
            f"{source}: dimensions {silent} have more than one process and no role; say data=, tensor=, pipeline= or context="
        )
    rank, size = 0, 1
    for name in data:
        length = mesh.size(names.index(name))
        rank, size = rank * length + mesh.get_local_rank(name), size * length

    def peers(name: str | None) -> Peers:
        return ALONE if name is None else Peers(rank=mesh.get_local_rank(name), size=mesh.size(names.index(name)))

    return Topology(
        rank=rank,
        size=size,
        tensor=peers(tensor),
        pipeline=peers(pipeline),
        context=peers(context),
        source=f"{source} {tuple(names)}",
    )
