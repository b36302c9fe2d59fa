"""`headway bench starve`: do ranks starve on an object store that is slow, and what does the node cache download?"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..formats import UsageError
from ..tools.console import report
from .machine import NoiseMeter
from .result_output import HtmlOption, JsonOption, finish

__all__ = ["starve"]


def starve(
    ranks: Annotated[str, typer.Option(metavar="N,…", help="Numbers of ranks to run with.")] = "2,4",
    samples: Annotated[int, typer.Option(min=100, help="Size of the set.")] = 2000,
    load: Annotated[float, typer.Option(min=0.05, max=1.0, help="What consumers ask for, of the sustainable rate.")] = 0.9,
    cache_share: Annotated[float, typer.Option(min=0.05, max=1.0, help="The node cache's limit, of the set's size.")] = 0.5,
    json_path: JsonOption = None,
    html_path: HtmlOption = None,
) -> None:
    """Ranks at 90 % of what they can sustain, from an S3 server whose answers take 30 ms (p99 400 ms) and sometimes 3 s."""
    from .starve import StarveOptions, conditions
    from .starve import starve as run

    started = time.monotonic()
    options = StarveOptions(ranks=_numbers(ranks), samples=samples, load=load, cache_share=cache_share)
    with NoiseMeter() as meter:
        rows = run(options, say=report)
    worst = max(rows, key=lambda row: float(row["stall_share"]))
    summary = {
        "stall_share": worst["stall_share"],
        "headway_s": min(row["headway_s"] for row in rows),
        "downloads": {str(row["ranks"]): row["downloads"] for row in rows},
        "boundary_in_steps": max(row["boundary_in_steps"] for row in rows),
        "first_batch_s": max(row["first_batch_s"] for row in rows),
        "hedged_share": max(row["hedged_share"] for row in rows),
    }
    finish("starve", rows, conditions(options), summary, started, meter, json_path, html_path)


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) for part in parts):
        raise UsageError(f"--ranks {text!r} is not a list of numbers; write for example 2,4")
    return tuple(map(int, parts))
