"""Finding this process's place: what libraries and launchers say, checked against each other, never guessed.

The order: an explicit argument (not seen here), libraries that split models, torch.distributed and other libraries, launchers,
a single process. What contradicts each other is an error that lists all that was seen, because the alternative is two ranks
that train on the same data. The environment is read here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..formats import UsageError
from .topology import Topology
from .topology_environment import Sighting, innermost, local_of, sightings
from .topology_libraries import sightings_of_libraries, splits_of_libraries
from .topology_mesh import Mesh, topology_of_mesh

__all__ = ["detect_topology", "mesh_topology"]

_REMEDY = "pass topology=Topology(rank=…, size=…) to DataLoader"


def detect_topology(environ: Mapping[str, str] | None = None) -> Topology:
    """Return the place of this process as what started it, or what it has loaded, says.

    Raises:
        UsageError: two of them contradict each other, or only half of an answer is there.
    """
    environ = os.environ if environ is None else environ
    world = _world(environ)
    splits = splits_of_libraries()
    for split in splits:
        if world is not None and split.processes != world.size:
            raise UsageError(
                f"{split.source} splits {split.processes} processes (data {split.size}, tensor {split.tensor.size}, pipeline "
                f"{split.pipeline.size}, context {split.context.size}), {world.source} says there are {world.size}; {_REMEDY}"
            )
    if len({(split.rank, split.size, split.tensor, split.pipeline, split.context) for split in splits}) > 1:
        seen = "; ".join(f"{split.source} says data rank {split.rank} of {split.size}" for split in splits)
        raise UsageError(f"the data-parallel rank is ambiguous: {seen}; {_REMEDY}")
    if world is None:
        return splits[0] if splits else Topology(source="single process")
    place = splits[0] if splits else Topology(rank=world.rank, size=world.size, source=world.source)
    return _on_node(place, world)


def mesh_topology(
    mesh: Mesh,
    *,
    data: Sequence[str],
    tensor: str | None = None,
    pipeline: str | None = None,
    context: str | None = None,
) -> Topology:
    """Return the place that a DeviceMesh gives this process, to be passed as `DataLoader(topology=…)`.

    `data` names the dimensions over which data is split, outermost first; the others name those of peers.
    """
    place = topology_of_mesh(mesh, data=data, tensor=tensor, pipeline=pipeline, context=context)
    world = _world(os.environ)
    return place if world is None else _on_node(place, world)


def _world(environ: Mapping[str, str]) -> Sighting | None:
    """Return this process's number among all, with the node as far as anyone knows it."""
    seen = innermost([*sightings_of_libraries(), *sightings(environ)])
    if len({(each.rank, each.size) for each in seen}) > 1:
        raise UsageError(f"the rank of this process is ambiguous: {'; '.join(map(str, seen))}; {_REMEDY}")
    if not seen:
        if environ.get("WORLD_SIZE", "1") != "1":
            raise UsageError(
                f"the environment says WORLD_SIZE={environ['WORLD_SIZE']}, and nothing says which rank this is: RANK is not set, "
                f"and torch.distributed is not initialised; iterate after init_process_group, or {_REMEDY}"
            )
        return None
    local_rank, local_size = local_of(environ, seen[0].rank, seen[0].size)

    def stated(field: str) -> int | None:
        return next((value for each in seen if (value := getattr(each, field)) is not None), None)

    local_size = _first(stated("local_size"), local_size, *(each.per_node for each in seen))
    return replace(
        seen[0],
        local_rank=_first(stated("local_rank"), local_rank),
        local_size=local_size,
        node=stated("node"),
        nodes=stated("nodes"),
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _on_node(place: Topology, world: Sighting) -> Topology:
    """Return `place` with what `world` knows about nodes; what it does not know is one process on one node."""
    local_size = world.local_size or max(1, (world.local_rank or 0) + 1)
    local_rank = world.local_rank if world.local_rank is not None else world.rank % local_size
    nodes = world.nodes or max(1, -(-world.size // local_size) if world.local_size else (world.node or 0) + 1)
    node = world.node if world.node is not None else (world.rank // local_size if nodes > 1 else 0)
    return replace(place, local_rank=local_rank, local_size=local_size, node=min(node, nodes - 1), nodes=nodes)
