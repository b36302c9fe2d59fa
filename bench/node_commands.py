"""Commands of `headway bench` that measure this node and its peers; each prints a table and ends with one JSON result."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..formats import UsageError
from ..tools.console import report, say
from .machine import Machine, NoiseMeter
from .result import Result, read_result, write_result

__all__ = ["image_size", "register"]

Set = Annotated[Path, typer.Argument(metavar="SET", help="A packed set.")]
JsonOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result here as JSON.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained report here.")]
Row = Mapping[str, Any]


def register(app: typer.Typer) -> None:
    """Add the commands to the bench group."""
    for name, (command, example) in _COMMANDS.items():
        app.command(name, epilog=f"Example: headway bench {example}")(command)


def limits(
    location: Set,
    image: Annotated[str, typer.Option(metavar="HxW", help="Target size of images.")] = "256x704",
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """This node's own ceilings at the set's sizes: decode, copy, gather, page cache, disk."""
    from ..formats.packed_set import open_set
    from .limits import measure_limits

    started = time.monotonic()
    with NoiseMeter() as meter, open_set(location) as packed:
        found = measure_limits(packed, target=image_size(image))
    rows = [
        {"what": limit.what, "unit": f"{limit.unit}/s", "per_core": limit.per_core, "spread": round(limit.spread, 3)}
        for limit in found
    ]
    _end("limits", rows, {"set": str(location), "image": image}, {}, started, meter, json_path, html_path)


def node(
    location: Set,
    ranks: Annotated[int, typer.Option(min=1, help="Rank processes on this node.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a rank and step.")] = 4,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to stream.")] = 8.0,
    consumer_ms: Annotated[float, typer.Option(min=0, help="What a step of the consumer takes; 0: as fast as it goes.")] = 0.0,
    busy: Annotated[bool, typer.Option(help="The consumer holds the interpreter and a core instead of waiting.")] = False,
    cold: Annotated[bool, typer.Option(help="Drop the set from the page cache first.")] = False,
    memory_limit: Annotated[int, typer.Option(metavar="MB", min=16, help="Batch memory of a rank.")] = 1024,
    image: Annotated[str, typer.Option(metavar="HxW", help="Target size of images.")] = "256x704",
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """What N real ranks on this node sustain, and which ceiling binds."""
    from ..formats.packed_set import open_set
    from .node import NodeBench, NodeOptions, predict

    options = NodeOptions(
        ranks=ranks,
        batch_size=batch_size,
        seconds=seconds,
        consumer_ms=consumer_ms,
        busy=busy,
        cold=cold,
        image=image_size(image),
        memory_bytes=memory_limit << 20,
    )
    bench = NodeBench(location, say=report)
    ceilings = bench.limits(image=options.image)
    started = time.monotonic()
    with NoiseMeter() as meter:
        rows = bench.run(options)
    with open_set(location) as packed:
        predicted = predict(packed, ceilings)
    rate = sum(row["samples_per_s"] for row in rows)
    binding = min(predicted, key=predicted.__getitem__, default="")
    summary = {
        "samples_per_s": rate,
        "predicted_samples_per_s": predicted.get(binding),
        "binding": binding or None,
        "fraction_of_limit": rate / predicted[binding] if binding else None,
        "stall_share": max(row["waited_share"] for row in rows) if consumer_ms else None,
        "first_batch_s": max(row["first_batch_s"] for row in rows),
        "order_is_the_plans": all(row["order_is_the_plans"] for row in rows),
    }
    conditions = {
        "set": str(location),
        "ranks": ranks,
        "batch_size": batch_size,
        "seconds": seconds,
        "consumer_ms": consumer_ms,
        "busy": busy,
        "cold": cold,
        "image": image,
        "predicted": predicted,
        "limits": [{"what": limit.what, "unit": limit.unit, "per_core": limit.per_core} for limit in ceilings],
    }
    _end("node", rows, conditions, summary, started, meter, json_path, html_path)


def consumer(
    location: Set,
    step_ms: Annotated[float, typer.Option(min=1, help="The consumer's step alone.")] = 19.0,
    seconds: Annotated[float, typer.Option(min=0.5)] = 6.0,
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """A trainer that holds the interpreter and a core, and the loader: alone and together."""
    from .node import NodeBench, NodeOptions

    bench = NodeBench(location, say=report)
    started, rows = time.monotonic(), []
    with NoiseMeter() as meter:
        for name, milliseconds, busy in (("loader alone", 0.0, False), ("with a busy consumer", step_ms, True)):
            (row,) = bench.run(NodeOptions(seconds=seconds, consumer_ms=milliseconds, busy=busy, threads=1))
            rows.append(
                {"case": name, **{key: row[key] for key in ("samples_per_s", "step_p50_ms", "step_p95_ms", "waited_share")}}
            )
    together = rows[1]
    summary = {
        "consumer_step_ms": step_ms,
        "step_inflation": together["step_p50_ms"] / step_ms,
        "step_inflation_p95": together["step_p95_ms"] / step_ms,
        "loader_rate_kept": together["samples_per_s"] / rows[0]["samples_per_s"] if rows[0]["samples_per_s"] else None,
    }
    _end("consumer", rows, {"set": str(location), "seconds": seconds}, summary, started, meter, json_path, html_path)


def peers(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A workload, as `headway bench make-data` writes it.")],
    names: Annotated[str, typer.Option("--peers", metavar="A,B", help="Which peers; by default all. headway always runs.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians count.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="Window of a run.")] = 4.0,
    cache: Annotated[Path | None, typer.Option(help="Where environments and packed files are kept (tens of GB for all).")] = None,
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """The same batches from other loaders, each in its own environment, in interleaved rounds."""
    from .peer_rounds import PeerBench
    from .peers.registry import PEERS
    from .peers.samples import Stored

    workload = Stored(data).name
    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(PEERS)
    if "headway" not in wanted:
        wanted.append("headway")
    place = cache or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headway" / "peers"
    started = time.monotonic()
    with NoiseMeter() as meter:
        found = PeerBench(workload, data, place, seconds=seconds, say=report).run(wanted, rounds=rounds)
    rows = [{"workload": workload, **row.to_json()} for row in found]
    rates = {row["peer"]: row["samples_per_s"] for row in rows if row["samples_per_s"]}
    best = max((rate for name, rate in rates.items() if name != "headway"), default=None)
    summary = {
        "workload": workload,
        "best_peer": next((name for name, rate in rates.items() if rate == best), None),
        "ratio_to_best_peer": rates["headway"] / best if best and "headway" in rates else None,
        "ratio_to_torch": rates["headway"] / rates["torch"] if "torch" in rates and "headway" in rates else None,
    }
    for row in rows:
        row["ratio_to_best_peer"] = row["samples_per_s"] / best if best and row["samples_per_s"] else None
    _end("peers", rows, {"data": str(data), "rounds": rounds, "seconds": seconds}, summary, started, meter, json_path, html_path)


def resume(
    location: Set,
    batch_size: Annotated[int, typer.Option(min=1)] = 4,
    batches: Annotated[int, typer.Option(min=1)] = 100,
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """Restore at 1 %, 50 % and 99 % of an epoch; the next batches are compared with the plan's."""
    from .resume import measure_resume

    started = time.monotonic()
    with NoiseMeter() as meter:
        rows = measure_resume(location, batch_size=batch_size, cameras=_cameras(location), batches=batches, say=report)
    summary = {"slowest_first_batch_s": max(row["first_batch_s"] for row in rows), "exact": all(row["exact"] for row in rows)}
    _end("resume", rows, {"set": str(location), "batch_size": batch_size}, summary, started, meter, json_path, html_path)


