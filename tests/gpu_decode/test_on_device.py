"""A decoder that delivers to a device fills batches there: same order, shapes and pictures, one bad image alone, all counted.

The device is the CPU, where pictures can be compared, and torch's "meta", which holds no numbers: what ends there was on no host.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headway
from headway import DataLoader, Images, LoaderOptions
from headway.formats import DecodeError, UsageError
from headway.gpu_decode import capabilities, choose_decoder
from headway.gpu_decode.handover import Handover, store
from headway.gpu_decode.on_device import OnDevice
from headway.gpu_decode.transfer import DeviceBatches, pack
from headway.loader.batch import Batch
from headway.loader.decode import BROKEN, OK, Decoder, ImageJobs, PortableDecoder
from tests.formats.native_jobs import jpeg, picture
from tests.loader.drives import write_drives
from tests.loader.test_decode import jobs, png

LOOK = Images("CAM_*", size=(24, 32), dtype="float32", mean=(100, 110, 120), std=(50, 60, 70))
INNER = ("portable", "native", "dali-cpu", "nvimgcodec-cpu")


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three drives whose CAM_FRONT misses a frame each, and whose second image of CAM_BACK is no JPEG."""
    return write_drives(tmp_path_factory.mktemp("device") / "set", drives=3, frames=4, broken=1)


def batches(location: Path, decoder: Decoder, look: Images = LOOK, on_error: Any = "mask", **more: Any) -> list[Batch]:
    """Return all batches of an epoch; `more` are LoaderOptions."""
    opened = headway.open(location, images=[look])
    options = LoaderOptions(seed=3, on_error=on_error, **more)
    return list(DataLoader(opened, 4, shuffle=True, decoder=decoder, options=options, num_workers=1))


def inner(name: str) -> Decoder:
    found = next(each for each in capabilities() if each.name == name)
    if not found.usable:
        pytest.skip(f"{name}: {found.why}")
    return choose_decoder(name)


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_batches_on_a_device_are_the_hosts(drives: Path, name: str, dtype: Any) -> None:
    mean, std = ((0, 0, 0), (1, 1, 1)) if dtype == "uint8" else (LOOK.mean, LOOK.std)
    look = replace(LOOK, dtype=dtype, mean=mean, std=std)
    expected = batches(drives, inner(name), look)
    found = batches(drives, OnDevice(inner(name), "cpu"), look)
    assert len(found) == len(expected)
    masked = 0
    for one, other in zip(found, expected, strict=True):
        assert one["id"].tolist() == other["id"].tolist()
        assert one["valid"].tolist() == other["valid"].tolist()
        assert one["camera"]["image"].dtype == other["camera"]["image"].dtype
        assert torch.equal(one["camera"]["image"], other["camera"]["image"])
        assert torch.equal(one["camera"]["mask"], other["camera"]["mask"])
        assert (one["camera"]["image"][~one["camera"]["mask"]] == 0).all()
        masked += int((~one["valid"] & (one["id"] >= 0)).sum())
    assert masked == 1  # the bad image's sample, and no other


def test_pictures_for_a_device_take_no_host_memory(drives: Path) -> None:
    decoder = OnDevice(PortableDecoder(), "meta")
    # Less than one batch of pictures: what the host would need.
    (first, *_) = batches(drives, decoder, replace(LOOK, size=(480, 640)), memory_bytes=4 << 20)
    assert first["camera"]["image"].device.type == "meta"
    assert first["camera"]["image"].shape == (4, 1, 3, 3, 480, 640)
    assert first["LIDAR"]["points"].device.type == "cpu"


def test_a_bad_image_raises_with_its_name_as_on_the_host(drives: Path) -> None:
    with pytest.raises(DecodeError, match="CAM_BACK"):
        batches(drives, OnDevice(PortableDecoder(), "cpu"), on_error="raise")


