"""Over datasets that are not ours the loader is torch's: same outputs, lengths, errors and order, for a table of both."""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from headway import DataLoader, LoaderOptions, StateError, UsageError

Pair = namedtuple("Pair", "left right")


class Mapped(Dataset[Any]):
    """Item i is whatever `make` makes of it."""

    def __init__(self, make: Callable[[int], Any], length: int = 11) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Streamed(IterableDataset[int]):
    def __init__(self, length: int, *, sized: bool) -> None:
        self.length = length
        if sized:
            self.__class__ = SizedStream

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class SizedStream(Streamed):
    def __len__(self) -> int:
        return self.length


def failing(index: int) -> int:
    if index == 5:
        raise LookupError("item 5 is bad")
    return index


def doubled(items: list[Any]) -> list[Any]:
    return [item * 2 for item in items]


def uncollated(items: list[Any]) -> Any:
    if len(items) == 4:
        raise KeyError("these do not go together")
    return items


def no_worker(number: int) -> None:
    raise OSError(f"worker {number} finds no disk")


DATASETS: dict[str, Callable[[], Any]] = {
    "ints": lambda: Mapped(int),
    "list": lambda: list(range(9)),
    "tensors": lambda: TensorDataset(torch.arange(12).reshape(6, 2), torch.ones(6)),
    "numpy scalars": lambda: Mapped(np.float32),
    "arrays": lambda: Mapped(lambda index: np.full((2, 3), index)),
    "strings": lambda: Mapped(str),
    "bytes": lambda: Mapped(lambda index: bytes([index])),
    "nested": lambda: Mapped(lambda index: {"a": [index, (index, torch.tensor([index]))], "b": {"c": float(index)}}),
    "namedtuples": lambda: Mapped(lambda index: Pair(index, str(index))),
    "ragged": lambda: Mapped(lambda index: torch.zeros(index)),
    "sparse": lambda: Mapped(lambda index: torch.eye(2).mul(index).to_sparse()),
    "tuples of bools": lambda: Mapped(lambda index: (index % 2 == 0, float(index))),
    "none": lambda: Mapped(lambda index: None),
    "failing": lambda: Mapped(failing),
    "empty": lambda: Mapped(int, 0),
    "stream": lambda: Streamed(7, sized=False),
    "sized stream": lambda: Streamed(7, sized=True),
    "empty stream": lambda: Streamed(0, sized=True),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "batched": {"batch_size": 4},
    "dropped": {"batch_size": 4, "drop_last": True},
    "no batch": {"batch_size": None},
    "shuffled": {"batch_size": 3, "shuffle": True},
    "generator": {"batch_size": 3, "shuffle": True, "generator": 5},
    "sampler": {"batch_size": 2, "sampler": [3, 1, 2]},
    "batch sampler": {"batch_sampler": [[0, 1], [4], [2, 3]]},
    "collate": {"batch_size": 2, "collate_fn": doubled},
    "bad collate": {"batch_size": 4, "collate_fn": uncollated},
    "zero batch": {"batch_size": 0},
    "both": {"shuffle": True, "sampler": [1, 2]},
    "no drop": {"batch_size": None, "drop_last": True},
    "negative": {"num_workers": -1},
    "timeout": {"timeout": -1},
    "prefetch": {"prefetch_factor": 2},
    "persistent": {"persistent_workers": True},
    "context": {"multiprocessing_context": "spawn"},
}


def outcome(loader_class: Any, dataset: str, options: dict[str, Any]) -> Any:
    """Return everything a user can see of one loader: lengths, batches of two epochs, or the error."""
    arguments = dict(options)
    if "generator" in arguments:
        arguments["generator"] = torch.Generator().manual_seed(arguments["generator"])
    torch.manual_seed(11)
    seen: list[Any] = []
    try:
        loader = loader_class(DATASETS[dataset](), **arguments)
        try:
            seen.append(len(loader))
        except Exception as error:
            seen.append(described(error))
        for _ in range(2):
            seen.append([flat(batch) for batch in loader])
    except Exception as error:
        seen.append(described(error))
    return seen


def described(error: Exception) -> tuple[str, str]:
    return type(error).__name__, str(error)


