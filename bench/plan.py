"""What planning costs and how well it mixes: `headway bench plan`.

Cost: time to plan one rank's steps and whole global batches out of 10⁹ items, memory growth, and the time from opening a state
to the first indices late in an epoch against early. Quality: a table against an ideal shuffle and two others (`shuffles`), all
holding as many items as headway's open spans.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..loader.plan import Plan
from ..loader.sampler import ViewInfo
from ..loader.shuffled import Shuffled
from ..loader.state import State
from .shuffles import WINDOWS, Items, Quality, buffered, headway, ideal, ideal_same_drive, quality, spread

__all__ = ["measure", "report"]

Numbers = dict[str, Any]  # Any: plain JSON data


def measure(
    *,
    items: int = 10**9,
    batch_size: int = 8192,
    ranks: int = 1024,
    look_ahead: int = 64,
    repeats: int = 30,
    frames: int = 28_130,
    drive_frames: int = 40,
    frame_bytes: int = 1_600_000,
    seed: int = 0,
) -> Numbers:
    """Return all figures. `items`, `batch_size`, `ranks` size the cost part; `frames`, `drive_frames` the quality part."""
    # First, for its megabytes: until a process has freed a large array once, as any loader soon has, glibc gives the heap's top
    # back to the system after each step, and the page faults add half to a step's time.
    table = quality_table(frames=frames, drive_frames=drive_frames, frame_bytes=frame_bytes, seed=seed)
    drives = np.array([0, items])
    view = ViewInfo(view_id="bench", items=items, drive_starts=drives)
    sampler = Shuffled(block_items=11)  # the last block is short, so that nothing is skipped
    growth = _growth(lambda: _plan_around(view, sampler, batch_size))
    plan = Plan(view, sampler, seed=seed, epoch=0, segments=[(batch_size, 0)])
    middle, share = plan.steps // 2, batch_size // ranks
    rank_s = _best(lambda: plan.look_ahead(middle, look_ahead, share, 2 * share), repeats)
    global_s = _best(lambda: plan.step(middle), repeats)
    early, late = (_seek(view, sampler, batch_size, int(plan.steps * part), share, repeats) for part in (0.0, 0.99))
    return {
        "items": items,
        "batch_size": batch_size,
        "ranks": ranks,
        "rank_step_us": rank_s / look_ahead * 1e6,
        "global_step_ms": global_s * 1e3,
        "plan_rss_growth_mib": growth,
        "seek_ratio": late / early,
        "seek_early_us": early * 1e6,
        "seek_late_us": late * 1e6,
        "quality": table,
    }


def quality_table(
    *, frames: int, drive_frames: int, frame_bytes: int, seed: int, batch_size: int = 64, block_items: int = 10
) -> list[Numbers]:
    """Return one row per order: an ideal shuffle, then for each `span_blocks` headway and the others at equal items held."""
    drive = np.arange(frames) // drive_frames
    starts = np.append(np.arange(0, frames, drive_frames), frames)
    view = ViewInfo(view_id="bench", items=frames, drive_starts=starts)
    rows: list[Numbers] = []
    truth = ideal_same_drive(drive)

    def add(name: str, order: Items, unit_items: int, held: int, span_blocks: int | None = None) -> None:
        found = quality(order, batch_size=batch_size, drive=drive, unit_items=unit_items)
        rows.append(_row(name, found, truth, unit_items=unit_items, held=held, span_blocks=span_blocks, frame_bytes=frame_bytes))

    add("ideal", ideal(frames, seed=seed), 1, frames)
    for span_blocks in (1, 2, 4, 8, 12, 16):
        held = batch_size * span_blocks * block_items
        sampler = Shuffled(block_items=block_items, span_blocks=span_blocks)
        add("headway", headway(view, batch_size=batch_size, sampler=sampler, seed=seed), block_items, held, span_blocks)
        for shard_items in (block_items, drive_frames, 1000):
            add("py1e", spread(frames, shard_items=shard_items, range_items=held, seed=seed), shard_items, held)
        for shard_items in (drive_frames, 1000):
            add("buffer", buffered(frames, shard_items=shard_items, buffer_items=held, seed=seed), shard_items, held)
    return rows


def report(found: Numbers) -> str:
    """Return the figures as text for people."""
    lines = [
        f"one rank's step   {found['rank_step_us']:8.1f} us   (of {found['items']:,} items, {found['ranks']:,} ranks)",
        f"global batch      {found['global_step_ms']:8.2f} ms   ({found['batch_size']:,} items)",
        f"memory growth     {found['plan_rss_growth_mib']:8.2f} MiB",
        f"seek 99 % / 0 %   {found['seek_ratio']:8.2f}",
        "",
        f"{'order':8} {'unit':>5} {'spans':>5} {'held':>6} {'same drive':>11} {'/ ideal':>8}  "
        + " ".join(f"{'over ' + str(window):>8}" for window in WINDOWS)
        + f" {'open':>7} {'open MB':>8}",
    ]
    for row in found["quality"]:
        lines.append(
            f"{row['order']:8} {row['unit_items']:>5} {row['span_blocks'] or '':>5} {row['items_held']:>6} "
            f"{row['same_drive']:>11.6f} {row['same_drive_ratio']:>8.2f}  "
            + " ".join(f"{row[f'distinct_drives_{window}']:>8.1f}" for window in WINDOWS)
            + f" {row['open_blocks']:>7.0f} {row['open_mb']:>8.0f}"
        )
    lines.append("held: items of the buffer, of the range, or of the open spans; open: read units begun and not finished")
    return "\n".join(lines)


def _row(
    name: str, found: Quality, truth: float, *, unit_items: int, held: int, span_blocks: int | None, frame_bytes: int
) -> Numbers:
    distinct = dict(zip((f"distinct_drives_{window}" for window in WINDOWS), found.distinct_drives, strict=True))
    return {
        "order": name,
        "unit_items": unit_items,
        "span_blocks": span_blocks,
        "items_held": held,
        "same_drive": found.same_drive,
        "same_drive_ratio": found.same_drive / truth,
        **distinct,
        "open_blocks": found.open_blocks,
        "open_mb": found.open_items * frame_bytes / 1e6,
        "read_mb_each": unit_items * frame_bytes / 1e6,
    }


def _best(call: Callable[[], object], repeats: int) -> float:
    """Return the shortest of many runs: what the work takes when nothing else runs."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def _seek(view: ViewInfo, sampler: Shuffled, batch_size: int, step: int, share: int, repeats: int) -> float:
    """Return the time from a state's JSON to one rank's first indices."""
    start = State.start(view, sampler, seed=0, epoch=0, batch_size=batch_size)
    plan = start.plan(view, sampler)
    saved = (start.after(plan, step=step - 1) if step else start).to_json()

    def seek() -> None:
        state = State.from_json(saved).resume(view, sampler, seed=0, batch_size=batch_size)
        state.plan(view, sampler).step(state.steps_done, 0, share)

    return _best(seek, repeats)


def _plan_around(view: ViewInfo, sampler: Shuffled, batch_size: int) -> None:
    plan = Plan(view, sampler, seed=0, epoch=0, segments=[(batch_size, 0)])
    for step in np.linspace(0, plan.steps - 1, 200).astype(int).tolist():
        plan.step(step)


def _growth(work: Callable[[], None]) -> float:
    """Return by how much `work`, run again, makes this process grow (MiB); the first run pays for code and buffers."""
    work()
    before = _resident()
    work()
    return max(0.0, (_resident() - before) / 2**20)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
