"""What would shorten the waits of a run, what each would gain, and what it takes: the cheapest first.

A gain is the job's loss with the waits as they would have been. Where a rank waited in most steps its loader is too slow: the
time its loader takes a step is the consumer's time plus the wait, and a remedy makes that shorter by a stated factor. Where it
waited now and then, the loader is fast enough on average, and input that lies ready longer ahead bridges the gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ._blame import Blame
from ._waits import RunWaits

__all__ = ["NOTHING", "RESOURCES", "Remedy", "find_remedies", "resource_of"]

Effort = Literal["option", "code", "repack", "machine"]
EFFORTS: Final[tuple[Effort, ...]] = ("option", "code", "repack", "machine")
NOTHING: Final = 0.01
"""Below this share of the job's GPU time, waits are not worth anybody's."""
RESOURCES: Final = (
    "processor",
    "memory",
    "store latency",
    "store bandwidth",
    "store",
    "disk",
    "user code",
    "device copies",
    "start-up",
)
_MOSTLY: Final = 0.5  # of the steps
_WAITED: Final = 0.02  # of a step: less is handing over
_HALF_SIZE: Final = 0.65  # of the time to decode: real 1600×900 images to 256×704 take 0.64 × when packed at half size
_RAW_POINTS: Final = 0.2  # of the time to decompress: `headway bench points`, a real sweep, 564 against 91 MB/s
_ON_CORES: Final = ("plan", "decompress", "decode", "assemble")
_BRIDGED: Final = (*_ON_CORES, "store", "transform", "disk", "transfer")
_WORTH: Final = 0.2  # of what the best remedy gains: what gains less is not offered as the cheapest

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing to change."""

    action: str
    effort: Effort
    """option: of the loader; code: yours; repack: the set, once; machine: other hardware, or somebody who runs it."""
    stage: str
    gain_gpu_s: float
    """Predicted, of what was lost over the steps looked at."""
    stall_share_after: float


def resource_of(run: RunWaits, rank: int, stage: str) -> str:
    """Return what ran out, by stage and what the rank (by place among `run.ranks`) says of its store."""
    if stage == "store":
        now = _now(run, rank)
        first, whole = now.get("store_first_byte_s", 0.0), now.get("store_answer_s", 0.0)
        if first <= 0 or whole <= 0:
            return "store"
        return "store latency" if first >= whole / 2 else "store bandwidth"
    return {
        "memory": "memory",
        "disk": "disk",
        "transform": "user code",
        "transfer": "device copies",
        "start": "start-up",
        "end": "start-up",
    }.get(stage, "processor")


def find_remedies(run: RunWaits, blame: Blame) -> list[Remedy]:
    """Return the remedies that gain something, the cheapest that is worth it first; empty where nothing needs one."""
    capacity = float(run.wall.max()) * len(run.ranks)
    if not capacity or blame.lost_gpu_s < NOTHING * capacity:
        return []
    found = []
    for stage in {each.stage for each in blame.culprits}:
        lost = blame.of_stage(run, stage)
        if float(lost.sum()) < NOTHING / 2 * capacity:
            continue
        worst = int(lost.sum(axis=1).argmax())
        for action, effort, gain in _for_stage(run, blame, stage, worst, lost):
            after = max(0.0, (blame.lost_gpu_s - gain) / max(capacity - gain, 1e-9))
            if gain > 0:
                found.append(Remedy(action, effort, stage, gain, after))
    best = max((each.gain_gpu_s for each in found), default=0.0)
    return sorted(
        found, key=lambda each: (each.gain_gpu_s < _WORTH * best, EFFORTS.index(each.effort), -each.gain_gpu_s, each.action)
    )


def _for_stage(run: RunWaits, blame: Blame, stage: str, worst: int, lost: Seconds) -> Iterator[tuple[str, Effort, float]]:
    """Yield (action, effort, GPU-seconds gained) for what was lost, (R, S), in one stage, mostly by the rank `worst`."""
    whole = float(lost.sum())
    if stage in _BRIDGED and not _is_steady(run, worst):
        longest = float(run.waits[stage][worst].max())
        ready = f"LoaderOptions(pace=Pace(headway_s={longest + 2:.1f})), with memory_bytes for it"
        yield f"hold more input ready, as the loader is quick enough but now and then: {ready}", "option", whole
    elif stage in _ON_CORES:
        yield from _for_cores(run, stage, worst, lost)
    if stage == "transform":
        now = _now(run, worst)
        processes = int(now.get("feeder_processes", 0))
        workers = processes or max(1, int(now.get("decode_threads", 1)))
        more = max(1, min(_free_cores(run, worst), workers))
        text = f"run the transform in more processes: Transforms(processes={workers + more}) (now {processes})"
        yield text, "option", _faster(run, lost, workers / (workers + more))
        yield "make the transform twice as quick (Telemetry(trace_steps=…) shows each call)", "code", _faster(run, lost, 0.5)
    elif stage == "store":
        yield from _for_store(run, blame, worst, lost)
    elif stage == "memory":
        budget = int(_now(run, worst).get("memory_bytes", 0))
        doubled = f"LoaderOptions(memory_bytes={2 * budget}) (now {budget})" if budget else "LoaderOptions(memory_bytes=…)"
        yield f"let the loader hold more: {doubled}", "option", whole
        yield "hold fewer batches and views of them: what your program keeps is batch memory", "code", whole
    elif stage == "disk":
        yield "put the set on a quicker disk, or where memory holds its pages, read it once beforehand", "machine", whole
    elif stage == "transfer":
        yield "do without pin_memory=True, or let headway.gpu_decode copy", "option", whole
    elif stage == "handover":
        yield "leave the trainer a core (num_workers): batches lay ready, and were handed over late", "option", whole / 2
    elif stage in ("start", "end"):
        yield "start less often, or without processes: longer epochs, Transforms(processes=0)", "option", whole / 2