class Device:
    """Stands for a GPU library: writes tensors, refuses what is marked, and counts through the same handover."""

    name, whole_step, writes_tensors = "fake", True, True

    def __init__(self, refuses: bytes = b"") -> None:
        self._handover, self._portable, self._refuses = Handover(PortableDecoder()), PortableDecoder(), refuses

    @property
    def counts(self) -> Any:  # Any: handover.Counts
        return self._handover.counts

    def start(self, threads: int) -> None:
        pass

    def decode(self, jobs: ImageJobs) -> np.ndarray[Any, np.dtype[np.int8]]:
        return self._handover.run(jobs, self._device)

    def _device(self, jobs: ImageJobs, chosen: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        done = np.zeros(len(chosen), np.bool_)
        for at, job in enumerate(chosen.tolist()):
            room = np.zeros((1, *jobs.out.shape[1:]), np.uint8)
            alone = replace(
                jobs,
                data=[jobs.data[job]],
                hashes=jobs.hashes[[job]],
                codecs=["jpeg"],
                affine=jobs.affine[[job]],
                out=room,
                index=np.zeros(1, np.int64),
                messages={},
            )
            if bytes(jobs.data[job]) != self._refuses and self._portable.decode(alone)[0] < BROKEN:
                store(jobs, job, torch.from_numpy(room[0]))
                done[at] = True
        return done


def test_odd_refused_and_bad_images_share_a_batch_on_the_device() -> None:
    good, refused = jpeg(picture(24, 32)), jpeg(picture(24, 32, 1))
    bad = good[: len(good) // 2]
    device = Device(refuses=refused)
    decoder = OnDevice(device, "cpu")
    work = jobs([good, refused, bad, good], Images("*", size=(24, 32)))
    work.data = [*work.data, memoryview(png(picture(24, 32, 2)))]
    host = jobs([good, refused, bad, good, jpeg(picture(24, 32, 2))], Images("*", size=(24, 32)))
    host.data = [*host.data[:4], work.data[4]]
    for each in (host, work):
        each.codecs, each.affine = ["jpeg"] * 4 + ["png"], host.affine
        each.hashes = np.array([headway.formats.integrity.payload_hash(data) for data in host.data], np.uint64)
        each.index, each.out = np.array([8, 6, 4, 2, 0]), np.zeros((10, 3, 24, 32), np.uint8)
    work.out = decoder.zeros((10, 3, 24, 32), "uint8")
    status, expected = decoder.decode(work), PortableDecoder().decode(host)
    assert (status >= BROKEN).tolist() == (expected >= BROKEN).tolist() == [False, False, True, False, False]
    assert work.messages[2]
    assert torch.equal(torch.as_tensor(work.out), torch.from_numpy(host.out))
    assert (device.counts.device, device.counts.odd, device.counts.refused) == (2, 2, 1)


def test_frames_that_are_pixels_already_reach_the_device() -> None:
    frame = picture(24, 32)
    work = jobs([jpeg(frame)], Images("*", size=(24, 32)))
    work.data, work.codecs, work.hashes = [frame.data], ["pixels"], np.zeros(1, np.uint64)
    decoder = OnDevice(Device(), "cpu")
    work.index, work.out = np.zeros(1, np.int64), decoder.zeros((1, 3, 24, 32), "uint8")
    assert decoder.decode(work).tolist() == [OK]
    assert torch.equal(torch.as_tensor(work.out)[0].permute(1, 2, 0), torch.from_numpy(frame))


def test_batches_with_a_part_on_the_device_are_moved_as_they_are(drives: Path) -> None:
    (first, *_) = batches(drives, OnDevice(PortableDecoder(), "meta"))
    assert pack(first).tree["camera"]["image"] is first["camera"]["image"]
    (moved,) = DeviceBatches([first], "cpu")
    assert moved["camera"]["image"].device.type == "meta"
    assert torch.equal(moved["id"], first["id"])


def test_a_device_stays_in_its_process() -> None:
    with pytest.raises(UsageError, match="belongs to the process that trains"):
        pickle.dumps(OnDevice(PortableDecoder(), "cpu"))


def test_choosing_says_where_pictures_go() -> None:
    assert choose_decoder("portable", deliver="cpu").name == "portable on cpu"


@pytest.fixture
def on_gpu() -> Decoder:
    """The best decoder of a GPU, its pictures left there."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    decoder = choose_decoder("auto", deliver="cuda")
    decoder.start(1)
    return decoder


@pytest.mark.gpu
def test_memory_that_queued_kernels_read_is_not_decoded_into(on_gpu: OnDevice) -> None:
    """pytorch/vision#9606: a decoder on its own stream wrote to memory that kernels in the queue were still to read."""
    look = Images("*", size=(256, 704))
    work = jobs([jpeg(picture(900, 1600))] * 8, look)
    shape = (16, 3, 256, 704)
    totals = []
    for _ in range(20):
        held = on_gpu.zeros(shape, "uint8")
        held.fill_(1)
        # Clock cycles: the sum below is still in the queue when its memory is free.
        torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        totals.append(held.sum(dtype=torch.int64))
        del held
        work.out = on_gpu.zeros(shape, "uint8")
        assert (on_gpu.decode(work) < BROKEN).all()
    assert {int(total) for total in totals} == {16 * 3 * 256 * 704}


@pytest.mark.gpu
@pytest.mark.full
def test_twenty_thousand_decodes_leak_no_device_memory(on_gpu: OnDevice) -> None:
    """pytorch/vision#4378: decoding on the GPU leaked until it was out of memory."""
    work = jobs([jpeg(picture(450, 800, seed)) for seed in range(20)], Images("*", size=(128, 352)))
    work.out = on_gpu.zeros((40, 3, 128, 352), "uint8")
    free = []
    for lap in range(1000):
        assert (on_gpu.decode(work) < BROKEN).all()
        if lap >= 200:
            free.append(torch.cuda.mem_get_info()[0])
    assert free[0] - free[-1] < 16 << 20  # 16,000 decodes at 1 MiB a thousand
