"""How a bench command ends: its rows and summary printed, and written as JSON and as a page where that was asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..tools.console import report, say
from .machine import NoiseMeter
from .result import Result, write_result

__all__ = ["HtmlOption", "JsonOption", "finish", "short"]

JsonOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result here as JSON.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained report here.")]


def finish(
    bench: str,
    rows: Sequence[Mapping[str, Any]],
    conditions: Mapping[str, Any],
    summary: Mapping[str, Any],
    started: float,
    meter: NoiseMeter,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Print rows and summary, the summary last and as one JSON object, and write what was asked for."""
    from .html_report import render

    for row in rows:
        say("  ".join(f"{key} {short(value)}" for key, value in row.items() if not isinstance(value, list | dict)))
    result = Result(
        bench=bench, rows=rows, conditions=conditions, summary=summary, wall_s=time.monotonic() - started, noise=meter.noise
    )
    if json_path is not None:
        write_result(result, json_path)
    if html_path is not None:
        html_path.write_text(render(result.to_json()), "utf-8")
        report(f"wrote {str(html_path)!r}")
    say(json.dumps(dict(summary)))


def short(value: object) -> str:
    """Return a value as a table shows it."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "–" if value is None else str(value)
