"""Threads shared by what is iterated at the same time in one process; the node's ranks share by `decode_threads`."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import headway
from headway import DataLoader, Images
from headway.loader import cores
from headway.loader.cores import Claim, decode_threads
from headway.loader.decode import ImageJobs, PortableDecoder

from .drives import JPEG


def test_live_claims_share_and_give_back() -> None:
    first = Claim(8)
    assert first.allowed() == 8
    second, third = Claim(8), Claim(8)
    assert [claim.allowed() for claim in (first, second, third)] == [3, 3, 2]
    second.end()
    second.end()
    assert [first.allowed(), third.allowed()] == [4, 4]
    third.end()
    assert first.allowed() == 8
    first.end()


def test_more_claims_than_threads_leave_one_each() -> None:
    claims = [Claim(2) for _ in range(5)]
    assert sum(claim.allowed() for claim in claims) == 5
    for claim in claims:
        claim.end()


@pytest.mark.parametrize(("ranks", "machine", "threads"), [(1, 2, 2), (8, 64, 7), (4, 8, 2), (16, 8, 1), (1, 1, 1)])
def test_ranks_of_a_node_never_take_more_than_it_has(ranks: int, machine: int, threads: int) -> None:
    assert decode_threads(ranks, machine) == threads
    assert threads * ranks <= max(ranks, machine)


class Counting(PortableDecoder):
    """Knows how many threads were decoding at once what they began while it was counting."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.now, self.most, self.is_counting = threading.Lock(), 0, 0, False

    def decode(self, jobs: ImageJobs) -> NDArray[np.int8]:
        if not self.is_counting:
            return super().decode(jobs)
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            return super().decode(jobs)
        finally:
            with self.lock:
                self.now -= 1


def test_training_and_validation_together_use_the_threads_of_one(drives_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.loader.packed_loading.decode_threads", lambda local_size: 4)
    decoder = Counting()
    dataset = headway.open(drives_set, images=Images("CAM_*", size=JPEG))
    train, validation = (DataLoader(dataset, 2, decoder=decoder) for _ in range(2))
    one, other = iter(train), iter(validation)
    decoder.is_counting = True  # the first may have had all before the second began
    for _ in zip(one, other, strict=True):
        assert len(cores._claims) <= 2
    assert 0 < decoder.most <= 4
    assert not cores._claims


def test_a_loop_that_is_broken_out_of_gives_its_threads_back(drives_set: Path) -> None:
    dataset = headway.open(drives_set, images=Images("CAM_*", size=JPEG))
    for _ in DataLoader(dataset, 2):
        assert len(cores._claims) == 1
        break
    assert not cores._claims