def flat(value: Any) -> Any:
    """Return a value that compares: tensors and arrays as dtype, shape and numbers."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), tuple(value.shape), value.to_dense().tolist())
    if isinstance(value, np.ndarray | np.generic):
        return ("numpy", str(value.dtype), value.shape, value.tolist())
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (type(value).__name__, [flat(item) for item in value])
    return (type(value).__name__, value)


@pytest.mark.parametrize(("dataset", "options"), list(itertools.product(DATASETS, OPTIONS)))
def test_it_does_what_torch_does(dataset: str, options: str) -> None:
    assert outcome(DataLoader, dataset, OPTIONS[options]) == outcome(TorchLoader, dataset, OPTIONS[options])


def with_workers(loader_class: Any, dataset: Any, **options: Any) -> list[Any]:
    torch.manual_seed(11)
    return [flat(batch) for batch in loader_class(dataset, batch_size=3, num_workers=2, **options)]


def worker_numbers(index: int) -> tuple[int, int]:
    info = torch.utils.data.get_worker_info()
    return (index, -1 if info is None else info.seed % 1000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork after threads, which torch itself does
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"persistent_workers": True, "prefetch_factor": 1}])
def test_workers_are_torchs(options: dict[str, Any]) -> None:
    dataset = Mapped(worker_numbers)
    assert with_workers(DataLoader, dataset, **options) == with_workers(TorchLoader, dataset, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_an_error_in_a_worker_keeps_its_traceback() -> None:
    iterator = iter(DataLoader(Mapped(failing), batch_size=3, num_workers=1))
    assert next(iterator).tolist() == [0, 1, 2]
    with pytest.raises(LookupError, match=r"in failing[\s\S]*item 5 is bad"):
        next(iterator)
    # Read to its end: torch's workers take seconds to be reaped after an error that nobody went on from.
    assert [batch.tolist() for batch in iterator] == [[6, 7, 8], [9, 10]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(("options", "kind"), [({"worker_init_fn": no_worker}, OSError), ({"collate_fn": uncollated}, KeyError)])
def test_errors_of_users_functions_in_workers_are_torchs(options: dict[str, Any], kind: type[Exception]) -> None:
    said = []
    for loader_class in (DataLoader, TorchLoader):
        with pytest.raises(kind) as caught:
            list(loader_class(Mapped(int), 4, num_workers=1, **options))
        lines = str(caught.value).splitlines()
        said.append((lines[0], lines[-1]))
    assert said[0] == said[1]


def test_an_interrupted_iterator_goes_on_as_torchs_does() -> None:
    rests = []
    for loader_class in (DataLoader, TorchLoader):
        waiting = iter([KeyboardInterrupt()])

        def interrupted(index: int, waiting: Iterator[KeyboardInterrupt] = waiting) -> int:
            if index == 3 and (interrupt := next(waiting, None)) is not None:
                raise interrupt
            return index

        iterator = iter(loader_class(Mapped(interrupted, 8), 2))
        next(iterator)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        rests.append([batch.tolist() for batch in iterator])
    assert rests[0] == rests[1] == [[4, 5], [6, 7]]


@pytest.mark.parametrize("options", [{"options": LoaderOptions(seed=5)}, {"decoder": object()}])
def test_our_own_options_are_refused_there(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="packed sets"):
        DataLoader([1, 2], **options)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("delivered", [0, 1, 3, 5])
def test_a_plain_loader_resumes_after_what_was_delivered(shuffle: bool, delivered: int) -> None:
    torch.manual_seed(4)
    loader = DataLoader(Mapped(int), batch_size=2, shuffle=shuffle)
    iterator = iter(loader)
    for _ in range(delivered):
        next(iterator)
    state = loader.state_dict()
    rest = [flat(batch) for batch in iterator]
    torch.manual_seed(99)
    again = DataLoader(Mapped(int), batch_size=2, shuffle=shuffle)
    again.load_state_dict(state)
    assert again.state_dict()["delivered"] == delivered
    assert [flat(batch) for batch in again] == rest


def test_a_stream_resumes_by_passing_over() -> None:
    loader = DataLoader(Streamed(7, sized=False), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    again = DataLoader(Streamed(7, sized=False), batch_size=2)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [[2, 3], [4, 5], [6]]


def test_a_plain_loader_refuses_states_of_packed_sets() -> None:
    with pytest.raises(StateError, match="headway-plain"):
        DataLoader([1]).load_state_dict({"format": 0, "view": "x"})


def test_set_epoch_reaches_a_distributed_sampler() -> None:
    sampler: Any = torch.utils.data.DistributedSampler(Mapped(int, 8), num_replicas=2, rank=0)
    DataLoader(Mapped(int, 8), sampler=sampler).set_epoch(3)
    assert sampler.epoch == 3
