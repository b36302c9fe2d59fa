"""Checked copies into the batch, and the hash they are checked with."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import kernel

from .native_jobs import IDENTITY, jpeg, needs_core, picture, reference

pytestmark = needs_core


def test_the_hash_is_xxh3_64_at_every_length() -> None:
    data = np.random.default_rng(1).bytes(70_000)
    for length in [*range(600), 1023, 1024, 1025, 1087, 1088, 1089, 2048, 2049, 4096, 65_536, 70_000]:
        part = memoryview(data)[3 : 3 + length]
        assert kernel.xxh3_64(part) == xxhash.xxh3_64_intdigest(part), length


@given(sizes=st.lists(st.integers(0, 5000), max_size=30), room=st.integers(5000, 6000), fill=st.integers(0, 255))
def test_ragged_payloads_land_padded_in_their_places(sizes: list[int], room: int, fill: int) -> None:
    rng = np.random.default_rng(0)
    payloads = [rng.bytes(size) for size in sizes]
    out = np.full((len(sizes), room), 77, np.uint8)
    jobs = kernel.copy_jobs(len(sizes))
    jobs["source"], jobs["length"] = kernel.addresses(payloads)
    jobs["out"] = out.ctypes.data + np.arange(len(sizes), dtype=np.uint64) * np.uint64(room)
    jobs["room"], jobs["fill"], jobs["flags"] = room, fill, kernel.CHECK_HASH
    jobs["hash"] = [xxhash.xxh3_64_intdigest(payload) for payload in payloads]
    step = kernel.submit([], kernel.image_jobs(0), jobs, keep=(payloads, out))
    assert step.wait(30)
    assert step.status.tolist() == [0] * len(sizes)
    for payload, row in zip(payloads, out, strict=True):
        assert row.tobytes() == payload + bytes([fill]) * (room - len(payload))


def test_ragged_points_pack_end_to_end() -> None:
    """LiDAR's raw case: N sweeps of (n, 5) float32 into one [ΣN, 5]."""
    rng = np.random.default_rng(0)
    sweeps = [rng.random((count, 5), np.float32) for count in (3, 0, 40_000, 1, 35_000)]
    offsets = np.cumsum([0, *(len(sweep) for sweep in sweeps)])
    out = np.zeros((int(offsets[-1]), 5), np.float32)
    jobs = kernel.copy_jobs(len(sweeps))
    held = [sweep.tobytes() for sweep in sweeps]
    jobs["source"], jobs["length"] = kernel.addresses(held)
    jobs["room"], jobs["out"] = jobs["length"], out.ctypes.data + offsets[:-1].astype(np.uint64) * np.uint64(20)
    step = kernel.submit([], kernel.image_jobs(0), jobs, keep=(held, out))
    assert step.wait(30)
    assert np.array_equal(out, np.concatenate(sweeps))


@pytest.mark.parametrize(("length", "hash_off", "status"), [(100, 0, 0), (100, 1, 4), (101, 0, 5)])
def test_a_copy_that_is_wrong_leaves_zeros(length: int, hash_off: int, status: int) -> None:
    payload = b"x" * length
    out = np.full(110, 77, np.uint8)
    jobs = kernel.copy_jobs(1)
    jobs["source"], jobs["length"] = kernel.addresses([payload])
    jobs["out"], jobs["room"], jobs["flags"] = out.ctypes.data, 100, kernel.CHECK_HASH
    jobs["hash"] = xxhash.xxh3_64_intdigest(payload) ^ hash_off
    step = kernel.submit([], kernel.image_jobs(0), jobs, keep=(payload, out))
    assert step.wait(30)
    assert step.status.tolist() == [status]
    assert out[:100].tobytes() == (payload if status == 0 else bytes(100))
    assert (out[100:] == 77).all()


def test_images_and_copies_share_a_step() -> None:
    data, payload = jpeg(picture(40, 50)), b"radar" * 1000
    image, copied = np.zeros((40, 50, 3), np.uint8), np.zeros(5000, np.uint8)
    images, copies = kernel.image_jobs(1), kernel.copy_jobs(1)
    images["data"], images["length"] = kernel.addresses([data])
    images["out"], images["affine"] = image.ctypes.data, IDENTITY
    copies["source"], copies["length"] = kernel.addresses([payload])
    copies["out"], copies["room"] = copied.ctypes.data, 5000
    step = kernel.submit([kernel.Target(width=50, height=40, layout="hwc")], images, copies, keep=(data, payload, image, copied))
    assert step.wait(30)
    assert step.status.tolist() == [0, 0]
    assert np.abs(image - reference(data)).max() <= 1
    assert copied.tobytes() == payload
