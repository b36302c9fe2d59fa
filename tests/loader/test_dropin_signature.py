"""The constructor takes what torch's takes, by position where torch does, for every torch version in the range."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from headway import DataLoader

POSITIONAL = (
    "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory", "drop_last",
    "timeout", "worker_init_fn", "multiprocessing_context", "generator",
)  # fmt: skip
KEYWORDS = ("prefetch_factor", "persistent_workers", "pin_memory_device")
# As published: the arguments of each minor version's constructor. This folder's tests run on 2.13, and ran once on 2.4.1.
BY_VERSION = {
    **{f"2.{minor}": (POSITIONAL, KEYWORDS) for minor in (4, 5)},
    **{f"2.{minor}": (POSITIONAL, (*KEYWORDS, "in_order")) for minor in range(6, 15)},
}


def parameters(constructor: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = list(inspect.signature(constructor).parameters.values())[1:]
    positional = tuple(each.name for each in found if each.kind is each.POSITIONAL_OR_KEYWORD)
    return positional, tuple(each.name for each in found if each.kind is each.KEYWORD_ONLY)


@pytest.mark.parametrize("version", BY_VERSION)
def test_ours_takes_all_arguments_of_each_version(version: str) -> None:
    positional, keywords = BY_VERSION[version]
    ours, more = parameters(DataLoader.__init__)
    assert ours == positional
    assert set(keywords) <= set(more)


def test_the_table_is_right_about_this_torch() -> None:
    version = ".".join(torch.__version__.split(".")[:2])
    assert parameters(TorchLoader.__init__) == BY_VERSION[version]


def test_defaults_are_torchs() -> None:
    ours, torchs = (inspect.signature(kind.__init__).parameters for kind in (DataLoader, TorchLoader))
    for name, parameter in torchs.items():
        # None means torch's 0 over plain datasets, and a choice over packed sets.
        expected = None if name == "num_workers" else parameter.default
        assert ours[name].default == expected, name


class Numbered(Dataset[tuple[int, int, int]]):
    """Item, worker, and a draw of the worker's own."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return index, info.id, int(torch.randint(1 << 30, ()))


def seeded(worker: int) -> None:
    """Seed a worker by its number."""
    torch.manual_seed(worker + 50)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork after threads, which torch itself does
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method_are_torchs(start: str) -> None:
    def run(kind: Any, method: str) -> list[Any]:
        torch.manual_seed(11)
        workers = 2 if start == "fork" else 1  # a worker that is not forked takes seconds to import torch
        loader = kind(Numbered(), 2, True, num_workers=workers, worker_init_fn=seeded, multiprocessing_context=method, timeout=60)
        return [[part.tolist() for part in batch] for batch in loader]

    assert run(DataLoader, start) == run(TorchLoader, "fork")
