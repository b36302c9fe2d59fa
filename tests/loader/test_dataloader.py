"""The loader over packed sets: order, position and state, epochs, ranks, and what it refuses."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headway
from headway import (
    DataLoader,
    Evaluation,
    Images,
    LoaderOptions,
    SlotSticky,
    StateError,
    Topology,
    UsageError,
    Weighted,
    WeightTable,
    Window,
)
from headway.loader.buffers import block_bytes
from headway.loader.plan import Plan
from headway.loader.shuffled import Shuffled

from .drives import JPEG

LIGHT = [Window("note"), Window("ego")]


def light(drives_set: Path, **options: Any) -> headway.Dataset:
    """A dataset whose batches cost next to nothing."""
    return headway.open(drives_set, windows=LIGHT, **options)


def loader_of(dataset: headway.Dataset, *, batch_size: int = 2, num_workers: int | None = 2, **more: Any) -> DataLoader:
    options = {name: more.pop(name) for name in list(more) if name in LoaderOptions.__dataclass_fields__}
    return DataLoader(
        dataset, batch_size, shuffle=True, num_workers=num_workers, options=LoaderOptions(**({"seed": 3} | options)), **more
    )


def ids(loader: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


def copied(loader: DataLoader) -> Any:
    return pickle.loads(pickle.dumps(loader))  # noqa: S301  what pickle is for: an object of this very test


def ended(before: set[threading.Thread]) -> bool:
    """Wait for the threads started since `before` to end."""
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    return not set(threading.enumerate()) - before


def test_it_is_torchs_class_with_torchs_signature(drives_set: Path) -> None:
    loader = DataLoader(light(drives_set), 4, True)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert (loader.batch_size, len(loader)) == (4, 5)
    assert loader.num_workers >= 1


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_order_is_the_plans_whatever_the_threads(drives_set: Path, num_workers: int, prefetch: int) -> None:
    dataset = light(drives_set)
    plan = Plan(dataset.view.info, Shuffled(), seed=3, epoch=0, segments=[(4, 0)])
    expected = [plan.step(step).items.tolist() for step in range(plan.steps)]
    assert ids(loader_of(dataset, batch_size=4, num_workers=num_workers, prefetch=prefetch)) == expected


@pytest.mark.parametrize(
    ("ranks", "accumulate", "batch_size"), [(1, 1, 8), (2, 1, 4), (1, 4, 2), (2, 2, 2), (4, 2, 1), (8, 1, 1)]
)
def test_ranks_and_accumulation_share_the_same_global_batches(
    drives_set: Path, ranks: int, accumulate: int, batch_size: int
) -> None:
    dataset = light(drives_set)
    plan = Plan(dataset.view.info, Shuffled(), seed=3, epoch=0, segments=[(8, 0)])
    steps: list[list[int]] = [[] for _ in range(plan.steps)]
    lengths = set()
    for rank in range(ranks):
        topology = Topology(rank=rank, size=ranks)
        loader = loader_of(dataset, batch_size=batch_size, accumulate=accumulate, topology=topology, num_workers=0)
        mine = ids(loader)
        lengths.add((len(mine), len(loader)))
        for number, batch in enumerate(mine):
            steps[number // accumulate] += batch
    assert lengths == {(plan.steps * accumulate, plan.steps * accumulate)}
    assert steps == [plan.step(step).items.tolist() for step in range(plan.steps)]


def test_each_batch_carries_the_state_that_resumes_after_it(drives_set: Path) -> None:
    dataset = light(drives_set)
    whole = list(loader_of(dataset))
    for number, batch in enumerate(whole):
        resumed = loader_of(dataset)
        resumed.load_state_dict(json.loads(json.dumps(batch["state"])))
        rest = [later["id"].tolist() for later in whole[number + 1 :]]
        assert ids(resumed)[: len(rest)] == rest or not rest
        assert len(json.dumps(batch["state"])) < 4096
    assert whole[-1]["state"]["epoch"] == 1


def test_the_state_is_of_what_was_delivered_not_prefetched(drives_set: Path) -> None:
    loader = loader_of(light(drives_set), prefetch=8)
    iterator = iter(loader)
    before = loader.state_dict()
    first = next(iterator)
    assert before["segments"] == [[2, 0]]
    assert loader.state_dict() == first["state"]
    second = next(iterator)
    assert loader.state_dict() == second["state"] != first["state"]


@pytest.mark.slow
def test_a_new_process_goes_on_exactly(drives_set: Path) -> None:
    dataset = light(drives_set)
    whole = list(loader_of(dataset))
    code = (
        "import json, sys, headway\n"
        "from headway import DataLoader, LoaderOptions, Window\n"
        f"dataset = headway.open({str(drives_set)!r}, windows=[Window('note'), Window('ego')])\n"
        "loader = DataLoader(dataset, 2, True, options=LoaderOptions(seed=3))\n"
        "loader.load_state_dict(json.load(sys.stdin))\n"
        "print(json.dumps([batch['id'].tolist() for batch in loader]))\n"
    )
    state = json.dumps(whole[3]["state"])
    done = subprocess.run([sys.executable, "-c", code], input=state, capture_output=True, text=True, check=True, timeout=100)
    assert json.loads(done.stdout) == [batch["id"].tolist() for batch in whole[4:]]


def test_a_resume_inside_a_step_needs_the_same_accumulation(drives_set: Path) -> None:
    dataset = light(drives_set)
    whole = list(loader_of(dataset, batch_size=1, accumulate=4))
    assert whole[1]["state"]["inside"] == {"R": 1, "k": 4, "micro": 2}
    resumed = loader_of(dataset, batch_size=1, accumulate=4)
    resumed.load_state_dict(whole[1]["state"])
    assert ids(resumed) == [batch["id"].tolist() for batch in whole[2:]]
    with pytest.raises(StateError, match="inside"):
        loader_of(dataset, batch_size=2, accumulate=2).load_state_dict(whole[1]["state"])


def test_another_batch_size_goes_on_with_one_warning_and_loses_nothing(drives_set: Path) -> None:
    dataset = light(drives_set)
    whole = list(loader_of(dataset, batch_size=2))
    resumed = loader_of(dataset, batch_size=3)
    with pytest.warns(UserWarning, match=r"2, this loader's is 3"):
        resumed.load_state_dict(whole[3]["state"])
    assert len(resumed) == 4 + 4  # 18 items: 4 steps of 2, then 10 left in steps of 3
    rest = [item for batch in ids(resumed) for item in batch if item >= 0]
    done = [item for batch in whole[:4] for item in batch["id"].tolist()]
    assert sorted(rest + done) == list(range(18))
    with pytest.raises(StateError, match="strict_batch"):
        loader_of(dataset, batch_size=3, strict_batch=True).load_state_dict(whole[3]["state"])


def test_states_of_another_order_are_refused_by_the_field(drives_set: Path) -> None:
    dataset = light(drives_set)
    state = loader_of(dataset).state_dict()
    for other, field in (
        (loader_of(dataset, seed=4), "seed"),
        (DataLoader(dataset, 2, options=LoaderOptions(seed=3)), "sampler.kind"),
        (loader_of(headway.open(drives_set, windows=[Window("note")])), "view"),
    ):
        with pytest.raises(StateError, match=field):
            other.load_state_dict(state)


def test_epochs_follow_one_another(drives_set: Path) -> None:
    loader = loader_of(light(drives_set))
    first, second = ids(loader), ids(loader)
    assert first != second
    for epoch in (first, second):
        assert sorted(item for batch in epoch for item in batch) == list(range(18))
    loader.set_epoch(1)
    assert ids(loader) == second
    loader.set_epoch(0)
    assert ids(loader) == first


def test_breaking_out_ends_the_epoch(drives_set: Path) -> None:
    dataset = light(drives_set)
    loader = loader_of(dataset)
    first, second = ids(loader), ids(loader)
    loader = loader_of(dataset)
    for _, batch in zip(range(3), loader, strict=False):
        state = batch["state"]
    assert loader.state_dict() == state
    assert ids(loader) == second
    loader.load_state_dict(state)
    assert ids(loader) == first[3:]


def test_set_epoch_of_the_loaded_epoch_keeps_the_position(drives_set: Path) -> None:
    dataset = light(drives_set)
    whole = list(loader_of(dataset))
    loader = loader_of(dataset)
    loader.load_state_dict(whole[2]["state"])
    loader.set_epoch(0)
    assert ids(loader) == [batch["id"].tolist() for batch in whole[3:]]
    loader.load_state_dict(whole[2]["state"])
    loader.set_epoch(5)
    assert loader.state_dict()["segments"] == [[2, 0]]
    assert len(ids(loader)) == len(whole)


def test_loading_a_state_under_an_iterator_is_refused(drives_set: Path) -> None:
    loader = loader_of(light(drives_set))
    state = loader.state_dict()
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(StateError, match="under way"):
        loader.load_state_dict(state)
    del iterator
    loader.load_state_dict(state)
    assert len(ids(loader)) == 9


@pytest.mark.parametrize("ending", ["exhausted", "break", "deleted", "error"])
def test_no_thread_outlives_its_iterator(drives_set: Path, ending: str) -> None:
    before = set(threading.enumerate())
    loader = loader_of(light(drives_set), prefetch=4)
    if ending == "exhausted":
        ids(loader)
    elif ending == "break":
        for _ in loader:
            break
    elif ending == "deleted":
        iterator = iter(loader)
        next(iterator)
        del iterator
    else:
        with pytest.raises(KeyError):
            [batch["no such field"] for batch in loader]
    assert ended(before)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "raise RuntimeError('user code')"])
def test_a_kept_iterator_does_not_hold_the_interpreter(drives_set: Path, end: str) -> None:
    code = (
        "import headway\nfrom headway import DataLoader\n"
        f"loader = DataLoader(headway.open({str(drives_set)!r}), 2, num_workers=2)\n"
        f"kept = iter(loader)\nbatch = next(kept)\n{end}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == {"p": 0, "S": 3, "R": 1}[end.removeprefix("raise ")[0]], done.stderr
    assert done.stderr.count("Traceback") == (1 if "Runtime" in end else 0)


def test_nested_loops_over_one_loader_are_independent(drives_set: Path) -> None:
    loader = loader_of(light(drives_set))
    for outer, _ in zip(loader, loader, strict=True):
        assert len(outer["id"]) == 2


def test_threads_none_zero_and_some_give_equal_batches(drives_set: Path) -> None:
    dataset = headway.open(drives_set, images=[Images("CAM_*", size=JPEG)])
    runs = [list(loader_of(dataset, num_workers=threads)) for threads in (None, 0, 2)]
    for batches in zip(*runs, strict=True):
        for other in batches[1:]:
            assert torch.equal(batches[0]["camera"]["image"], other["camera"]["image"])
            assert torch.equal(batches[0]["LIDAR"]["points"], other["LIDAR"]["points"])
            assert batches[0]["boxes"]["track_id"] == other["boxes"]["track_id"]
            assert batches[0]["state"] == other["state"]


@pytest.mark.parametrize(
    ("argument", "value", "remedy"),
    [
        ("batch_sampler", [[0]], "sampler="),
        ("collate_fn", list, "windows="),
        ("generator", torch.Generator(), "seed"),
        ("worker_init_fn", print, "no worker processes"),
        ("multiprocessing_context", "spawn", "no worker processes"),
        ("sampler", torch.utils.data.SequentialSampler(range(3)), "Shuffled"),
        ("batch_size", None, "batch_size"),
        ("batch_size", 0, "batch_size"),
        ("num_workers", -1, "num_workers"),
        ("in_order", False, "in_order"),
    ],
)
def test_what_has_no_meaning_is_refused_with_the_alternative(drives_set: Path, argument: str, value: Any, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy):
        DataLoader(light(drives_set), **{argument: value})


def test_evaluation_reads_each_item_once_and_refuses_replacement(drives_set: Path) -> None:
    dataset = light(drives_set)
    loader = DataLoader(dataset, 4, sampler=Evaluation())
    assert [item for batch in ids(loader) for item in batch if item >= 0] == list(range(18))
    with pytest.raises(UsageError, match="replace"):
        DataLoader(dataset, 4, sampler=Evaluation(), options=LoaderOptions(on_error="replace"))
    with pytest.raises(ValueError, match="mutually exclusive"):
        DataLoader(dataset, 4, True, sampler=Evaluation())


def test_weighted_items_come_as_often_as_they_weigh(drives_set: Path) -> None:
    weights = [0.0] * 17 + [1.0]
    loader = DataLoader(light(drives_set), 4, sampler=Weighted(table=WeightTable.of(weights)))
    assert {item for batch in ids(loader) for item in batch if item >= 0} == {17}


def test_sticky_slots_walk_their_drives_and_say_where_they_begin(drives_set: Path) -> None:
    loader = DataLoader(light(drives_set), 3, sampler=SlotSticky())
    before: list[tuple[str, int]] = [("", -1)] * 3
    for batch in loader:
        here = list(zip(batch["drive"], batch["frame"].tolist(), strict=True))
        for slot in np.flatnonzero(batch["valid"]).tolist():
            drive, frame = before[slot]
            assert bool(batch["is_first"][slot]) is (here[slot] != (drive, frame + 1))
        before = here


def test_drop_last_leaves_no_padding(drives_set: Path) -> None:
    loader = DataLoader(light(drives_set), 4, True, drop_last=True)
    assert len(loader) == 4
    assert all(batch["valid"].all() for batch in loader)


def test_torchs_prefetch_and_timeout_are_options_of_ours(drives_set: Path) -> None:
    dataset = light(drives_set)
    assert len(ids(DataLoader(dataset, 4, prefetch_factor=3, timeout=30, num_workers=2))) == 5
    with pytest.raises(UsageError, match="prefetch_factor=3"):
        DataLoader(dataset, 4, prefetch_factor=3, options=LoaderOptions(prefetch=5))


def test_stats_add_up(drives_set: Path) -> None:
    loader = loader_of(light(drives_set), batch_size=4)
    batches = list(loader)
    stats = loader.stats()
    assert stats["steps"] == 5
    assert stats["samples"] == 18
    assert stats["bytes"] == sum(batch.nbytes for batch in batches)
    assert 0 <= stats["waited_s"] <= stats["active_s"]
    assert 0 < stats["first_batch_s"] <= stats["active_s"]
    assert stats["headway_s"] >= 0


def test_dropped_batches_give_all_their_memory_back(drives_set: Path) -> None:
    loader = loader_of(headway.open(drives_set, images=[Images("CAM_*", size=(120, 160))]), prefetch=3)
    for _ in range(3):
        for batch in loader:
            kept = batch["camera"]["image"][0, 0, 0]
        assert loader._packed.engines.pool.leased_bytes > 0
        del batch, kept
        assert loader._packed.engines.pool.leased_bytes == 0
    # Batches ahead, the one in hand and the one asked for: recycled, not growing with the number of epochs.
    assert loader._packed.engines.pool.held_bytes <= 6 * block_bytes(2 * 3 * 3 * 120 * 160)


def test_a_pickled_loader_goes_on_from_its_position(drives_set: Path) -> None:
    loader = loader_of(light(drives_set))
    whole = ids(loader_of(light(drives_set)))
    assert ids(copied(loader)) == whole
    iterator = iter(loader)
    next(iterator)
    assert ids(copied(loader)) == whole[1:]
    plain = DataLoader([1, 2, 3], batch_size=2)
    assert [batch.tolist() for batch in copied(plain)] == [[1, 2], [3]]


@pytest.mark.slow
def test_an_iterator_that_came_by_a_fork_says_so(drives_set: Path) -> None:
    code = (
        "import os, headway\nfrom headway import DataLoader, WorkerDied, Window\n"
        f"loader = DataLoader(headway.open({str(drives_set)!r}, windows=[Window('note')]), 2, num_workers=2)\n"
        "iterator = iter(loader)\nfirst = next(iterator)['id'].tolist()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        next(iterator)\n"
        "    except WorkerDied:\n"
        "        again = next(iter(DataLoader(loader.dataset, 2, num_workers=2)))['id'].tolist()\n"
        "        os._exit(7 if again == first else 8)\n"
        "    os._exit(9)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "print(len(list(iterator)))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_a_waiting_loop(drives_set: Path) -> None:
    code = (
        "import os, signal, threading, headway\nfrom headway import DataLoader, Window\n"
        "class Never:\n"
        "    name, whole_step = 'never', False\n"
        "    def start(self, threads): pass\n"
        "    def decode(self, jobs):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        threading.Event().wait(3)\n"
        "        raise ValueError('late')\n"
        f"for batch in DataLoader(headway.open({str(drives_set)!r}), 2, num_workers=1, decoder=Never()):\n    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.count("Traceback") == 1
    assert "KeyboardInterrupt" in done.stderr
