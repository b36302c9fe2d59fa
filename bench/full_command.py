"""`headway bench full`: the command around `full_run`, and one page of all its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..formats import kernel
from ..tools.console import report, say
from .peer_commands import cache_of

__all__ = ["full"]


def full(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where each part's JSON is kept; parts that are there stay.")],
    minutes: Annotated[float | None, typer.Option(min=0.1, help="End after this long with the parts there are.")] = None,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Only make data, install and pack: what a quiet machine need not wait for.")
    ] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Only show that everything runs; the numbers mean nothing.")] = False,
    names: Annotated[str, typer.Option("--peers", metavar="A,B", help="Which peers; by default all.")] = "",
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Where environments, data and packed files are kept.")] = None,
) -> None:
    """Everything a published result holds: limits, 1, 2 and 4 ranks, consumer, start-up, resume, and peers over W1 to W4."""
    from .full_run import FullOptions, FullRun, Sizes
    from .html_report import page, render, section_of
    from .result import read_result

    sizes = Sizes.tiny() if tiny else Sizes.full()
    limit_s = None if minutes is None else minutes * 60
    place = cache_of(cache).resolve()
    run = FullRun(FullOptions(out=out.resolve(), cache=place, peers=names, limit_s=limit_s, sizes=sizes), say=report)
    if not kernel.available():
        report("the native core is not in use: headway's rates will be those of the pure-Python path; build it first")
    run.prepare()
    if prepare:
        say("prepared")
        return
    states = run.run()
    done = [part for part in run.parts() if (out / f"{part.name}.json").exists()]
    sections = [section_of(part.name, render(read_result(out / f"{part.name}.json"))) for part in done]
    (out / "report.html").write_text(page("headway bench", sections), "utf-8")
    for name, state in states.items():
        say(f"{name:<14} {state['state']}{' – ' + str(state['why']) if 'why' in state else ''}")
    say(f"{len(done)} of {len(states)} parts in {str(out)!r}, all together in report.html")
