"""`headway plan`: who gets what at which step, which bytes that reads, and how often: an order that a person can audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._order_flags import MixFlag, OrderName, WeightsFlag, open_mixed_view, sampler_from_flags
from ._view_flags import ExcludeFlag, WhereFlag, WindowsFlag
from .console import human_bytes, plain, say

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet
    from ..loader.plan import Plan
    from ..loader.view import View

__all__ = ["plan_command"]


def plan_command(
    location: Annotated[Path, typer.Argument(metavar="SET", help="Folder of a packed set.")],
    ranks: Annotated[int, typer.Option(min=1, help="Data-parallel ranks.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of one rank's batch.")] = 1,
    accumulate: Annotated[int, typer.Option(min=1, help="Micro-batches a step.")] = 1,
    steps: Annotated[str, typer.Option(metavar="RANGE", help="Steps of the epoch: 3, 0:5, or -2: for the last two.")] = "0:5",
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order.")] = 0,
    epoch: Annotated[int, typer.Option(min=0, help="Epoch, from 0.")] = 0,
    shuffle: Annotated[bool, typer.Option(help="Shuffled, or in order.")] = True,
    sampler: Annotated[OrderName | None, typer.Option(help="The order, where it is another one.")] = None,
    block_items: Annotated[int | None, typer.Option(min=1, help="Items that stay together when shuffled.")] = None,
    span_blocks: Annotated[int, typer.Option(min=1, help="Blocks that are shuffled together.")] = 8,
    chunk_items: Annotated[int | None, typer.Option(min=1, help="Sticky: cut drives into chunks of so many items.")] = None,
    weights: WeightsFlag = None,
    mix: MixFlag = None,
    shares: Annotated[str | None, typer.Option(metavar="N,N,…", help="Mixture: each set's part, as in 2,1.")] = None,
    epoch_items: Annotated[int | None, typer.Option(min=1, help="Weighted, mixture: items of an epoch.")] = None,
    virtual_slots: Annotated[int, typer.Option(min=1, help="Mixture: slots of each set's own order.")] = 256,
    drop_last: Annotated[bool, typer.Option(help="Leave out an incomplete last batch.")] = False,
    windows: WindowsFlag = None,
    where: WhereFlag = None,
    exclude: ExcludeFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show which rank gets which frames at which step, what that reads, and the read amplification."""
    from ..formats import UsageError
    from ..loader.plan import Plan
    from ._order_facts import parse_steps

    if rank is not None and rank >= ranks:
        raise UsageError(f"--rank {rank} is none of the {ranks} ranks, 0 to {ranks - 1}; give --ranks")
    with open_mixed_view([location, *(mix or ())], windows, where, exclude) as (packed, view):
        order = sampler_from_flags(
            view,
            sampler or ("shuffled" if shuffle else "sequential"),
            block_items=block_items,
            span_blocks=span_blocks,
            chunk_items=chunk_items,
            weights=weights,
            shares=shares,
            epoch_items=epoch_items,
            virtual_slots=virtual_slots,
            drop_last=drop_last,
        )
        share = batch_size * accumulate
        plan = Plan(view.info, order, seed=seed, epoch=epoch, segments=[(share * ranks, 0)])
        if not plan.steps:
            raise UsageError(f"an epoch of {len(view)} items has no complete batch of {share * ranks}; use --no-drop-last")
        asked = parse_steps(steps, plan.steps)
        facts = plan_facts(packed, view, plan=plan, steps=asked, ranks=range(ranks) if rank is None else [rank], share=share)
    facts = {
        "set_id": packed.set_id,
        "view": view.view_id,
        "items": len(view),
        "drives": len(packed.drives),
        "sampler": dict(order.describe(view.info, epoch=epoch)),
        "seed": seed,
        "epoch": epoch,
        "ranks": ranks,
        "batch_size": batch_size,
        "accumulate": accumulate,
        "steps_in_epoch": plan.steps,
        **facts,
    }
    if as_json:
        say(json.dumps(facts))
    else:
        _print(facts)