def startup(
    location: Set, batch_size: Annotated[int, typer.Option(min=1)] = 4, json_path: JsonOption = None, html_path: HtmlOption = None
) -> None:
    """From the constructor to the first batch, by number of decode threads."""
    from .resume import measure_startup

    started = time.monotonic()
    with NoiseMeter() as meter:
        rows = measure_startup(location, batch_size=batch_size, cameras=_cameras(location))
    summary = {"slowest_first_batch_s": max(row["first_batch_s"] for row in rows)}
    _end("startup", rows, {"set": str(location), "batch_size": batch_size}, summary, started, meter, json_path, html_path)


def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json")],
    second: Annotated[
        Path | None, typer.Argument(metavar="[B.json]", help="A later run of the same bench on the same machine.")
    ] = None,
    html_path: Annotated[Path, typer.Option("--html", metavar="FILE", help="The page to write.")] = Path("report.html"),
) -> None:
    """One result as a page, or two results of one machine side by side."""
    from .html_report import page, render

    before: Mapping[str, Any] = read_result(first)
    if second is None:
        html_path.write_text(render(before), "utf-8")
        say(f"wrote {str(html_path)!r}")
        return
    after: Mapping[str, Any] = read_result(second)
    reasons = _machine(before).unlike(_machine(after))
    if before["bench"] != after["bench"]:
        reasons.insert(0, f"bench: {before['bench']!r} and {after['bench']!r}")
    if reasons:
        raise UsageError(f"cannot compare {str(first)!r} with {str(second)!r}: {'; '.join(reasons)}; run both on one machine")
    for key, value in (after.get("summary") or {}).items():
        old = (before.get("summary") or {}).get(key)
        change = f"  ({value / old - 1:+.1%})" if isinstance(value, float) and isinstance(old, float) and old else ""
        say(f"{key:<28} {_short(old):>14} → {_short(value):>14}{change}")
    sections = [render(result).split("<body>")[1].split("</body>")[0] for result in (before, after)]
    html_path.write_text(page(f"{before['bench']}: two runs", sections), "utf-8")
    say(f"wrote {str(html_path)!r}")


