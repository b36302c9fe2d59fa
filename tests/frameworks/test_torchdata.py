"""torchdata's StatefulDataLoader beside ours over plain datasets: the same protocol, and the same batches after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from headway import DataLoader

from .ranks import needs

needs("torchdata")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.slow,
    pytest.mark.timeout(1300),
    pytest.mark.filterwarnings("ignore:'set_vital':UserWarning"),  # torchdata is older than torch here
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # fork after threads, which torch itself does
]


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """The numbers below 11, dealt to the workers."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        yield from range(11) if info is None else range(info.id, 11, info.num_workers)


class Stateful(Stream):
    """The same with a state of its own."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.at, 11):
            self.at = number + 1
            yield number
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def rest_and_next(kind: Any, dataset: Any, taken: int, **options: Any) -> tuple[Any, Any]:
    """Return what a new loader gives after a resume behind `taken` batches, and what the first one went on to give."""

    def make() -> Any:
        return kind(dataset(), batch_size=2, **options)

    torch.manual_seed(5)
    loader = make()
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = loader.state_dict()
    found = [batch.tolist() for batch in iterator]
    torch.manual_seed(77)
    resumed = make()
    resumed.load_state_dict(state)
    return [batch.tolist() for batch in resumed], found


# What workers' copies of a dataset keep is torchdata's to save; there ours passes over.
CASES: list[tuple[Any, bool | None, int]] = [(Numbers, shuffle, workers) for shuffle in (False, True) for workers in (0, 2)]
CASES += [(Stream, None, 0), (Stream, None, 2), (Stateful, None, 0)]


@pytest.mark.parametrize("taken", [0, 1, 3, 5])
@pytest.mark.parametrize(("dataset", "shuffle", "workers"), CASES)
def test_a_resume_gives_the_rest_as_torchdata_does(dataset: Any, shuffle: bool | None, workers: int, taken: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    ours, planned = rest_and_next(DataLoader, dataset, taken, num_workers=workers, shuffle=shuffle)
    theirs, expected = rest_and_next(StatefulDataLoader, dataset, taken, num_workers=workers, shuffle=shuffle)
    assert ours == planned
    assert theirs == expected
    if not shuffle:
        assert ours == theirs


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Numbers, Stream])
def test_a_state_behind_the_end_begins_the_next_epoch(dataset: Any, workers: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    epochs = []
    for kind in (DataLoader, StatefulDataLoader):
        loader: Any = kind(dataset(), batch_size=2, num_workers=workers)
        whole = [batch.tolist() for batch in loader]
        resumed: Any = kind(dataset(), batch_size=2, num_workers=workers)
        resumed.load_state_dict(loader.state_dict())
        epochs += [whole, [batch.tolist() for batch in resumed]]
    assert epochs[0] == epochs[1] == epochs[2] == epochs[3]


def test_the_protocol_is_torchdatas() -> None:
    from torchdata.stateful_dataloader import Stateful as Protocol

    assert isinstance(DataLoader([1, 2]), Protocol)
