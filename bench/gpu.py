"""`headway bench gpu`: everything a GPU machine must show, in one command of some minutes.

Decode rates by camera size and batch, what region decode saves, copies to the device, the resampling and colour passes against
memory bandwidth, how much a training step slows down while batches arrive, and the tests marked `gpu`. With device "cpu" the same
code runs without a GPU, to prove that it runs: those rows say `rehearsal`, and are no figure of anything.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import simplejpeg
import torch

from ..formats import UsageError
from ..formats.integrity import payload_hash
from ..gpu_decode import choose_decoder
from ..gpu_decode.transfer import DeviceBatches
from ..loader.batch import Batch
from ..loader.decode import Decoder, DeviceDecoder, ImageJobs
from ..loader.images import Images
from .decode import usable_decoders
from .gpu_passes import measure_engines, measure_passes
from .result import Value

__all__ = ["SIZES", "as_markdown", "measure_gpu"]

Row = dict[str, Value]
SIZES = ((900, 1600), (1550, 2048), (1280, 1920))
"""Heights and widths of nuScenes', Argoverse 2's and Waymo's cameras."""
TARGET = (256, 704)


def measure_gpu(
    device: str, *, sizes: Sequence[tuple[int, int]] = SIZES, batches: Sequence[int] = (6, 24, 96), repeats: int = 5
) -> list[Row]:
    """Return all rows for `device`, "cuda" or, as a rehearsal, "cpu"."""
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("bench gpu: torch sees no CUDA device; --device cpu rehearses the bench without one")
    clock = _Clock(where)
    rows = [
        *_decoding(where, clock, sizes, batches, repeats),
        *_copies(where, clock, repeats),
        *measure_passes(where, partial(clock.best, repeats=repeats), source=sizes[0], target=TARGET),
        *measure_engines(where, partial(clock.best, repeats=repeats), _pictures(sizes[0]), batches=batches),
        *_overlap(where, clock, repeats),
    ]
    if where.type == "cuda":
        rows.append(_tests())
    else:
        for row in rows:
            row["rehearsal"] = True
    return rows


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the rows as one table a measurement."""
    lines: list[str] = []
    for what in dict.fromkeys(str(row["what"]) for row in rows):
        chosen = [row for row in rows if row["what"] == what]
        columns = [name for name in dict.fromkeys(name for row in chosen for name in row) if name != "what"]
        lines += [f"### {what}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(str(row.get(name, '')) for name in columns)} |" for row in chosen]
        lines.append("")
    return "\n".join(lines)


class _Clock:
    """Times work on a device; the best of several, the first left out."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def best(self, work: Callable[[], object], repeats: int) -> float:
        """Return seconds."""
        times = []
        for _ in range(repeats + 1):
            self.wait()
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return min(times[1:])

    def wait(self) -> None:
        """Wait for the device."""
        if self._cuda:
            torch.cuda.synchronize()


def _decoding(
    device: torch.device, clock: _Clock, sizes: Sequence[tuple[int, int]], batches: Sequence[int], repeats: int
) -> Iterator[Row]:
    decoders: dict[str, Decoder] = usable_decoders()
    if device.type == "cuda":
        decoders = {name: each for name, each in decoders.items() if not name.endswith("-cpu") or name == "dali-cpu"}
    for size in sizes:
        data = _pictures(size)
        # The whole picture shrunk, and a crop of a quarter of it: what region decode saves shows between them.
        whole, part = (np.array([[s, 0, x], [0, s, y]]) for s, x, y in _looks(size))
        for name, decoder in decoders.items():
            decoder.start(1)
            for batch in batches:
                for region, affine in (("full", whole), ("quarter", part)):
                    jobs = _jobs([data[at % len(data)] for at in range(batch)], affine)
                    wall = clock.best(partial(decoder.decode, jobs), repeats)
                    yield {
                        "what": "decode",
                        "decoder": name,
                        "size": f"{size[1]}x{size[0]}",
                        "region": region,
                        "batch": batch,
                        "images_per_s": round(batch / wall, 1),
                    }


