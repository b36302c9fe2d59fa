"""The live side of the pace: what a consumer's steps and other ranks make of threads and batches ahead, by a clock told."""

from __future__ import annotations

from pathlib import Path

import pytest

import headway
from headway import DataLoader, Images, LoaderOptions, Pace
from headway.loader.arbiter import Seat
from headway.loader.pacer import Pacer

from .drives import JPEG

MIB = 1 << 20


def pacer_of(*, threads: int = 4, prefetch: int | None = None, pace: Pace | None = None, memory: int = 1 << 30) -> Pacer:
    return Pacer(pace or Pace(), threads=threads, is_chosen=True, prefetch=prefetch, memory_bytes=memory)


def drive(pacer: Pacer, steps: int, *, own_s: float, wait_s: float = 0.0, now_s: float = 0.0, ready: int = 2) -> float:
    """Let a consumer take `steps` batches and return the time after them."""
    for _ in range(steps):
        pacer.asked(now_s, ready)
        now_s += wait_s
        pacer.delivered(now_s, 10 * MIB)
        now_s += own_s
    return now_s


def test_as_many_batches_as_the_headway_takes() -> None:
    quick, slow, tight = pacer_of(), pacer_of(), pacer_of(memory=35 * MIB)
    drive(quick, 20, own_s=0.1)
    drive(slow, 20, own_s=1.5)
    drive(tight, 20, own_s=0.1)
    assert (quick.batches, slow.batches, tight.batches) == (4, 2, 2)
    assert quick.values()["batches_ahead"] == 4
    assert quick.values()["own_step_s"] == pytest.approx(0.1)


def test_what_the_user_gave_is_kept() -> None:
    given = pacer_of(prefetch=7, pace=Pace(governor=False))
    now = drive(given, 30, own_s=0.1)
    drive(given, 30, own_s=0.2, now_s=now)
    assert (given.batches, given.threads) == (7, 4)


def test_threads_that_slow_the_consumer_are_parked_and_come_back_when_it_waits() -> None:
    told: list[int] = []
    pacer = Pacer(Pace(), threads=4, is_chosen=True, prefetch=None, memory_bytes=1 << 30, resize=told.append)
    now = drive(pacer, 10, own_s=0.1)
    for _ in range(8):  # each thread beyond two costs a fifth of the step
        now = drive(pacer, 9, own_s=0.1 * (1 + 0.2 * max(0, pacer.threads - 2)), now_s=now)
    assert pacer.threads <= 2
    assert told[:2] == [3, 2]
    for _ in range(6):
        now = drive(pacer, 9, own_s=0.1, wait_s=0.05, now_s=now, ready=0)
    assert pacer.threads == 4


def test_the_next_epoch_begins_with_what_was_learnt() -> None:
    first, second = pacer_of(), pacer_of()
    now = drive(first, 10, own_s=0.1)
    for _ in range(8):
        now = drive(first, 9, own_s=0.1 * (1 + 0.2 * max(0, first.threads - 2)), now_s=now)
    second.learn_from(first)
    drive(second, 20, own_s=0.1, now_s=now)
    assert second.threads < 4
    assert second.batches == first.batches == 4


def test_a_late_rank_uses_what_a_full_one_leaves(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    late, full = (
        Pacer(
            Pace(),
            threads=2,
            is_chosen=True,
            prefetch=None,
            memory_bytes=1 << 30,
            seat=Seat(tmp_path / "ranks", local_rank=rank, local_size=2),
            node_threads=4,
        )
        for rank in range(2)
    )
    assert late.most_threads == 4
    now = 100.0
    for _ in range(20):
        full.asked(now, 4)
        full.delivered(now, 10 * MIB)
        late.asked(now, 0)
        now += 0.1
        late.delivered(now, 10 * MIB)
    assert (late.threads, full.threads) == (4, 1)  # a full one asks for none and keeps one
    for _ in range(20):
        full.asked(now, 0)
        late.asked(now, 0)
        now += 0.1
        full.delivered(now, 10 * MIB)
        late.delivered(now, 10 * MIB)
    assert (late.threads, full.threads) == (2, 2)
    late.close()
    full.close()
    assert not list(tmp_path.iterdir())


def test_current_values_are_in_the_stats(drives_set: Path) -> None:
    loader = DataLoader(
        headway.open(drives_set, images=Images("CAM_*", size=JPEG)), 2, options=LoaderOptions(pace=Pace(headway_s=5))
    )
    for _ in loader:
        stats = loader.stats()
        assert 1 <= stats["batches_ahead"] <= 4
        assert stats["decode_threads"] >= 1
