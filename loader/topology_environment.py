"""What launchers say about a process in environment variables: one row of names each, and who wins when they nest.

Nothing here reads `os.environ`: `topology_detect` does, once, and hands it in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..formats import UsageError

__all__ = ["LAUNCHERS", "Launcher", "Sighting", "innermost", "local_of", "sightings"]

_LOCALHOST = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What one launcher or library says; None where it says nothing."""

    source: str
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    node: int | None = None
    nodes: int | None = None

    def __str__(self) -> str:
        return f"{self.source} says rank {self.rank} of {self.size}"

    @property
    def per_node(self) -> int | None:
        """Processes of one node, where all nodes have the same."""
        if self.local_size is not None:
            return self.local_size
        return self.size // self.nodes if self.nodes and not self.size % self.nodes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """The variables in which one launcher states rank and size (both needed), and what else it states."""

    name: str
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    node: str = ""
    nodes: str = ""
    starts_launchers: bool = False
    """Often starts one process a node, which is another launcher."""

    def seen(self, environ: Mapping[str, str]) -> Sighting | None:
        """Return what this launcher says, or None where it has not started this process."""
        if self.rank not in environ or self.size not in environ:
            return None
        optional = {field: _optional(environ, getattr(self, field)) for field in ("local_rank", "local_size", "node", "nodes")}
        sighting = Sighting(
            source=f"{self.name} ({self.rank} and {self.size} of the environment)",
            rank=_number(environ, self.rank),
            size=_number(environ, self.size),
            **optional,
        )
        if not 0 <= sighting.rank < max(sighting.size, 1) or sighting.size < 1:
            raise UsageError(
                f"environment: {self.rank} must be from 0 to {self.size} − 1, found {sighting.rank} of {sighting.size}; "
                "correct it, or pass topology=Topology(rank=…, size=…) to DataLoader"
            )
        return sighting


LAUNCHERS: Sequence[Launcher] = (
    # Innermost first. torchrun's names are also set by Ray Train, DeepSpeed's and Accelerate's launchers.
    Launcher(
        name="torchrun",
        rank="RANK",
        size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_size="LOCAL_WORLD_SIZE",
        node="GROUP_RANK",
        nodes="GROUP_WORLD_SIZE",
    ),
    Launcher(
        name="Horovod",
        rank="HOROVOD_RANK",
        size="HOROVOD_SIZE",
        local_rank="HOROVOD_LOCAL_RANK",
        local_size="HOROVOD_LOCAL_SIZE",
        node="HOROVOD_CROSS_RANK",
        nodes="HOROVOD_CROSS_SIZE",
    ),
    Launcher(
        name="Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        starts_launchers=True,
    ),
    Launcher(
        name="MPICH",
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
        starts_launchers=True,
    ),
    Launcher(
        name="SLURM",
        rank="SLURM_PROCID",
        # Of the step: a batch script, too, has SLURM_PROCID=0 and SLURM_NTASKS, and is one process all the same.
        size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        node="SLURM_NODEID",
        nodes="SLURM_STEP_NUM_NODES",
        starts_launchers=True,
    ),
)


def sightings(environ: Mapping[str, str]) -> list[Sighting]:
    """Return what each launcher says that has started this process, innermost first."""
    found = [(launcher, launcher.seen(environ)) for launcher in LAUNCHERS]
    seen = [sighting for _, sighting in found if sighting is not None]
    if not any(sighting.source.startswith("torchrun") for sighting in seen):
        lightning = _lightning(environ)
        seen = [lightning, *seen] if lightning is not None else seen
    return seen


def innermost(seen: Sequence[Sighting]) -> list[Sighting]:
    """Return `seen` without the launchers that started the launchers of this process: one process a node each."""
    outer = {launcher.name for launcher in LAUNCHERS if launcher.starts_launchers}
    kept: list[Sighting] = []
    for sighting in seen:
        if kept and sighting.source.split(" (")[0] in outer and _started(sighting, kept[0]):
            continue
        kept.append(sighting)
    return kept


def _started(outer: Sighting, inner: Sighting) -> bool:
    """Tell whether `outer` counts nodes, and `inner` the processes on them."""
    return inner.size > outer.size and inner.size % outer.size == 0 and inner.rank // (inner.size // outer.size) == outer.rank


def _lightning(environ: Mapping[str, str]) -> Sighting | None:
    """Return what Lightning's own launcher says: it sets no RANK, and node by node only node 0 can tell it."""
    if "RANK" in environ or not {"WORLD_SIZE", "LOCAL_RANK", "NODE_RANK"} <= environ.keys():
        return None
    node, local = _number(environ, "NODE_RANK"), _number(environ, "LOCAL_RANK")
    if node:
        return None  # the process group, once it stands, will know
    source = "Lightning (NODE_RANK, LOCAL_RANK and WORLD_SIZE of the environment)"
    return Sighting(source=source, rank=local, size=_number(environ, "WORLD_SIZE"), local_rank=local, node=node)


def local_of(environ: Mapping[str, str], rank: int, size: int) -> tuple[int | None, int | None]:
    """Return (local rank, local size) that the environment states without a rank, or that follow from a local rendezvous."""
    if environ.get("MASTER_ADDR") in _LOCALHOST and "LOCAL_WORLD_SIZE" not in environ:
        return rank, size
    return _optional(environ, "LOCAL_RANK"), _optional(environ, "LOCAL_WORLD_SIZE")


def _optional(environ: Mapping[str, str], name: str) -> int | None:
    return _number(environ, name) if name and name in environ else None


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise UsageError(f"environment variable {name} must be a whole number, found {environ[name]!r}") from None