def _copies(device: torch.device, clock: _Clock, repeats: int) -> Iterator[Row]:
    big = torch.zeros(256 << 20 if device.type == "cuda" else 16 << 20, dtype=torch.uint8)
    for pinned in (False, True) if device.type == "cuda" else (False,):
        host = big.pin_memory() if pinned else big
        wall = clock.best(partial(host.to, device, non_blocking=True, copy=True), repeats)
        yield {"what": "host to device", "pinned": pinned, "gb_per_s": round(big.nbytes / wall / 1e9, 2)}
    small = Batch({f"t{at}": torch.zeros(64) for at in range(528)})
    one_by_one = clock.best(lambda: small.to(device), repeats)
    packed = clock.best(lambda: list(DeviceBatches([small], device)), repeats)
    yield {
        "what": "528 small tensors",
        "one_by_one_ms": round(one_by_one * 1e3, 3),
        "packed_ms": round(packed * 1e3, 3),
        "ratio": round(one_by_one / packed, 2),
    }


def _overlap(device: torch.device, clock: _Clock, repeats: int) -> Iterator[Row]:
    """A bf16 training step alone, and while the next batch is decoded by a thread and on its way; the share of time waited."""
    on_gpu = device.type == "cuda"
    width, steps = (4096, 20) if on_gpu else (128, 3)
    layer = torch.nn.Linear(width, width, device=device, dtype=torch.bfloat16)
    still = torch.randn(width, width, device=device, dtype=torch.bfloat16)
    decoder = choose_decoder("auto", deliver=str(device))
    decoder.start(1)
    encoded = _pictures((900, 1600) if on_gpu else (180, 320))[0]
    jobs = _jobs([encoded] * (24 if on_gpu else 2), np.array([[0.44, 0, 0], [0, 0.44, 0]]))

    def step() -> None:
        for _ in range(8):
            layer(still).square().mean().backward()

    def alone() -> None:
        for _ in range(steps):
            step()

    def decoded() -> Batch:
        assert isinstance(decoder, DeviceDecoder)
        out = decoder.zeros(jobs.out.shape, "uint8")
        decoder.decode(replace(jobs, out=out, messages={}))
        return Batch(image=out, id=torch.zeros(1, dtype=torch.int64))

    def ahead(thread: ThreadPoolExecutor) -> Iterator[Batch]:
        coming = thread.submit(decoded)
        for _ in range(steps):
            batch = coming.result()
            coming = thread.submit(decoded)
            yield batch

    waited: list[float] = []

    def fed() -> None:
        waits = 0.0
        with ThreadPoolExecutor(1) as thread:
            batches = iter(DeviceBatches(ahead(thread), device))
            for _ in range(steps):
                started = time.perf_counter()
                next(batches)
                waits += time.perf_counter() - started
                step()
                clock.wait()
        waited.append(waits)

    without, with_batches = clock.best(alone, repeats), clock.best(fed, repeats)
    yield {
        "what": "overlap with a bf16 step",
        "step_ms": round(without / steps * 1e3, 3),
        "fed_ms": round(with_batches / steps * 1e3, 3),
        "inflation": round(with_batches / without - 1, 4),
        "decoder": decoder.name,
        "images_a_step": len(jobs.data),
        "stall_share": round(min(waited[1:]) / with_batches, 4),
    }


def _tests() -> Row:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu_decode"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[1],
        timeout=300,
        check=False,
    )
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    return {"what": "tests marked gpu", "passed": done.returncode == 0, "summary": last}


def _looks(size: tuple[int, int]) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    height, width = size
    whole, quarter = TARGET[1] / width, 2 * TARGET[1] / width
    return (whole, 0.0, float(TARGET[0] - whole * height)), (quarter, -TARGET[1] / 2, float(TARGET[0] - quarter * height))


def _pictures(size: tuple[int, int]) -> list[bytes]:
    """Return four JPEGs of camera-like entropy: a smooth field with grain."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[: size[0], : size[1]]
    made = []
    for phase in range(4):
        field = 128 + 80 * np.sin(x / (23 + phase))[..., None] * np.cos(y / (31 + phase))[..., None]
        picture = np.clip(field + rng.normal(scale=6, size=(*size, 3)), 0, 255).astype(np.uint8)
        made.append(bytes(simplejpeg.encode_jpeg(picture, quality=85, colorsubsampling="420")))
    return made


def _jobs(data: Sequence[bytes], affine: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> ImageJobs:
    return ImageJobs(
        data=[memoryview(each) for each in data],
        hashes=np.array([payload_hash(each) for each in data], np.uint64),
        codecs=["jpeg"] * len(data),
        affine=np.repeat(affine[None], len(data), 0),
        out=np.zeros((len(data), 3, *TARGET), np.uint8),
        index=np.arange(len(data)),
        look=Images("*", size=TARGET),
    )
