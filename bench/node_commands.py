"""Commands of `headway bench` that measure this node: its ceilings, what real ranks sustain, a consumer beside them, start-up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..formats import UsageError
from ..loader.cores import usable_cores
from ..tools.console import report
from .full_command import full
from .machine import NoiseMeter
from .peer_commands import cache_of, peers, resume
from .predict_command import predict
from .report_command import compare
from .result_output import HtmlOption, JsonOption, finish
from .starve_command import starve

__all__ = ["image_size", "register"]

SetArgument = Annotated[Path, typer.Argument(metavar="SET", help="A packed set.")]
ImageOption = Annotated[str, typer.Option(metavar="HxW", help="Target size of images.")]


_REPEATS = 2
"""Of ceilings that others disturbed."""


def register(app: typer.Typer) -> None:
    """Add the commands to the bench group."""
    for name, (command, example) in _COMMANDS.items():
        app.command(name, epilog=f"Example: headway bench {example}")(command)


def limits(
    location: SetArgument, image: ImageOption = "256x704", json_path: JsonOption = None, html_path: HtmlOption = None
) -> None:
    """This node's own ceilings at the set's sizes: decode, copy, gather, page cache, disk, and the GPU's where there is one."""
    from ..formats.packed_set import open_set
    from .limits import measure_limits
    from .roofline import roofline

    started, size = time.monotonic(), image_size(image)
    with open_set(location) as packed:
        for _ in range(1 + _REPEATS):
            with NoiseMeter() as meter:
                found = measure_limits(packed, target=size)
            if meter.noise.quiet:
                break
            report(f"others used {meter.noise.others:.2f} cores meanwhile")
        stages = roofline(packed, found, image=size)
    rows = [
        {"what": limit.what, "unit": f"{limit.unit}/s", "per_core": limit.per_core, "spread": round(limit.spread, 3)}
        for limit in found
    ]
    summary = {"predicted_samples_per_s": stages[0].samples_per_s, "binding": stages[0].what} if stages else {}
    conditions = {"set": str(location), "image": image, "stages": [stage.to_json() for stage in stages]}
    finish("limits", rows, conditions, summary, started, meter, json_path, html_path)


