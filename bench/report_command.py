"""`headway bench report`: one result as a page, or two of one machine side by side; results of unlike machines are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..formats import UsageError
from ..tools.console import say
from .machine import Machine
from .result import read_result
from .result_output import short

__all__ = ["compare"]


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
        say(f"{key:<28} {short(old):>14} → {short(value):>14}{change}")
    sections = [render(result).split("<body>")[1].split("</body>")[0] for result in (before, after)]
    html_path.write_text(page(f"{before['bench']}: two runs", sections), "utf-8")
    say(f"wrote {str(html_path)!r}")


def _machine(result: Mapping[str, Any]) -> Machine:
    return Machine(**{**result["machine"], "gpus": tuple(result["machine"]["gpus"])})
