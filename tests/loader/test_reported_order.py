"""What people have reported of orders and resumes, each thread as a test: stages, draws, epochs, and ranks' checkpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway
from headway import DataLoader, LoaderOptions, Mixture, Shuffled, StateError, Topology, Transforms, Window
from headway.loader.state import State
from tests.laws.plans import view_of

from .drives import write_drives

WINDOWS = [Window("LIDAR", past=3, choose=2, on_gap="pad"), Window("ego"), Window("note")]


def drawn(sample: Any, rng: np.random.Generator) -> Any:
    """Add a draw."""
    sample["draw"] = np.int64(rng.integers(1 << 40))
    return sample


def slow_at_random(sample: Any) -> Any:
    """Take 0 to 5 ms, differently in every run."""
    time.sleep(np.random.default_rng().random() * 0.005)
    return sample


def loader_of(location: Path, *, windows: Any = WINDOWS, **more: Any) -> DataLoader:
    given = {"sample": more.pop("sample", drawn), "processes": more.pop("processes", 0), "start": more.pop("start", "auto")}
    options = LoaderOptions(seed=3, prefetch=more.pop("prefetch", 2), transforms=Transforms(**given))
    batch_size, num_workers = more.pop("batch_size", 2), more.pop("num_workers", 1)
    return DataLoader(headway.open(location, windows=windows), batch_size, True, num_workers=num_workers, options=options, **more)


def seen(batches: Any) -> list[Any]:
    """Items, draws and chosen sweeps of each batch."""
    return [(batch["id"].tolist(), batch["draw"].tolist(), batch["LIDAR"]["stamp"].tolist()) for batch in batches]


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 1, 8])
def test_the_position_is_that_of_the_last_stage(drives_set: Path, prefetch: int) -> None:
    """huggingface/datasets#8145, huggingface/datasets#7901: what stages or a shuffle buffer held was skipped or repeated."""
    whole = list(loader_of(drives_set, prefetch=prefetch))
    assert sorted(item for batch in ids(whole) for item in batch) == list(range(18))
    expected = seen(whole)
    for number, batch in enumerate(whole[:-1]):
        resumed = loader_of(drives_set, prefetch=prefetch)
        resumed.load_state_dict(batch["state"])
        assert seen(resumed) == expected[number + 1 :]


@pytest.mark.parametrize("resumed_with", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "processes": 2}])
def test_draws_go_on_as_they_would_have(drives_set: Path, resumed_with: dict[str, Any]) -> None:
    """NVIDIA/Megatron-Energon#79: without workers, a sample's number was not restored, and its augmentation was another."""
    whole = list(loader_of(drives_set, num_workers=0))
    resumed = loader_of(drives_set, **resumed_with)
    resumed.load_state_dict(whole[3]["state"])
    assert seen(resumed) == seen(whole[4:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "start", ["auto", pytest.param("spawn", marks=pytest.mark.full), pytest.param("forkserver", marks=pytest.mark.full)]
)
def test_processes_of_every_kind_see_the_epoch(drives_set: Path, start: Any) -> None:
    """starVLA/starVLA#471, huggingface/datasets#6673: what started before the epoch changed went on drawing the old one."""
    here = loader_of(drives_set, num_workers=0)
    there = loader_of(drives_set, processes=1, start=start, persistent_workers=True)
    epochs = []
    for epoch in range(2 if start == "spawn" else 3):  # each iterator begins its processes anew, which takes seconds there
        for loader in (here, there):
            loader.set_epoch(epoch)
        epochs.append(seen(here))
        assert seen(there) == epochs[-1]
    draws = [{draw for _, batch, _ in epoch for draw in batch} for epoch in epochs]
    assert not draws[0] & draws[1]
    assert ids(here) != ids(here)


def test_an_order_does_not_depend_on_who_is_faster(drives_set: Path) -> None:
    """pytorch/pytorch#73603: after the first epoch the order differed from run to run."""
    orders = set()
    for run in range(6):
        loader = loader_of(drives_set, sample=slow_at_random, num_workers=3, processes=2 * (run % 2), persistent_workers=True)
        orders.add(str([ids(loader) for _ in range(3)]))
    assert len(orders) == 1


def test_a_mixture_resumes_by_a_seek(drives_set: Path, tmp_path: Path) -> None:
    """Lightning-AI/litData#213: resuming a mixture of two sets stalled."""
    other = write_drives(tmp_path / "other", drives=1, frames=9)
    prepared: list[int] = []

    def note(sample: Any) -> Any:
        prepared.append(int(sample["id"]))
        return sample

    def make() -> DataLoader:
        mixed = headway.mix([headway.open(each, windows=WINDOWS[1:]) for each in (drives_set, other)])
        options = LoaderOptions(seed=3, transforms=Transforms(sample=note, processes=0))
        return DataLoader(mixed, 2, sampler=Mixture(weights=(69, 31), epoch_items=400), num_workers=0, options=options)

    whole = list(make())
    assert len(whole) == 200
    prepared.clear()
    resumed = make()
    resumed.load_state_dict(whole[189]["state"])
    assert ids(resumed) == ids(whole[190:])
    assert len(prepared) == 20  # nothing that was passed over was made


def test_a_position_near_the_end_of_a_billion_items_is_reached_at_once() -> None:
    """huggingface/datasets#5454: reaching a position took as long as reading up to it."""
    view, sampler = view_of(10**9, drive=10**6), Shuffled()
    begun = State.start(view, sampler, seed=3, epoch=2, batch_size=64).to_json()
    state = State.from_json({**begun, "segments": [[64, 15_468_750]]})
    plan = state.resume(view, sampler, seed=3, batch_size=64, ranks=8, accumulation=1).plan(view, sampler)
    assert (plan.first_step, plan.steps) == (15_468_750, 15_625_000)
    items = plan.step(plan.first_step).items
    assert len(set(items.tolist())) == 64


def test_any_ranks_checkpoint_is_everybodys(drives_set: Path) -> None:
    """NVIDIA-NeMo/Megatron-Bridge#5593: a missing rank's file was taken for no checkpoint. Here one file is enough."""
    loaders = [loader_of(drives_set, topology=Topology(rank=rank, size=3)) for rank in range(3)]
    states = [[batch["state"] for batch in loader] for loader in loaders]
    assert states[0] == states[1] == states[2]
    nothing: Any
    for nothing in ({}, None):
        with pytest.raises(StateError):
            loaders[0].load_state_dict(nothing)
