"""Laws of the loader: batches and states are a function of the plan, whatever stops, threads, prefetch and ranks come between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headway
from headway import DataLoader, LoaderOptions, Topology, Weighted, WeightTable, Window
from tests.loader.drives import write_drives

SPLITS = [(1, 1, 6), (2, 1, 3), (3, 1, 2), (1, 2, 3), (2, 3, 1), (6, 1, 1), (1, 6, 1)]
"""(ranks, accumulation, batch size) with one global batch of 6."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> headway.Dataset:
    location = write_drives(tmp_path_factory.mktemp("laws") / "drives", drives=4, frames=6)
    return headway.open(location, windows=[Window("ego")])


def loaders(dataset: headway.Dataset, split: tuple[int, int, int], threads: int, prefetch: int) -> list[DataLoader]:
    ranks, accumulate, batch_size = split
    options = LoaderOptions(seed=9, accumulate=accumulate, prefetch=prefetch)
    return [
        DataLoader(dataset, batch_size, True, num_workers=threads, options=options, topology=Topology(rank=rank, size=ranks))
        for rank in range(ranks)
    ]


def steps(dataset: headway.Dataset, split: tuple[int, int, int], threads: int, prefetch: int, state: Any, stop: int) -> Any:
    """Run `stop` steps on simulated ranks from `state`; return the global batches and the state reached, equal on all."""
    _, accumulate, _ = split
    global_batches: list[list[int]] = [[] for _ in range(stop)]
    reached = []
    for loader in loaders(dataset, split, threads, prefetch):
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        for number in range(stop * accumulate):
            batch = next(iterator)
            global_batches[number // accumulate] += batch["id"].tolist()
        reached.append(batch["state"])
        del iterator
    assert all(other == reached[0] for other in reached)
    return global_batches, reached[0]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(SPLITS), st.integers(0, 3), st.integers(0, 5), st.integers(1, 2)), min_size=1, max_size=4)
)
def test_a_chain_of_resumes_over_topologies_is_one_stream(
    dataset: headway.Dataset, hops: list[tuple[tuple[int, int, int], int, int, int]]
) -> None:
    total = len(dataset) // 6
    whole, _ = steps(dataset, SPLITS[0], 0, 0, None, total)
    done: list[list[int]] = []
    state = None
    for split, threads, prefetch, stop in hops:
        stop = min(stop, total - len(done))
        if not stop:
            break
        more, state = steps(dataset, split, threads, prefetch, state, stop)
        done += more
    assert done == whole[: len(done)]


def test_an_epoch_covers_each_item_once_on_any_split(dataset: headway.Dataset) -> None:
    for split in SPLITS:
        items = [
            item for loader in loaders(dataset, split, 1, 2) for batch in loader for item in batch["id"][batch["valid"]].tolist()
        ]
        assert sorted(items) == list(range(len(dataset)))


def test_epochs_smaller_than_a_batch_and_evaluation_over_odd_ranks(dataset: headway.Dataset) -> None:
    location = str(dataset.packed.location)
    alone = headway.open(location, windows=[Window("ego")], where=[3])
    for size in (1, 4):
        (batch,) = DataLoader(alone, size, True, num_workers=0)
        assert batch["id"][batch["valid"]].tolist() == [0]
    (batch,) = DataLoader(dataset, 64, True, num_workers=0)
    assert sorted(batch["id"][batch["valid"]].tolist()) == list(range(len(dataset)))
    assert len(DataLoader(dataset, 64, True, drop_last=True, num_workers=0)) == 0
    seen = []
    for rank in range(7):
        topology = Topology(rank=rank, size=7)
        for batch in DataLoader(dataset, 1, sampler=headway.Evaluation(), topology=topology, num_workers=0):
            seen += batch["id"][batch["valid"]].tolist()
    assert sorted(seen) == list(range(len(dataset)))


def test_weights_that_change_between_epochs_resume_with_their_journal_only(dataset: headway.Dataset) -> None:
    early, late = (WeightTable.of(order) for order in (range(len(dataset)), range(len(dataset), 0, -1)))
    changing = Weighted(table=early, changes=((1, late),))
    loader = DataLoader(dataset, 5, sampler=changing, num_workers=0)
    _, second = list(loader), list(loader)
    assert second[0]["state"]["sampler"]["weights"] == late.digest
    resumed = DataLoader(dataset, 5, sampler=changing, num_workers=0)
    resumed.load_state_dict(second[0]["state"])
    assert [batch["id"].tolist() for batch in resumed] == [batch["id"].tolist() for batch in second[1:]]
    with pytest.raises(headway.StateError, match=r"sampler\.weights"):
        DataLoader(dataset, 5, sampler=Weighted(table=early), num_workers=0).load_state_dict(second[0]["state"])


def test_tar_and_arrow_sets_give_equal_batches_and_states(tmp_path: Path) -> None:
    runs = []
    for kind in ("arrow", "tar"):
        location = write_drives(tmp_path / kind, drives=2, frames=4, kind=kind)
        loader = DataLoader(headway.open(location, windows=[Window("LIDAR"), Window("boxes")]), 3, True, num_workers=1)
        runs.append(list(loader))
    for one, other in zip(*runs, strict=True):
        assert one["state"] == other["state"]
        assert one["LIDAR"]["points"].equal(other["LIDAR"]["points"])
        assert one["boxes"]["track_id"] == other["boxes"]["track_id"]
