"""Leases: memory comes back when, and only when, nothing can see it any more."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.formats import StalledError, UsageError
from headway.loader.buffers import BufferPool, block_bytes

MIB = 1 << 20


def lease(pool: BufferPool, *sizes: int, timeout_s: float = 0.05) -> list[np.ndarray]:
    return pool.lease(sizes, what="a test", timeout_s=timeout_s)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_dropped_block_is_used_again() -> None:
    pool = BufferPool(4 * MIB)
    (first,) = lease(pool, MIB)
    place = address(first)
    del first
    (second,) = lease(pool, MIB)
    assert address(second) == place
    assert pool.held_bytes == block_bytes(MIB)


@pytest.mark.parametrize("view", ["slice", "tensor", "storage", "dlpack", "memoryview"])
def test_any_view_keeps_the_block(view: str) -> None:
    pool = BufferPool(MIB)
    (array,) = lease(pool, 900_000)
    array[:] = 7
    kept: object
    if view == "slice":
        kept = array[10:20][::2]
    elif view == "tensor":
        kept = torch.from_numpy(array)[5:6].view(torch.int8)
    elif view == "storage":
        kept = torch.from_numpy(array).untyped_storage()
    elif view == "dlpack":
        kept = torch.utils.dlpack.from_dlpack(torch.from_numpy(array)[3:])
    else:
        kept = array.data[1:3]
    del array
    with pytest.raises(StalledError, match="still holds"):
        lease(pool, 900_000)
    del kept
    assert len(lease(pool, 900_000)) == 1


def test_a_request_is_granted_whole_or_not_at_all() -> None:
    pool = BufferPool(3 * MIB)
    (held,) = lease(pool, MIB)
    with pytest.raises(StalledError):
        lease(pool, MIB, 2 * MIB)
    assert pool.leased_bytes == block_bytes(len(held))


def test_more_than_the_budget_is_refused_with_the_need() -> None:
    with pytest.raises(UsageError, match=r"3\.0 MiB.*2\.0 MiB"):
        lease(BufferPool(2 * MIB), 3 * MIB)


def test_idle_blocks_of_other_sizes_make_room() -> None:
    pool = BufferPool(4 * MIB)
    small = lease(pool, *[MIB] * 4)
    del small
    assert len(lease(pool, 4 * MIB)[0]) == 4 * MIB
    assert pool.held_bytes <= 4 * MIB


def test_a_waiting_lease_gets_what_another_thread_drops() -> None:
    pool = BufferPool(MIB)
    held = lease(pool, MIB)
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(len(lease(pool, MIB, timeout_s=30))))
    waiter.start()
    held.clear()
    waiter.join(30)
    assert got == [1]


def test_a_cancelled_wait_gives_nothing() -> None:
    pool = BufferPool(MIB)
    held = lease(pool, MIB)
    assert pool.lease([MIB], what="a test", timeout_s=None, cancelled=lambda: True) == []
    del held


def test_trim_gives_idle_memory_back() -> None:
    pool = BufferPool(2 * MIB)
    kept, _ = lease(pool, MIB, MIB // 2)
    del _
    pool.trim()
    assert pool.held_bytes == block_bytes(len(kept))


@given(st.integers(1, 1 << 40))
def test_blocks_fit_and_waste_little(size: int) -> None:
    block = block_bytes(size)
    assert block >= size
    assert block <= max(size * 1.13 + 4096, 1 << 16)
    assert block % 4096 == 0


@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(70_000, 200_000), st.booleans()), min_size=1, max_size=12))
def test_no_two_live_leases_overlap(requests: list[tuple[int, bool]]) -> None:
    pool = BufferPool(64 * MIB)
    held: list[tuple[int, torch.Tensor]] = []
    for number, (size, drop) in enumerate(requests):
        (array,) = lease(pool, size)
        array[:] = number % 251
        held.append((number % 251, torch.from_numpy(array)))
        if drop:
            held.pop(0)
        assert all(bool((tensor == value).all()) for value, tensor in held)
    assert pool.held_bytes <= pool.budget_bytes
