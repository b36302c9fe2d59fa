"""A batch arrives as it was sent: packed or not, in order, one ahead, on the CPU here and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from headway.formats import UsageError
from headway.gpu_decode.transfer import DeviceBatches, pack, unpack
from headway.loader.batch import Batch
from tests.gpu_decode.scenes import scene


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.cpu().nan_to_num(), other.cpu().nan_to_num())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


@pytest.mark.parametrize("small_bytes", [0, 200, 1 << 30])
def test_packing_changes_nothing(small_bytes: int) -> None:
    batch = Batch(scene(), empty=torch.zeros(0, 3), flag=torch.tensor(True), half=torch.ones(3, dtype=torch.bfloat16))
    packed = pack(batch, small_bytes=small_bytes)
    assert same(unpack(packed), batch)
    assert (packed.small.numel() == 0) == (small_bytes == 0)


def test_small_tensors_travel_as_one_and_big_ones_as_they_are() -> None:
    batch = scene()
    image = batch["camera"]["image"]
    packed = pack(batch, small_bytes=image.nbytes)
    assert packed.tree["camera"]["image"] is image
    whole = unpack(packed)
    assert whole["id"].untyped_storage().data_ptr() == whole["boxes"]["centre"].untyped_storage().data_ptr()


def test_tensors_that_are_no_run_of_memory_are_packed_by_value() -> None:
    batch = Batch(turned=torch.arange(12.0).reshape(3, 4).T, spread=torch.ones(1, 1).expand(5, 5))
    assert same(unpack(pack(batch)), batch)


class Source:
    """Counts how many batches were asked for."""

    def __init__(self, count: int) -> None:
        self.count, self.asked = count, 0

    def __iter__(self) -> Iterator[Batch]:
        for at in range(self.count):
            self.asked += 1
            yield Batch(id=torch.tensor([at]), image=torch.full((1000,), at))


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_batches_come_in_order_and_no_further_ahead_than_asked(ahead: int) -> None:
    source = Source(6)
    for at, batch in enumerate(DeviceBatches(source, "cpu", ahead=ahead)):
        assert int(batch["id"]) == at
        assert source.asked <= at + 1 + ahead
    assert source.asked == 6


def test_bytes_bound_what_is_ahead() -> None:
    source = Source(5)
    batches = iter(DeviceBatches(source, "cpu", ahead=4, bytes_ahead=10_000))
    next(batches)
    assert source.asked == 2  # 8 kB each: the second passes the bound, and one is always sent
    assert len(list(batches)) == 4


def test_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(UsageError, match="no such device"):
        list(DeviceBatches([scene()], "xpu"))
    with pytest.raises(UsageError, match="ahead"):
        DeviceBatches([], "cpu", ahead=-1)


@pytest.mark.gpu
def test_batches_arrive_whole_on_a_gpu_while_kernels_queue() -> None:
    """Copies are ordered before their use by events, and memory is not reused while a queued kernel reads it."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    heavy = torch.randn(2048, 2048, device="cuda")
    sums = []
    for batch in DeviceBatches((Batch(image=torch.full((1 << 20,), at)) for at in range(50)), "cuda", ahead=2):
        for _ in range(4):
            heavy = heavy @ heavy / 2048
        sums.append(batch["image"].sum())
        del batch
    assert [int(each) for each in sums] == [at << 20 for at in range(50)]
