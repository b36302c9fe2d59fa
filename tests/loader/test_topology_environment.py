"""Launchers by the variables they set: each alone, nested, half there, contradicting; and libraries that split models."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headway.formats import UsageError
from headway.loader.topology import Peers, Topology
from headway.loader.topology_detect import detect_topology, mesh_topology

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
HOROVOD = {
    "HOROVOD_RANK": "5", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4", "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
}  # fmt: skip
LIGHTNING = {"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    ("environ", "name"),
    [(TORCHRUN, "torchrun"), (SLURM, "SLURM"), (OPEN_MPI, "Open MPI"), (MPICH, "MPICH"), (HOROVOD, "Horovod")],
)
def test_each_launcher_says_rank_and_node(environ: dict[str, str], name: str) -> None:
    found = detect_topology(environ)
    assert (found.rank, found.size, found.local_rank, found.local_size) == (5, 8, 1, 4)
    assert (found.node, found.nodes) == (1, 2)
    assert name in found.source


def test_lightnings_launcher_sets_no_rank() -> None:
    found = detect_topology(LIGHTNING)
    assert (found.rank, found.size, found.local_rank, found.local_size) == (1, 4, 1, 4)


def test_half_an_answer_is_refused() -> None:
    """One process that believes to be alone beside others would read everything they read."""
    for environ in ({"WORLD_SIZE": "4"}, LIGHTNING | {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}):
        with pytest.raises(UsageError, match=r"WORLD_SIZE=4.*init_process_group"):
            detect_topology(environ)


def test_a_batch_script_is_one_process() -> None:
    assert detect_topology({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}).size == 1


def test_launchers_that_agree_complete_each_other() -> None:
    found = detect_topology(SLURM | {"RANK": "5", "WORLD_SIZE": "8"})
    assert (found.rank, found.local_rank, found.node, found.nodes, found.local_size) == (5, 1, 1, 2, 4)


@pytest.mark.parametrize(
    "outer",
    [
        {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
    ],
)
def test_a_launcher_that_starts_one_torchrun_a_node_does_not_contradict_it(outer: dict[str, str]) -> None:
    assert (detect_topology(outer | TORCHRUN).rank, detect_topology(outer | TORCHRUN).size) == (5, 8)


@pytest.mark.parametrize(
    "outer",
    [
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},  # rank 5 of 8 is not on the first of two
        {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"},
        {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "8"},
        {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},  # Horovod starts no launchers
    ],
)
def test_what_contradicts_is_listed(outer: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"torchrun \(RANK and WORLD_SIZE.*rank 5 of 8; \w.* says rank \d of \d; pass topology="):
        detect_topology(outer | TORCHRUN)


@pytest.mark.parametrize("change", [{"PMI_RANK": "8"}, {"PMI_RANK": "-1"}, {"PMI_SIZE": "x"}])
def test_impossible_numbers_name_the_variable(change: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="PMI_"):
        detect_topology(MPICH | change)


class Grid:
    """A mesh as torch's answers: this process's coordinates along named dimensions."""

    def __init__(self, **places: tuple[int, int]) -> None:
        self.places = places

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        return tuple(self.places)

    def size(self, mesh_dim: int | None = None) -> int:
        assert mesh_dim is not None
        return list(self.places.values())[mesh_dim][1]

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        return self.places[str(mesh_dim)][0]


def test_a_mesh_says_by_the_names_of_its_dimensions() -> None:
    mesh = Grid(pp=(1, 2), replicate=(1, 3), shard=(0, 2), cp=(1, 2), tp=(3, 4))
    found = mesh_topology(mesh, data=("replicate", "shard"), tensor="tp", pipeline="pp", context="cp")
    assert (found.rank, found.size) == (2, 6)
    assert (found.tensor, found.pipeline, found.context) == (Peers(rank=3, size=4), Peers(rank=1, size=2), Peers(rank=1, size=2))
    assert found.processes == 96


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ({"data": ("dp",)}, r"'tp'.*no role"),
        ({"data": ("dp", "x"), "tensor": "tp"}, "'x'"),
        ({"data": ("dp", "tp"), "tensor": "tp"}, "once"),
    ],
)
def test_a_mesh_whose_dimensions_are_not_all_told_is_refused(names: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        mesh_topology(Grid(dp=(0, 2), tp=(0, 2)), **names)


def parallel_state(**answers: int) -> ModuleType:
    """A module with the functions of Megatron-core's parallel_state."""
    module: Any = ModuleType("megatron.core.parallel_state")
    module.model_parallel_is_initialized = lambda: True
    for axis in ("data_parallel", "tensor_model_parallel", "pipeline_model_parallel", "context_parallel"):
        setattr(module, f"get_{axis}_rank", lambda axis=axis: answers.get(axis, 0))
        setattr(module, f"get_{axis}_world_size", lambda axis=axis: 2)
    return module  # type: ignore[no-any-return]  # a module whose attributes are set above


def test_megatron_gives_data_rank_and_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", parallel_state(data_parallel=1, context_parallel=1))
    environ = {"RANK": "11", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
    found = detect_topology(environ)
    assert (found.rank, found.size, found.processes) == (1, 2, 16)
    assert (found.context, found.tensor) == (Peers(rank=1, size=2), Peers(rank=0, size=2))
    assert (found.local_rank, found.local_size, found.node, found.nodes) == (3, 8, 1, 2)
    with pytest.raises(UsageError, match=r"16 processes .*there are 8"):
        detect_topology(environ | {"RANK": "3", "WORLD_SIZE": "8"})


def test_splits_that_contradict_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", parallel_state())
    groups = SimpleNamespace(mesh_device=Grid(data_parallel=(1, 8), sequence_parallel=(0, 2)), mpu=None)
    monkeypatch.setitem(sys.modules, "deepspeed.utils.groups", groups)
    with pytest.raises(UsageError, match=r"Megatron.*says data rank 0 of 2; DeepSpeed.*says data rank 1 of 8"):
        detect_topology({})


def test_deepspeed_and_accelerate_speak_through_their_meshes(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = SimpleNamespace(mesh_device=Grid(data_parallel=(1, 4), sequence_parallel=(1, 2)), mpu=None)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "deepspeed.utils.groups", groups)
        found = detect_topology({})
        assert (found.rank, found.size, found.context) == (1, 4, Peers(rank=1, size=2))
    state = SimpleNamespace(
        PartialState=SimpleNamespace(_shared_state={"process_index": 3, "num_processes": 4, "local_process_index": 3}),
        AcceleratorState=SimpleNamespace(_shared_state={"device_mesh": Grid(dp_shard=(1, 2), tp=(1, 2))}),
    )
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    found = detect_topology({})
    assert (found.rank, found.size, found.tensor, found.local_rank) == (1, 2, Peers(rank=1, size=2), 3)


def test_ray_train_speaks_inside_its_workers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def outside() -> Any:
        raise RuntimeError("not in a worker")

    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=outside))
    assert detect_topology({}).size == 1
    answers = {"world_size": 4, "world_rank": 2, "local_rank": 0, "local_world_size": 2, "node_rank": 1}
    context = SimpleNamespace(**{f"get_{name}": lambda value=value: value for name, value in answers.items()})
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=lambda: context))
    found = detect_topology({})
    assert (found.rank, found.size, found.local_size, found.node, found.nodes) == (2, 4, 2, 1, 2)


def test_peers_outside_their_size_are_refused() -> None:
    with pytest.raises(UsageError, match="Peers"):
        Peers(rank=2, size=2)
    with pytest.raises(UsageError, match="node"):
        Topology(node=1)