def _for_cores(run: RunWaits, stage: str, worst: int, lost: Seconds) -> Iterator[tuple[str, Effort, float]]:
    threads, free = int(_now(run, worst).get("decode_threads", 0)), _free_cores(run, worst)
    if free and threads:
        more = f"num_workers={threads + free} (now {threads})"
        yield f"let free cores of the node decode: {more}", "option", _faster(run, lost, threads / (threads + free))
    if stage == "decode":
        smaller = "pack images nearer to the size that training takes: pack-dataset … --camera-scale 0.5"
        yield smaller, "repack", _faster(run, lost, _HALF_SIZE)
        yield "decode on the GPU: headway.gpu_decode (headway doctor lists decoders)", "machine", float(lost.sum())
    elif stage == "decompress":
        raw = "pack points as they are, which takes twice the room: PackOptions(points_codec='points-raw')"
        yield raw, "repack", _faster(run, lost, _RAW_POINTS)


def _for_store(run: RunWaits, blame: Blame, worst: int, lost: Seconds) -> Iterator[tuple[str, Effort, float]]:
    now, whole = _now(run, worst), float(lost.sum())
    if _is_steady(run, worst) and resource_of(run, worst, "store") != "store bandwidth":
        allowed = int(now.get("requests_in_flight", 0))
        most = f"Pace(requests={2 * allowed}) (now {allowed})" if allowed else "Pace(requests=…)"
        yield f"ask the store for more at once: {most}", "option", _faster(run, lost, 0.5)
    if now.get("cache_misses", 0.0) > now.get("cache_hits", 0.0):
        held = "let the node cache hold the set, which pays from the second epoch on: CacheOptions(limit_bytes=…)"
        yield held, "option", whole / 2
    if blame.slow_rank is not None:
        slower = f"see why the store answers rank {blame.slow_rank.rank} slower than the others: its network, its endpoint"
        yield slower, "machine", _as_others(run, lost, worst)
    elif blame.slow_node is not None:
        yield f"see why the store answers node {blame.slow_node.node} slower than the others, or leave it out", "machine", whole
    else:
        yield "move the set nearer: a region or class of store, or a disk of this node", "machine", whole


def _is_steady(run: RunWaits, rank: int) -> bool:
    """Whether a rank waits in most steps."""
    usual = float(np.median(run.waited[rank] + run.consumer[rank]))
    return float(np.mean(run.waited[rank] > _WAITED * usual)) > _MOSTLY


def _faster(run: RunWaits, lost: Seconds, factor: float) -> float:
    """Return the GPU-seconds gained if the loader's time a step of all who wait were `factor` of what it is."""
    with np.errstate(invalid="ignore", divide="ignore"):
        left = np.maximum(0.0, (run.waited + run.consumer) * factor - run.consumer) / run.waited
    return float((lost * (1 - np.clip(np.nan_to_num(left), 0, 1))).sum())


def _as_others(run: RunWaits, lost: Seconds, worst: int) -> float:
    """Return the GPU-seconds gained if the rank `worst` waited as long as the longest wait of the others."""
    others = np.delete(run.waited, worst, axis=0).max(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        left = np.nan_to_num(others / run.waited[worst])
    return float((lost[worst] * (1 - np.clip(left, 0, 1))).sum())


def _free_cores(run: RunWaits, rank: int) -> int:
    """Return the cores that a rank may use and does not: its share of the node's, less decode threads and the trainer's."""
    header, threads = run.ranks[rank].header, int(_now(run, rank).get("decode_threads", 0))
    share = int(header.get("cores", 1)) // max(1, int(header.get("local_size", 1)))
    return max(0, share - 1 - threads)


def _now(run: RunWaits, rank: int) -> dict[str, Any]:  # Any: JSON
    lines = run.ranks[rank].lines
    return next((line["now"] for line in reversed(lines) if isinstance(line.get("now"), dict)), {})
