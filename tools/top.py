"""`headway top`: all ranks of a run, live in a terminal; read from their ledger files, so it needs no server."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .console import human_bytes, plain, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..loader.run_files import RankFile

__all__ = ["top_command", "top_facts"]

_WINDOW_S: Final = 10.0
_LAST_BYTES: Final = 256 << 10
_SILENT_S: Final = 3.0  # a rank that runs writes twice a second, one that waits once a second

_COLUMNS: Final = (
    "rank",
    "loader",
    "state",
    "headway s",
    "ready",
    "step ms",
    "samples/s",
    "stall",
    "waits for",
    "busy",
    "threads",
    "ahead",
    "memory",
    "cache hits",
)
_TEXTS: Final = ("loader", "state", "waits for", "busy")

Facts = dict[str, Any]  # Any: JSON


def top_command(
    directory: Annotated[
        Path | None, typer.Argument(metavar="RUN_DIR", help="The directory of LoaderOptions(telemetry=Telemetry(directory=…)).")
    ] = None,
    once: Annotated[bool, typer.Option(help="Print the table once and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and end.")] = False,
    node: Annotated[int | None, typer.Option(min=0, help="Only ranks of this node; default: all that write here.")] = None,
    period: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Between two looks.")] = 1.0,
    grafana: Annotated[bool, typer.Option(help="Print a Grafana dashboard of the Prometheus metrics (JSON), and end.")] = False,
) -> None:
    """Show all ranks of a run live: seconds of input ready, rate, waits and for what, stages at work, cache hits."""
    from ..formats import UsageError

    if grafana:
        from .grafana import dashboard

        say(json.dumps(dashboard(), indent=1))
        return
    if directory is None:
        raise UsageError("headway top needs RUN_DIR, the directory of Telemetry(directory=…)")
    if as_json:
        say(json.dumps({"ranks": top_facts(directory, node=node)}, allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 220)
    if once or not sys.stdout.isatty():
        console.print(_table(top_facts(directory, node=node)))
        return
    from rich.live import Live

    with Live(_table(top_facts(directory, node=node)), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(period)
            live.update(_table(top_facts(directory, node=node)), refresh=True)


def top_facts(directory: Path, *, node: int | None = None) -> list[Facts]:
    """Return a row for each rank and loader, of about the last ten seconds.

    Raises:
        UsageError: no rank writes there.
    """
    from ..loader.run_files import read_run

    found = read_run(directory, last_bytes=_LAST_BYTES)
    return [_facts(each) for each in found if node is None or each.header.get("node") == node]


def _facts(each: RankFile) -> Facts:
    header, lines = each.header, [line for line in each.lines if _is_whole(line)]
    last = lines[-1] if lines else {"total": {}, "now": {"at_ns": header.get("monotonic_ns", 0)}}
    at_ns = last["now"]["at_ns"]
    first: Facts = {"total": {}, "now": {"at_ns": header.get("monotonic_ns", at_ns)}}
    for line in lines[:-1]:
        if line["now"]["at_ns"] <= at_ns - _WINDOW_S * 1e9 or first["total"] == {}:
            first = line
    if len(lines) == 1 or first["now"]["at_ns"] >= at_ns:
        first = {"total": {}, "now": {"at_ns": header.get("monotonic_ns", at_ns)}}
    seconds = max(1e-9, (at_ns - first["now"]["at_ns"]) * 1e-9)
    waits, busy = (_grown(first, last, key, 1e-9) for key in ("waits_ns", "busy_ns"))
    waited = sum(waits.values())
    consumer = (last["total"].get("consumer_ns", 0) - first["total"].get("consumer_ns", 0)) * 1e-9
    now = last["now"]
    hits, misses = now.get("cache_hits"), now.get("cache_misses")
    return {
        "loader": header.get("name", ""),
        "rank": each.rank,
        "node": header.get("node", 0),
        "state": _state(each, now),
        "steps": last["total"].get("steps", 0),
        "headway_s": now.get("headway_s", 0.0),
        "ready": now.get("ready", 0.0),
        "step_s": now.get("step_s", 0.0),
        "samples_per_s": (last["total"].get("samples", 0) - first["total"].get("samples", 0)) / seconds,
        "waited_share": waited / (waited + consumer) if waited + consumer > 0 else 0.0,
        "waits_s": waits,
        "busy": {stage: value / seconds for stage, value in busy.items()},
        "waiting_for": now.get("waiting_for"),
        "waiting_s": now.get("waiting_s", 0.0),
        "cache_hit_share": hits / (hits + misses) if hits is not None and misses is not None and hits + misses else None,
        "chosen": {
            key: value
            for key, value in now.items()
            if isinstance(value, int | float)
            and key not in ("at_ns", "headway_s", "samples_per_s", "ready", "step_s", "waiting_s")
        },
    }


def _is_whole(line: Facts) -> bool:
    total, now = line.get("total"), line.get("now")
    return isinstance(total, dict) and isinstance(now, dict) and isinstance(now.get("at_ns"), int)


def _grown(first: Facts, last: Facts, key: str, scale: float) -> dict[str, float]:
    before = first["total"].get(key, {})
    grown = {stage: (value - before.get(stage, 0)) * scale for stage, value in last["total"].get(key, {}).items()}
    return {stage: value for stage, value in grown.items() if value > 0}


def _state(each: RankFile, now: Facts) -> str:
    """Return running, waiting (for long), silent (between epochs, or not in the loop), or gone."""
    if each.header.get("host") == platform.node() and not _lives(int(each.header.get("pid", 0))):
        return "gone"
    if "waiting_for" in now:
        return "waiting"
    return "silent" if time.time() - each.modified_s > _SILENT_S else "running"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return pid > 0


def _table(rows: list[Facts]) -> Table:
    from rich.table import Table

    table = Table(
        title="headway top", caption="stall: share of the last 10 s that the rank waited · busy: threads at work, by stage"
    )
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _TEXTS else "right", no_wrap=True)
    for row in rows:
        waits = sorted(row["waits_s"].items(), key=lambda item: -float(item[1]))
        busy = sorted(row["busy"].items(), key=lambda item: -float(item[1]))[:3]
        chosen = row["chosen"]
        held, budget = chosen.get("memory_held_bytes"), chosen.get("memory_bytes")
        waiting = f"{row['waiting_for']} {row['waiting_s']:.0f} s" if row["waiting_for"] else waits[0][0] if waits else "–"
        table.add_row(
            str(row["rank"]),
            plain(row["loader"]),
            row["state"],
            f"{row['headway_s']:.2f}",
            f"{row['ready']:g}",
            f"{row['step_s'] * 1e3:.1f}",
            f"{row['samples_per_s']:.1f}",
            f"{row['waited_share']:.1%}",
            plain(waiting),
            plain(" ".join(f"{stage} {value:.2f}" for stage, value in busy if value >= 0.01)) or "–",
            f"{chosen['decode_threads']:g}" if "decode_threads" in chosen else "–",
            f"{chosen['batches_ahead']:g}" if "batches_ahead" in chosen else "–",
            f"{human_bytes(held)}/{human_bytes(budget)}" if held is not None and budget is not None else "–",
            "–" if row["cache_hit_share"] is None else f"{row['cache_hit_share']:.1%}",
        )
    return table
