"""User functions on samples and batches: the same batches in threads and in processes, keyed draws, errors that say where."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headway
from headway import Batch, DataLoader, Images, LoaderOptions, Topology, Transforms, UsageError
from headway.loader.samples import Template, merge, split

from . import transform_functions as functions
from .drives import JPEG

ALL = Images("CAM_[BF]*", size=JPEG)


def loader_of(location: Path, transforms: Transforms, *, batch_size: int = 4, **more: Any) -> DataLoader:
    topology, num_workers = more.pop("topology", None), more.pop("num_workers", 2)
    options = LoaderOptions(seed=3, transforms=transforms, **more)
    dataset = headway.open(location, images=ALL)
    return DataLoader(dataset, batch_size, True, num_workers=num_workers, options=options, topology=topology)


def assert_equal(one: Any, other: Any, key: str = "batch") -> None:
    if isinstance(one, dict):
        assert list(one) == list(other), key
        for name in one:
            assert_equal(one[name], other[name], f"{key}.{name}")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, key
        assert torch.equal(one, other), key
    else:
        assert one == other, key


def by_item(batches: list[Batch], name: str) -> dict[int, Any]:
    return {item: batch[name][at] for batch in batches for at, item in enumerate(batch["id"].tolist()) if item >= 0}


@pytest.mark.parametrize("call", [functions.touch_nothing, functions.change_everything, None])
@pytest.mark.parametrize("processes", [1, 2])
def test_processes_give_the_batches_that_threads_give(drives_set: Path, call: Any, processes: int) -> None:
    expected = list(loader_of(drives_set, Transforms(sample=call, processes=0)))
    found = list(loader_of(drives_set, Transforms(sample=call, processes=processes)))
    assert len(expected) == len(found) == 5
    for one, other in zip(expected, found, strict=True):
        assert_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_other_start_methods_give_the_same_without_torch(drives_set: Path, start: Any) -> None:
    expected = list(loader_of(drives_set, Transforms(sample=functions.change_everything, processes=0)))
    found = list(loader_of(drives_set, Transforms(sample=functions.change_everything, processes=1, start=start)))
    for one, other in zip(expected, found, strict=True):
        assert_equal(one, other)
    said = next(iter(loader_of(drives_set, Transforms(sample=functions.name_process, processes=1, start=start))))
    assert not said["has_torch"].any()
    assert os.getpid() not in said["pid"].tolist()


def test_an_untouched_array_is_not_copied(drives_set: Path) -> None:
    seen: list[Any] = []

    def look(sample: dict[str, Any]) -> dict[str, Any]:
        seen.append(sample["camera"]["image"])
        return sample

    batch = next(iter(loader_of(drives_set, Transforms(sample=look, processes=0), prefetch=0)))
    assert np.shares_memory(batch["camera"]["image"].numpy(), seen[0])


def test_batches_of_processes_may_be_held(drives_set: Path) -> None:
    transforms = Transforms(sample=functions.change_everything, processes=2)
    held = list(loader_of(drives_set, transforms))
    again = loader_of(drives_set, transforms)
    for batch, other in zip(held, again, strict=True):
        assert_equal(batch, other)


def test_draws_are_equal_on_other_ranks_and_after_a_resume(drives_set: Path) -> None:
    transforms = Transforms(sample=functions.change_everything, processes=0)
    whole = list(loader_of(drives_set, transforms))
    expected = by_item(whole, "draw")
    assert len(set(map(float, expected.values()))) == 18
    ranks = [
        by_item(list(loader_of(drives_set, transforms, batch_size=2, topology=Topology(rank=rank, size=2))), "draw")
        for rank in range(2)
    ]
    assert ranks[0] | ranks[1] == expected
    later = loader_of(drives_set, transforms)
    later.load_state_dict(whole[1]["state"])
    assert by_item(list(later), "draw") == by_item(whole[2:], "draw")


def test_padding_is_blank_and_keeps_the_shapes(drives_set: Path) -> None:
    seen: list[int] = []

    def note(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        seen.append(int(sample["id"]))
        return functions.change_everything(sample, rng)

    *_, last = loader_of(drives_set, Transforms(sample=note, processes=0))
    blank = ~last["valid"]
    assert blank.sum() == 2
    assert sorted(seen) == list(range(18))
    assert last["noise"].shape == (4, 70_000)
    assert not last["noise"][blank].any()
    assert not last["camera"]["image"][blank].any()
    assert not last["LIDAR"]["offsets"].diff()[blank].any()
    assert sorted(last["text"])[:2] == ["", ""]


def test_a_batch_of_padding_alone_has_the_shapes_of_the_others(drives_set: Path) -> None:
    transforms = Transforms(sample=functions.change_everything, processes=0)
    ranks = [
        list(loader_of(drives_set, transforms, batch_size=1, topology=Topology(rank=rank, size=4)))[-2:] for rank in range(4)
    ]
    assert sum(int(last["valid"].sum()) for _, last in ranks) == 2
    for before, last in ranks:
        assert last["noise"].shape == before["noise"].shape
        assert list(last) == list(before)


def test_a_batch_transform_changes_tensors_and_keeps_the_identity(drives_set: Path) -> None:
    def scale(batch: Batch, rng: np.random.Generator) -> dict[str, Any]:
        return {"image": batch["camera"]["image"].float() * 2, "id": None, "draw": rng.random()}

    for processes in (0, 1):
        batches = list(loader_of(drives_set, Transforms(batch=scale, processes=processes)))
        assert all(set(batch) >= {"image", "id", "valid", "state"} and "camera" not in batch for batch in batches)
        assert sorted(item for batch in batches for item in batch["id"].tolist() if item >= 0) == list(range(18))
        assert len({batch["draw"] for batch in batches}) == len(batches)


@pytest.mark.parametrize("processes", [0, 1])
def test_an_error_keeps_its_traceback_and_says_where(drives_set: Path, processes: int) -> None:
    with pytest.raises(LookupError, match="no such thing") as caught:
        list(loader_of(drives_set, Transforms(sample=functions.fail_once, processes=processes)))
    said = "".join(traceback.format_exception(caught.value))
    assert 'raise LookupError("no such thing")' in said
    assert "in transform 'fail_once' of item 7 (drive 'drive-1', frame 2), in process" in said
    assert "while making batch" in said
    assert (f"in process {os.getpid()}" in said) is (processes == 0)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda sample: 3, "must return a dict"),
        (lambda sample: {"x": object()}, "a object as 'x'"),
        (lambda sample: {"x": np.zeros(int(sample["id"]))}, "of one shape"),
        (lambda sample: {f"x{int(sample['id'])}": 1}, "the same keys"),
        (lambda sample: {"x": np.array(["a"])}, "only numbers and bools"),
        (lambda sample: {"LIDAR": {**sample["LIDAR"], "points": sample["LIDAR"]["points"][:3]}}, "change both together"),
    ],
)
def test_what_does_not_fit_together_is_refused(drives_set: Path, made: Callable[..., Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(loader_of(drives_set, Transforms(sample=made, processes=0)))


def test_splitting_and_merging_an_untouched_batch_gives_it_back(drives_set: Path) -> None:
    contents = {"id": np.arange(3), "x": np.arange(6).reshape(3, 2), "t": {"text": [["a"], [], ["b"]], "columns": ["q"]}}
    given = split(contents)
    merged = merge(contents, given, given, Template(given[0], given[0]), np.empty)
    assert merged["x"] is contents["x"]
    assert merged["t"] == contents["t"]


def test_a_lambda_for_another_start_method_is_refused_at_once(drives_set: Path) -> None:
    with pytest.raises(UsageError, match="top level of a module"):
        iter(loader_of(drives_set, Transforms(sample=lambda sample: sample, processes=1, start="spawn")))


@pytest.mark.parametrize("more", [{"processes": -1}, {"start": "thread"}, {"sample": 3}])
def test_options_that_cannot_be_meant_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Transforms"):
        Transforms(**more)