def plan_facts(
    packed: PackedSet, view: View, *, plan: Plan, steps: range, ranks: Sequence[int], share: int
) -> dict[str, Any]:  # Any: JSON
    """Return the steps' facts by rank (each owns `share` slots), and what they read in total."""
    from ._order_facts import Reads, slot_facts

    by_item, by_rank = Reads(packed), {rank: Reads(packed) for rank in ranks}
    listed = []
    for step in steps:
        for rank in ranks:
            first = rank * share
            for facts in slot_facts(view, plan, step, first_slot=first, last_slot=first + share, per_item=True):
                by_item.add(facts.rows)
            (whole,) = slot_facts(view, plan, step, first_slot=first, last_slot=first + share, per_item=False)
            payloads, size = by_rank[rank].add(whole.rows)
            listed.append(
                {
                    "step": step,
                    "rank": rank,
                    "first_slot": first,
                    "items": whole.items.tolist(),
                    **({} if whole.sets is None else {"sets": whole.sets.tolist()}),
                    **({} if whole.is_first is None else {"is_first": whole.is_first.tolist()}),
                    "drives": whole.drives,
                    "frames": whole.numbers.tolist(),
                    "payloads": payloads,
                    "bytes": size,
                }
            )
    _, once = by_item.once()
    held = sum(reads.once()[1] for reads in by_rank.values())
    return {
        "steps": listed,
        "read": {
            "payloads": by_item.payloads,
            "bytes": by_item.bytes,
            "bytes_once": once,
            "read_amplification": by_item.bytes / once if once else 1.0,
            "read_amplification_rank_cache": held / once if once else 1.0,
        },
    }


def _print(facts: dict[str, Any]) -> None:  # Any: JSON
    sampler = ", ".join(f"{name} {value}" for name, value in facts["sampler"].items() if name != "kind")
    total = facts["ranks"] * facts["batch_size"] * facts["accumulate"]
    say(f"set {facts['set_id'][:12]}, view {facts['view'][:12]}: {facts['items']:,} items, {facts['drives']:,} drives")
    say(f"order: {facts['sampler']['kind']} ({sampler}), seed {facts['seed']}, epoch {facts['epoch']}")
    say(
        f"global batch {total} = {facts['ranks']} ranks × {facts['batch_size']}"
        + (f" × {facts['accumulate']} micro-batches" if facts["accumulate"] > 1 else "")
        + f"; {facts['steps_in_epoch']:,} steps an epoch"
    )
    step = None
    for line in facts["steps"]:
        if line["step"] != step:
            step = line["step"]
            say(f"\nstep {step}")
        last = line["first_slot"] + len(line["items"]) - 1
        sets, anew = line.get("sets", [None] * len(line["items"])), line.get("is_first", [False] * len(line["items"]))
        places = zip(sets, line["drives"], line["frames"], anew, strict=True)
        frames = "  ".join(_place(*place) for place in places)
        say(
            f"  rank {line['rank']:<4} slots {line['first_slot']}–{last}  {line['payloads']:6,} payloads "
            f"{human_bytes(line['bytes']):>9}   {frames}"
        )
    read = facts["read"]
    say(
        f"\nreads {human_bytes(read['bytes'])} item by item, {human_bytes(read['bytes_once'])} of them different: "
        f"read amplification {read['read_amplification']:.2f} without a cache, "
        f"{read['read_amplification_rank_cache']:.2f} if each rank keeps what it read"
    )


def _place(which: int | None, drive: str, frame: int, is_first: bool) -> str:
    """Write one item: the set it is from (mixtures), drive, frame, and * where a slot begins anew (sticky orders)."""
    if frame < 0:
        return "(padding)"
    return ("" if which is None else f"{which}/") + f"{plain(drive)}:{frame}" + "*" * is_first
