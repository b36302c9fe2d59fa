"""`headway explain`: who made the job wait, for what, what that cost, and the cheapest remedy; from a run's ledgers alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import human_time, plain, say

if TYPE_CHECKING:
    from ._blame import Blame
    from ._waits import RunWaits

__all__ = ["explain_command", "explain_facts"]

_LISTED = 5
_BYTES_A_STEP = 400


def explain_command(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="RUN_DIR", help="The directory of Telemetry(directory=…), of a run that goes on or is over."),
    ] = None,
    loader: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which loader, where several wrote (Telemetry.name).")
    ] = None,
    last: Annotated[int, typer.Option(min=1, metavar="STEPS", help="Look at the last so many steps.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of that object, and end.")] = False,
) -> None:
    """Say who made the job wait, for what, what that cost, and what to change."""
    from ..formats import UsageError

    if schema:
        from .explain_schema import SCHEMA

        say(json.dumps(SCHEMA, indent=1))
        return
    if directory is None:
        raise UsageError("headway explain needs RUN_DIR, the directory of Telemetry(directory=…)")
    facts = explain_facts(directory, loader=loader, last=last)
    if as_json:
        say(json.dumps(facts, allow_nan=False))
    else:
        _print(facts)


def explain_facts(directory: Path, *, loader: str | None = None, last: int = 1000) -> dict[str, Any]:  # Any: JSON
    """Return what `explain_schema` describes.

    Raises:
        UsageError: there is no ledger, or none of `loader`.
    """
    from ..loader.run_files import read_run
    from ._blame import find_blame
    from ._remedies import NOTHING, find_remedies, resource_of
    from ._waits import run_waits
    from .explain_schema import EXPLAIN_VERSION

    found = read_run(directory, loader, last_bytes=max(1 << 18, last * _BYTES_A_STEP))
    name = str(found[0].header.get("name", ""))
    if loader is None and any(each.header.get("name") == "train" for each in found):
        name = "train"
    run = run_waits([each for each in found if each.header.get("name") == name], last=last)
    blame = find_blame(run)
    places = {each.rank: at for at, each in enumerate(run.ranks)}
    wall = float(run.wall.max())
    share = blame.lost_gpu_s / (wall * len(run.ranks)) if wall else 0.0
    job = max(int(each.header.get("ranks", 1)) for each in run.ranks)
    return {
        "headway_explain": EXPLAIN_VERSION,
        "loader": name,
        "ranks": len(run.ranks),
        "missing_ranks": [rank for rank in range(job) if rank not in places],
        "nodes": len(set(run.nodes.tolist())),
        "steps": len(run.steps),
        "first_step": run.steps[0].tolist(),
        "last_step": run.steps[-1].tolist(),
        "wall_s": wall,
        "synchronous": blame.is_synchronous,
        "lost_gpu_s": blame.lost_gpu_s,
        "stall_share": min(1.0, share),
        "nothing_to_do": share < NOTHING,
        "verdict": _verdict(run, blame, share),
        "slow_rank": None
        if blame.slow_rank is None
        else {
            "rank": blame.slow_rank.rank,
            "node": blame.slow_rank.node,
            "factor": blame.slow_rank.factor if math.isfinite(blame.slow_rank.factor) else None,
        },
        "slow_node": None
        if blame.slow_node is None
        else {"node": blame.slow_node.node, "host": blame.slow_node.host, "ranks": blame.slow_node.ranks},
        "culprits": [
            {
                "rank": each.rank,
                "node": each.node,
                "stage": each.stage,
                "resource": resource_of(run, places[each.rank], each.stage),
                "lost_gpu_s": each.lost_gpu_s,
                "share": min(1.0, each.lost_gpu_s / blame.lost_gpu_s),
                "steps": each.steps,
            }
            for each in blame.culprits
        ],
        "per_rank": _per_rank(run, blame),
        "remedies": [
            {
                "action": each.action,
                "effort": each.effort,
                "stage": each.stage,
                "gain_gpu_s": each.gain_gpu_s,
                "stall_share_after": each.stall_share_after,
            }
            for each in find_remedies(run, blame)
        ],
    }


def _per_rank(run: RunWaits, blame: Blame) -> list[dict[str, Any]]:  # Any: JSON
    rows = []
    for at, each in enumerate(run.ranks):
        waited, wall = float(run.waited[at].sum()), float(run.wall[at])
        own = waited if blame.is_synchronous else float(blame.lost[at].sum())
        now: dict[str, Any] = next(  # Any: JSON
            (line["now"] for line in reversed(each.lines) if isinstance(line.get("now"), dict)), {}
        )
        headway_s = now.get("headway_s")
        rows.append(
            {
                "rank": each.rank,
                "node": int(run.nodes[at]),
                "host": str(each.header.get("host", "")),
                "waited_s": waited,
                "waited_share": waited / wall if wall else 0.0,
                "made_others_wait_gpu_s": max(0.0, float(blame.lost[at].sum()) - own),
                "headway_s": float(headway_s) if isinstance(headway_s, int | float) else 0.0,
                "waits_s": {stage: float(by_rank[at].sum()) for stage, by_rank in run.waits.items() if by_rank[at].any()},
            }
        )
    return rows


_DOING = {
    "start": "threads and processes to start",
    "plan": "looking rows up",
    "memory": "batch memory to come back",
    "store": "the store",
    "disk": "the disk",
    "decompress": "points and tables to be decompressed",
    "decode": "images to be decoded",
    "assemble": "batches to be put together",
    "transform": "transforms of yours",
    "transfer": "copies into pinned memory",
    "handover": "batches to be handed over",
    "end": "threads to end",
    "dataset": "the dataset",
}


def _verdict(run: RunWaits, blame: Blame, share: float) -> str:
    from ._remedies import NOTHING

    if share < NOTHING or not blame.culprits:
        return "nothing to do: input is ready when it is asked for, and the consumer is the limit"
    by_stage: dict[str, float] = {}
    chosen = {blame.slow_rank.rank} if blame.slow_rank else set(blame.slow_node.ranks) if blame.slow_node else None
    for each in blame.culprits:
        if chosen is None or each.rank in chosen:
            by_stage[each.stage] = by_stage.get(each.stage, 0.0) + each.lost_gpu_s
    doing = _DOING.get(max(by_stage, key=by_stage.__getitem__), "input")
    all_wait = " and all others for it" if blame.is_synchronous else ""
    if blame.slow_rank is not None:
        return f"rank {blame.slow_rank.rank} waits for {doing}{all_wait}"
    if blame.slow_node is not None:
        return f"the ranks of node {blame.slow_node.node} ({plain(blame.slow_node.host)}) wait for {doing}{all_wait}"
    return f"{'the rank waits' if len(run.ranks) == 1 else 'ranks wait'} for {doing}"


def _print(facts: dict[str, Any]) -> None:  # Any: JSON, see explain_schema
    say(facts["verdict"])
    begin, end = ("{}:{}".format(*facts[key]) for key in ("first_step", "last_step"))
    lost = f"{facts['lost_gpu_s']:.1f} GPU-seconds lost, {facts['stall_share']:.1%} of the time"
    say(
        f"loader {plain(facts['loader'])}, {facts['ranks']} rank(s), {facts['steps']} steps ({begin} to {end}), "
        f"{human_time(facts['wall_s'])}: {lost}"
    )
    if facts["ranks"] > 1:
        say(
            "ranks keep step: the slowest makes all wait"
            if facts["synchronous"]
            else "ranks do not keep step: each loses its own waits"
        )
    if facts["missing_ranks"]:
        say(f"no ledger of rank(s) {', '.join(map(str, facts['missing_ranks'][:20]))}: they may be the ones that are waited for")
    if facts["culprits"]:
        say(f"\n{'rank':>5} {'node':>5}  {'stage':<11} {'resource':<16} {'GPU-s lost':>10} {'share':>6} {'steps':>7}")
        for each in facts["culprits"][:_LISTED]:
            say(
                f"{each['rank']:>5} {each['node']:>5}  {each['stage']:<11} {each['resource']:<16} {each['lost_gpu_s']:>10.2f} "
                f"{each['share']:>6.1%} {each['steps']:>7}"
            )
    if facts["remedies"]:
        say("\nwhat to change, the cheapest first (predicted gain in GPU-seconds, share of time lost then):")
        for each in facts["remedies"][:_LISTED]:
            say(f"  {each['gain_gpu_s']:>9.2f}  {each['stall_share_after']:>6.1%}  [{each['effort']}] {plain(each['action'])}")
    elif not facts["nothing_to_do"]:
        say("\nno remedy is known for this; headway top shows it live, Telemetry(trace_steps=…) call by call")