def node(
    location: SetArgument,
    ranks: Annotated[int, typer.Option(min=1, help="Rank processes on this node.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a rank and step.")] = 4,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to stream.")] = 8.0,
    consumer_ms: Annotated[float, typer.Option(min=0, help="What a step of the consumer takes; 0: as fast as it goes.")] = 0.0,
    busy: Annotated[bool, typer.Option("--busy", help="The consumer trains a small model instead of waiting.")] = False,
    cold: Annotated[bool, typer.Option("--cold", help="Drop the set from the page cache first.")] = False,
    memory_limit: Annotated[
        int, typer.Option(metavar="MB", min=0, help="Bound the memory of all ranks, page cache included; 0: none.")
    ] = 0,
    batch_memory: Annotated[int, typer.Option(metavar="MB", min=16, help="Batch memory of a rank.")] = 1024,
    image: ImageOption = "256x704",
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """What N real ranks on this node sustain, and which ceiling binds."""
    from ..formats.packed_set import open_set
    from .node import NodeBench, NodeOptions, has_images
    from .resume import measure_resume
    from .roofline import explain, roofline

    if busy and not consumer_ms:
        raise UsageError("--busy needs the length of the consumer's step: give --consumer-ms")
    started, size = time.monotonic(), image_size(image)
    bench = NodeBench(location, say=report)
    iterations, step_ms = bench.calibrate(consumer_ms) if busy else (0, consumer_ms)
    options = NodeOptions(
        ranks=ranks,
        batch_size=batch_size,
        seconds=seconds,
        consumer_ms=consumer_ms,
        busy=busy,
        iterations=iterations,
        cold=cold,
        image=size,
        memory_bytes=batch_memory << 20,
        limit_bytes=memory_limit << 20,
    )
    with NoiseMeter() as meter:
        rows, noise, runs = bench.run_quietly(options)
        ceilings = bench.limits(image=size)
        (resumed,) = measure_resume(
            location, batch_size=batch_size * ranks, cameras="*" if has_images(location) else "", batches=1, shares=(0.5,)
        )
    meter.noise = noise  # of the run that counts, not of the ceilings and repeats around it
    cores = usable_cores()
    with open_set(location) as packed:
        stages = roofline(packed, ceilings, image=size, cores=cores)
    rate = sum(row["samples_per_s"] for row in rows)
    cores_used = sum(row["cpu_cores"] for row in rows)
    for row in rows:
        row["step_inflation"] = row["step_p50_ms"] / step_ms if step_ms else None
    roof = stages[0] if stages else None
    summary = {
        "samples_per_s": rate,
        "predicted_samples_per_s": roof.samples_per_s if roof else None,
        "binding": roof.what if roof else None,
        "fraction_of_limit": rate / roof.samples_per_s if roof else None,
        "cores_used": cores_used,
        "stall_share": max(row["waited_share"] for row in rows) if consumer_ms else None,
        "step_inflation": max(row["step_inflation"] for row in rows) if consumer_ms else None,
        "first_batch_s": max(row["first_batch_s"] for row in rows),
        "resume_to_first_batch_s": resumed["first_batch_s"],
        "pss_mib": sum(row["pss_mib"] for row in rows),
        "order_is_the_plans": all(row["order_is_the_plans"] for row in rows),
    }
    conditions = {
        "set": str(location),
        "ranks": ranks,
        "batch_size": batch_size,
        "seconds": seconds,
        "consumer": f"{'trains' if busy else 'waits'} {step_ms:.1f} ms a step" if consumer_ms else "takes batches as they come",
        "page_cache": "cold" if cold else "warm",
        "memory_limit_mb": memory_limit or None,
        "image": image,
        "cores": cores,
        "runs": runs,
        "stages": explain(stages, samples_per_s=rate, cores_used=cores_used, cores=cores),
        "limits": [{"what": limit.what, "unit": limit.unit, "per_core": limit.per_core} for limit in ceilings],
    }
    finish("node", rows, conditions, summary, started, meter, json_path, html_path)


def consumer(
    location: SetArgument,
    step_ms: Annotated[float, typer.Option(min=1, help="The training step alone.")] = 19.0,
    seconds: Annotated[float, typer.Option(min=0.5, help="Of each case.")] = 6.0,
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """A trainer that holds the interpreter and a core (a small torch model), and the loader: alone and together."""
    from .node import NodeBench, NodeOptions

    bench = NodeBench(location, say=report)
    started = time.monotonic()
    names = ("samples_per_s", "step_p50_ms", "step_p95_ms", "waited_share", "cpu_cores", "threads")
    with NoiseMeter() as meter:
        iterations, alone_ms = bench.calibrate(step_ms)
        rows: list[dict[str, Any]] = [{"case": "step alone", "steps_per_s": 1e3 / alone_ms, "step_p50_ms": alone_ms}]
        for threads in (1, None):
            what = "1 thread" if threads else "its own choice of threads"
            for milliseconds in (0.0, step_ms):
                options = NodeOptions(
                    seconds=seconds, consumer_ms=milliseconds, busy=bool(milliseconds), iterations=iterations, threads=threads
                )
                (row,), noise, _ = bench.run_quietly(options, repeats=1)
                steps = {"steps_per_s": row["samples_per_s"] / options.batch_size} if milliseconds else {}
                case = f"{'together' if milliseconds else 'loader alone'}, {what}"
                rows.append({"case": case, **{name: row[name] for name in names}, **steps, "quiet": noise.quiet})
            pause_s = max(0.0, 1 / rows[-1]["steps_per_s"] - alone_ms / 1e3)
            alike = bench.paced(iterations, pause_s, seconds / 2)
            rows.append({"case": f"step alone at that pace, {what}", "steps_per_s": rows[-1]["steps_per_s"], **alike})
    _, alone, together, alike, own_alone, own_together, own_alike = rows
    summary = {
        "step_alone_ms": alone_ms,
        "step_inflation": together["step_p50_ms"] / alike["step_p50_ms"],
        "step_inflation_p95": together["step_p95_ms"] / alike["step_p95_ms"],
        "loader_rate_kept": _ratio(together["samples_per_s"], alone["samples_per_s"]),
        "own_choice_step_inflation": own_together["step_p50_ms"] / own_alike["step_p50_ms"],
        "own_choice_loader_rate_kept": _ratio(own_together["samples_per_s"], own_alone["samples_per_s"]),
    }
    conditions = {"set": str(location), "seconds": seconds, "iterations_a_step": iterations}
    finish("consumer", rows, conditions, summary, started, meter, json_path, html_path)


def own_cost(
    location: SetArgument,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs, one after the other, in turns first.")] = 6,
    seconds: Annotated[float, typer.Option(min=0.5, help="Of each run.")] = 5.0,
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """What the bench itself takes: `bench node` beside a bare loop over the same batches."""
    from .own_cost import measure_own_cost

    started = time.monotonic()
    with NoiseMeter() as meter:
        rows = measure_own_cost(location, rounds=rounds, seconds=seconds, say=report)
    summary: dict[str, Any] = {
        name: statistics.median(row[name] for row in rows) for name in ("bare_samples_per_s", "bench_samples_per_s")
    }
    summary["bench_takes"] = 1 - statistics.median(row["bench_samples_per_s"] / row["bare_samples_per_s"] for row in rows)
    finish("own-cost", rows, {"set": str(location), "seconds": seconds}, summary, started, meter, json_path, html_path)


def startup(
    location: Annotated[
        Path | None, typer.Argument(metavar="[SET]", help="A packed set; by default sets of --items frames, made in the cache.")
    ] = None,
    items: Annotated[
        str, typer.Option(metavar="N,N", help="Sizes of the sets that are made.")
    ] = "1000,10000,100000,1000000,10000000",
    batch_size: Annotated[int, typer.Option(min=1)] = 4,
    prepare: Annotated[bool, typer.Option("--prepare", help="Only make what is missing.")] = False,
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the sets are kept.")] = None,
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """From opening a set to its first batch, by the set's size and the number of workers."""
    from .node import has_images
    from .startup import counted_set, measure_startup

    started = time.monotonic()
    sets = [location] if location else [counted_set(count, cache_of(cache), say=report) for count in _counts(items)]
    rows: list[dict[str, Any]] = []
    with NoiseMeter() as meter:
        for each in [] if prepare else sets:
            report(f"starting over {str(each)!r}")
            rows += measure_startup(each, batch_size=batch_size, cameras="*" if has_images(each) else "")
    slowest = max(rows, key=lambda row: float(row["first_batch_s"]), default=None)
    summary = {} if slowest is None else {"slowest_first_batch_s": slowest["first_batch_s"], "at_items": slowest["items"]}
    conditions = {"set": str(location) if location else "one number a frame", "batch_size": batch_size}
    finish("startup", rows, conditions, summary, started, meter, json_path, html_path)


_COMMANDS: Mapping[str, tuple[Callable[..., None], str]] = {
    "limits": (limits, "limits SET"),
    "node": (node, "node SET --ranks 2 --consumer-ms 50"),
    "consumer": (consumer, "consumer SET --step-ms 19"),
    "peers": (peers, "peers --workload W1 --peers torch,spdl-direct"),
    "resume": (resume, "resume SET"),
    "startup": (startup, "startup --items 1000,1000000"),
    "predict": (predict, "predict --loads W1,W2"),
    "starve": (starve, "starve --ranks 2"),
    "own-cost": (own_cost, "own-cost SET"),
    "full": (full, "full --out results --minutes 40"),
    "report": (compare, "report before.json after.json"),
}


def image_size(text: str) -> tuple[int, int]:
    """Return (height, width) of a text such as 256x704."""
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and width.isdigit()):
        raise UsageError(f"--image {text!r} is not HEIGHTxWIDTH; write for example 256x704")
    return int(height), int(width)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and int(part) for part in parts):
        raise UsageError(f"--items {text!r} is not a list of sizes; write for example 1000,1000000")
    return [int(part) for part in parts]
