"""A picture is right, or its job says why not: odd, cut, flipped and hostile files through the native kernel."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import DecodeError, kernel

from .native_jobs import IDENTITY, Affine, decode, jpeg, jpeg_with, levels, needs_core, picture, reference

pytestmark = needs_core

TARGET = kernel.Target(width=50, height=40, layout="hwc")
GOOD = jpeg(picture(40, 50))
PROGRESSIVE = jpeg_with(picture(40, 50), progressive=1)

# The odd files by what must come of them; all others decode in silence.
WARNED = {"missing_eoi.jpg", "junk_jpeg_header.jpg", "truncated_app14.jpg"}
REFUSED = {"empty.jpg", "png_named_jpg.jpg", "truncated_50pct.jpg", "monkey12.jpg", "truncated_jpeg.jpg"}


@pytest.mark.real
@pytest.mark.slow
def test_every_odd_file_is_right_or_flagged_or_refused(real_data: Path) -> None:
    files = sorted((real_data / "jpeg_odd").rglob("*.jpg"))
    assert {file.name for file in files} >= WARNED | REFUSED
    for file in files:
        data = file.read_bytes()
        _, step = decode([data], [[0.5, 0, 0], [0, 0.5, 0]], TARGET)
        expected = 1 if file.name in WARNED else 2 if file.name in REFUSED else 0
        assert step.status[0] == expected, (file.name, step.message(0))
        assert bool(step.message(0)) == (expected > 0), file.name
        if file.name in REFUSED | {"missing_eoi.jpg"}:  # OpenCV gives no picture for that one
            continue
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        assert decoded is not None
        height, width = decoded.shape[:2]
        found, _ = decode([data], IDENTITY, kernel.Target(width=width, height=height, layout="hwc"))
        # Four-channel files: OpenCV rounds its conversion otherwise than exact C * K / 255.
        assert np.abs(found[0].astype(int) - decoded[..., ::-1]).max() <= (2 if "cmyk" in file.name else 1), file.name


@pytest.mark.parametrize("data", [GOOD, PROGRESSIVE], ids=["baseline", "progressive"])
def test_no_cut_of_a_file_is_read_as_good(data: bytes) -> None:
    affines = (IDENTITY, [[1, 0, 0], [0, 1, 30]], [[0.5, 0, 0], [0, 0.5, 0]])
    for affine in affines:
        whole, _ = decode([data], affine, TARGET)
        out, step = decode([data[:end] for end in range(len(data))], affine, TARGET)
        for end, status in enumerate(step.status.tolist()):
            assert status in (kernel.Status.WARNING, kernel.Status.CORRUPT), end
            assert step.message(end), end
            if status == kernel.Status.WARNING:  # only the end marker is missing: the picture is whole
                assert np.array_equal(out[end], whole[0]), end
            else:
                assert not out[end].any(), end


def test_a_cut_below_the_region_is_still_an_error() -> None:
    """Only the top rows are asked for and all of them are there, but the file is not: the same answer as for the whole."""
    data = jpeg(picture(200, 200))
    _, step = decode([data[: len(data) // 2]], IDENTITY, kernel.Target(width=200, height=16))
    assert step.status[0] == kernel.Status.CORRUPT


def test_bytes_after_the_end_do_not_matter() -> None:
    tail = [b"\0" * 100, b"\xff" * 7, GOOD, GOOD[:300], b"\xd9"]
    out, step = decode([GOOD + extra for extra in tail], IDENTITY, TARGET)
    assert step.status.tolist() == [0] * len(tail)
    assert all(np.array_equal(image, out[0]) for image in out)


def test_a_bad_image_leaves_its_neighbours_alone() -> None:
    bad = [b"", b"<html>", GOOD[:200], GOOD[: len(GOOD) // 2], b"\xff\xd8\xff"]
    batch = [part for image in bad for part in (GOOD, image)] + [GOOD]
    out, step = decode(batch, IDENTITY, TARGET)
    expected = levels(GOOD, IDENTITY, 50, 40)
    for job, status in enumerate(step.status.tolist()):
        if job % 2:
            assert status == kernel.Status.CORRUPT
            assert step.message(job)
            assert not out[job].any()
        else:
            assert status == kernel.Status.OK
            assert np.array_equal(out[job], expected)
    with pytest.raises(DecodeError, match=r"job 1 of 11: corrupt, 0 bytes"):
        step.raise_first()


@given(
    flips=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 7)), min_size=1, max_size=6), progressive=st.booleans()
)
def test_flipped_bits_end_in_a_status(flips: list[tuple[int, int]], progressive: bool) -> None:
    data = bytearray(PROGRESSIVE if progressive else GOOD)
    for place, bit in flips:
        data[place % len(data)] ^= 1 << bit
    out, step = decode([bytes(data)], IDENTITY, TARGET)
    assert step.status[0] in (0, 1, 2, 3)
    assert bool(step.message(0)) == bool(step.status[0])
    if step.status[0] >= kernel.Status.CORRUPT:
        assert not out.any()


def _declared(data: bytes, height: int, width: int, frame: bytes = b"\xff\xc0") -> bytes:
    start = data.index(frame) + 5
    return data[:start] + struct.pack(">HH", height, width) + data[start + 4 :]


def test_limits_refuse_by_name() -> None:
    start = PROGRESSIVE.index(b"\xff\xda")
    scan = PROGRESSIVE[start : PROGRESSIVE.index(b"\xff\xc4", start)]  # the first: coarse levels, which may come again
    hundreds = PROGRESSIVE[:start] + scan * 1000 + PROGRESSIVE[start:]
    tall = jpeg(picture(400, 50))
    turned = [[0.8, 0.6, 0], [-0.6, 0.8, 20]]
    cases: list[tuple[bytes, Affine, dict[str, Any], str]] = [
        (_declared(GOOD, 65500, 65500), IDENTITY, {}, "65500 x 65500 pixels, allowed are 64000000"),
        (hundreds, IDENTITY, {}, "more than 100 scans"),
        (PROGRESSIVE, IDENTITY, {"max_bytes": 1000}, "multi-scan image of 50 x 40 needs"),
        (GOOD, turned, {"max_bytes": 1000}, "rotation needs more working memory"),
        (tall, IDENTITY, {"max_cpu_ms": 0}, "CPU time"),
    ]
    for data, affine, limits, said in cases:
        target = kernel.Target(width=50, height=400, layout="hwc", **limits)
        out, step = decode([data], affine, target)
        assert step.status[0] == kernel.Status.LIMIT, step.message(0)
        assert said in step.message(0)
        assert not out.any()


def test_a_pixel_bomb_within_the_limit_is_refused_before_it_takes_memory() -> None:
    for bomb in (_declared(GOOD, 8000, 8000), _declared(PROGRESSIVE, 8000, 8000, b"\xff\xc2")):
        _, step = decode([bomb], [[0.01, 0, 0], [0, 0.01, 0]], TARGET)
        assert step.status[0] == kernel.Status.CORRUPT
        assert "cannot hold 8000 x 8000 pixels" in step.message(0)


@given(
    cut=st.integers(0, len(GOOD)), flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 7)), max_size=3),
    x=st.integers(0, 40), y=st.integers(0, 30), scale=st.sampled_from([1.0, 0.5, 0.31]),
)  # fmt: skip
def test_both_entropy_decoders_agree(cut: int, flips: list[tuple[int, int]], x: int, y: int, scale: float) -> None:
    for whole in (GOOD, jpeg_with(picture(40, 50), rst_interval=1), jpeg(picture(40, 50), "444")):
        data = bytearray(whole if cut % 3 else whole[:cut])
        for place, bit in flips:
            if data:
                data[place % len(data)] ^= 1 << bit
        affine = [[scale, 0, -x], [0, scale, -y]]
        ours, first = decode([bytes(data)], affine, TARGET)
        theirs, second = decode([bytes(data)], affine, TARGET, flags=kernel.PLAIN_HUFFMAN)
        assert (first.status[0], first.message(0)) == (second.status[0], second.message(0))
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    "affine", [[[0, 0, 0], [0, 0, 0]], [[1, 1, 0], [1, 1, 0]], [[float("nan"), 0, 0], [0, 1, 0]], [[1e12, 0, 0], [0, 1, 0]]]
)
def test_an_affine_without_an_inverse_is_refused(affine: list[list[float]]) -> None:
    out, step = decode([GOOD], affine, TARGET)
    assert step.status[0] == kernel.Status.REQUEST
    assert "affine" in step.message(0)
    assert not out.any()


@pytest.mark.parametrize("scale", [1e-5, 0.001, 0.004])
def test_extreme_reduction_is_refused_or_right(scale: float) -> None:
    data = jpeg(np.full((600, 800, 3), 90, np.uint8))
    out, step = decode([data], [[scale, 0, 0], [0, scale, 0]], kernel.Target(width=4, height=4, pad=(90.0, 90.0, 90.0)))
    assert step.status[0] in (kernel.Status.OK, kernel.Status.REQUEST)
    if step.status[0] == kernel.Status.OK:
        assert np.abs(out.astype(int) - 90).max() <= 1


def test_bytes_that_do_not_match_their_hash_are_not_decoded() -> None:
    out = np.full((2, 40, 50, 3), 77, np.uint8)
    jobs = kernel.image_jobs(2)
    jobs["data"], jobs["length"] = kernel.addresses([GOOD, GOOD])
    jobs["hash"], jobs["flags"] = [kernel.xxh3_64(GOOD), kernel.xxh3_64(GOOD) ^ 1], kernel.CHECK_HASH
    jobs["out"], jobs["affine"] = out.ctypes.data + np.arange(2) * TARGET.image_bytes, IDENTITY
    step = kernel.submit([TARGET], jobs, keep=out)
    assert step.wait(30)
    assert step.status.tolist() == [kernel.Status.OK, kernel.Status.MISMATCH]
    assert "xxh3-64" in step.message(1)
    assert np.abs(out[0] - reference(GOOD)).max() <= 1
    assert not out[1].any()