_COMMANDS: Mapping[str, tuple[Callable[..., None], str]] = {
    "limits": (limits, "limits SET"),
    "node": (node, "node SET --ranks 2 --consumer-ms 50"),
    "consumer": (consumer, "consumer SET --step-ms 19"),
    "peers": (peers, "peers /tmp/w1 --peers torch,spdl-direct"),
    "resume": (resume, "resume SET"),
    "startup": (startup, "startup SET"),
    "report": (compare, "report before.json after.json"),
}


def _end(
    bench: str,
    rows: Sequence[Row],
    conditions: Mapping[str, Any],
    summary: Mapping[str, Any],
    started: float,
    meter: NoiseMeter,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Print rows and summary, and write what was asked for."""
    from .html_report import render

    for row in rows:
        say("  ".join(f"{key} {_short(value)}" for key, value in row.items() if not isinstance(value, list | dict)))
    result = Result(
        bench=bench, rows=rows, conditions=conditions, summary=summary, wall_s=time.monotonic() - started, noise=meter.noise
    )
    if json_path is not None:
        write_result(result, json_path)
    if html_path is not None:
        html_path.write_text(render(result.to_json()), "utf-8")
        report(f"wrote {str(html_path)!r}")
    say(json.dumps(dict(summary)))


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "–" if value is None else str(value)


def image_size(text: str) -> tuple[int, int]:
    """Return (height, width) of a text such as 256x704."""
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and width.isdigit()):
        raise UsageError(f"--image {text!r} is not HEIGHTxWIDTH; write for example 256x704")
    return int(height), int(width)


def _cameras(location: Path) -> str:
    """Return a pattern for the first camera's family, or "" for a set without images."""
    from ..formats.packed_set import open_set

    with open_set(location) as packed:
        return "*" if any(sensor.kind == "image" for sensor in packed.schema.sensors) else ""


def _machine(result: Mapping[str, Any]) -> Machine:
    return Machine(**{**result["machine"], "gpus": tuple(result["machine"]["gpus"])})
