"""`headway <command>`: look at sets, check and convert them, explain a plan, measure.

Commands import what they need when they run, so that `headway --help` is quick and needs no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ..bench.main import app as bench_app
from ..formats import UsageError
from .console import report, run_app, say
from .doctor import doctor_command
from .estimate import estimate_command
from .explain import explain_command
from .plan import plan_command
from .replay import replay_command
from .set_commands import register
from .top import top_command
from .tune import tune_command

__all__ = ["app", "main"]

app = typer.Typer(
    name="headway",
    no_args_is_help=True,
    help="Packed sets for driving and robotics training: look inside, check, convert, explain the order, measure.\n\n"
    "`pack-dataset` makes sets. In Python: `from headway import DataLoader`.",
    epilog="Exit codes: 0 done, 1 a bug, 2 usage, 4 a damaged or unfinished set, 5 I/O, 6 stalled, 8 no space, 130 interrupted.",
)

SetArgument = Annotated[str, typer.Argument(metavar="SET", help="Folder of a packed set, or its URL (s3://…).")]


@app.command(
    epilog="Examples: headway show sets/mini · headway show sets/mini scene-0061 0 --png frame.png · "
    "headway show sets/mini scene-0061 0 --export frame/",
    help="Show what a set holds: drives, sensors, frames, bytes, codecs, windows possible. With DRIVE, that drive; with DRIVE "
    "FRAME, that frame, its picture (--png) or its payloads as files (--export).",
)
def show(
    location: SetArgument,
    drive: Annotated[str | None, typer.Argument(metavar="DRIVE", help="Name of a drive.", show_default=False)] = None,
    frame: Annotated[
        int | None, typer.Argument(metavar="FRAME", help="Number of a frame in that drive, from 0.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each payload of the frame as a file, with the source's bytes.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw cameras, points, boxes and paths of the frame (.png or .jpg).")
    ] = None,
) -> None:
    import json

    from ..formats.packed_set import open_set
    from . import show as showing

    if (export or png) and frame is None:
        raise UsageError("--export and --png need a frame: headway show SET DRIVE FRAME --png FILE")
    with open_set(location) as packed:
        if drive is None:
            if as_json:
                say(json.dumps(showing.set_facts(packed), indent=1))
            else:
                showing.print_set(packed)
            return
        number = packed.drive_index(drive)
        if frame is None:
            showing.print_drive(packed, number, as_json=as_json)
            return
        at = showing.global_frame(packed, number, frame)
        if png is not None:
            from .picture import check_picture_name

            check_picture_name(png)
        if export is not None:
            files = showing.export_frame(packed, at, export)
            report(f"wrote {len(files)} files into {str(export)!r}")
        if png is not None:
            from ._set_scene import scene_from_set
            from .picture import overview, write_picture

            write_picture(overview(scene_from_set(packed, at)), png)
            report(f"wrote {str(png)!r}")
        if as_json or not (export or png):
            showing.print_frame(packed, at, as_json=as_json)


register(app)
app.command(
    "plan",
    help="Show which rank gets which frames at which step, what that reads, and the read amplification.",
    epilog="Example: headway plan sets/mini --ranks 8 --batch-size 4 --seed 1 --steps 0:3",
)(plan_command)
app.command(
    "replay",
    help="Show the ids and windows that a run saw at a step, from the set and a state it saved.",
    epilog="Example: headway replay sets/mini --state state.json --png seen.png",
)(replay_command)
app.command(
    "doctor",
    help="Show which paths this machine and installation take, and how to get the fast ones.",
    epilog="Example: headway doctor --json",
)(doctor_command)
app.command(
    "top",
    help="Show all ranks of a run live: seconds of input ready, rate, waits and for what, stages at work, cache hits. Reads "
    "the files that ranks write with LoaderOptions(telemetry=Telemetry(directory=RUN_DIR)); needs no server. In the table, "
    "headway is what lies ready × the time of a step; stall the share of the last ten seconds that the rank waited; busy how "
    "many threads were at work in a stage. A silent rank writes nothing now: validation, a checkpoint, or the end.",
    epilog="Examples: headway top runs/7 · headway top runs/7 --once · headway top --grafana > dashboard.json",
)(top_command)
app.command(
    "explain",
    help="Say which rank made the job wait, for which stage and resource, how many GPU-seconds that cost, and what to change, "
    "the cheapest first, with the predicted gain. Reads the files that ranks write with "
    "LoaderOptions(telemetry=Telemetry(directory=RUN_DIR)), during the run or after it. In synchronous training a step ends when "
    "the slowest rank is done: what the rank that waited longest waited is lost on all of them. Waits are those of the program "
    "that asks for batches; where it runs ahead of its device, they may be hidden.",
    epilog="Examples: headway explain runs/7 · headway explain runs/7 --json · headway explain --schema",
)(explain_command)
app.command(
    "estimate",
    help="Predict what a job of up to thousands of ranks gets out of its input: throughput, stalls, what binds it, memory, "
    "cache. Measures what a batch costs here (under a minute), then simulates the shipped scheduler.",
    epilog="Example: headway estimate sets/mini --ranks 256 --gpus-per-node 8 --step-ms 180 --items 2000000 --store s3 --latency "
    "30:400 --bandwidth 3",
)(estimate_command)
app.command(
    "tune",
    help="Try on a sample of the set, on this node, what each knob gives and costs: image size and points codec at pack time, "
    "decode threads, blocks shuffled together.",
    epilog="Example: headway tune sets/mini --step-ms 180 --image 256x704",
)(tune_command)
app.add_typer(bench_app, name="bench")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `headway`."""
    run_app(lambda: app, "headway", list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    main()
