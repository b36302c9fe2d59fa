"""`headway replay`: the ids and windows that a run saw at a step, from nothing but the set and a state it saved.

The view is given by the same flags as its run's (windows, filter, tombstones); its id must be the state's, so a replay that
runs shows the very order of the run, whichever machine, rank count or headway process asks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._order_flags import MixFlag, WeightsFlag, open_mixed_view, sampler_from_state
from ._view_flags import ExcludeFlag, WhereFlag, WindowsFlag, read_json
from .console import plain, report, say

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet
    from ..loader.view import View

__all__ = ["replay_command"]

# A picture of more items than this is too tall to look at.
_PICTURED = 8
_PICTURE_WIDTH = 1600


def replay_command(
    location: Annotated[Path, typer.Argument(metavar="SET", help="Folder of a packed set.")],
    state: Annotated[Path, typer.Option(metavar="FILE", help="A state as JSON: what loader.state_dict() or a batch gave.")],
    step: Annotated[
        int | None, typer.Option(help="Step of the state's epoch; −1 is its last. Default: the last one received.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Data-parallel ranks of the run.")] = 1,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank; default: the whole global batch.")] = None,
    windows: WindowsFlag = None,
    where: WhereFlag = None,
    exclude: ExcludeFlag = None,
    weights: WeightsFlag = None,
    mix: MixFlag = None,
    quarantine: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The run's ledger (LoaderOptions.quarantine): say what became of bad items."),
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help=f"Draw the first {_PICTURED} items (.png or .jpg).")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, each payload's row and stamp included.")
    ] = False,
) -> None:
    """Show the ids and windows that a run saw at a step of the epoch its state belongs to."""
    with open_mixed_view([location, *(mix or ())], windows, where, exclude) as (packed, view):
        facts = replay_facts(view, read_json(state), step=step, ranks=ranks, rank=rank, weights=weights)
        if quarantine is not None:
            _add_faults(facts, quarantine)
        if png is not None:
            _draw(packed, facts, png)
    if as_json:
        say(json.dumps(facts))
    else:
        _print(facts)


def replay_facts(
    view: View,
    state: object,
    *,
    step: int | None = None,
    ranks: int = 1,
    rank: int | None = None,
    weights: Path | None = None,
) -> dict[str, Any]:  # Any: JSON
    """Return which items a step of the state's epoch holds, and every payload of their windows."""
    from ..formats import StateError, UsageError
    from ..loader.state import State
    from ._order_facts import parse_steps, slot_facts, window_facts

    saved = State.from_json(state)
    if saved.view != view.view_id:
        raise StateError(
            f"cannot replay: the state's view is {saved.view!r}, this one's {view.view_id!r} ({len(view)} items of set "
            f"{view.packed.set_id[:12]}…); give the set (and --mix), --windows, --where and --exclude of the run that saved it"
        )
    sampler = sampler_from_state(saved.sampler, view, weights=weights)
    inside = saved.inside
    ranks_then, accumulation = (1, 1) if inside is None else (inside.ranks, inside.accumulation)
    whole = saved.resume(
        view.info, sampler, seed=saved.seed, batch_size=saved.batch_size, ranks=ranks_then, accumulation=accumulation
    )
    plan = whole.plan(view.info, sampler)
    received = saved.steps_done + (saved.inside is not None)
    chosen = parse_steps(str(max(0, received - 1) if step is None else step), plan.steps)[0]
    slots = _batch_size_at(saved.segments, chosen)
    if rank is not None and rank >= ranks:
        raise UsageError(f"--rank {rank} is none of the {ranks} ranks, 0 to {ranks - 1}; give --ranks")
    if slots % ranks:
        raise UsageError(f"--ranks {ranks} do not divide the global batch of {slots} at step {chosen}")
    first, last = (0, slots) if rank is None else (rank * slots // ranks, (rank + 1) * slots // ranks)
    (found,) = slot_facts(view, plan, chosen, first_slot=first, last_slot=last, per_item=False)
    return {
        "set_id": view.packed.set_id,
        "view": view.view_id,
        "sampler": dict(saved.sampler),
        "seed": saved.seed,
        "epoch": saved.epoch,
        "step": chosen,
        "steps_in_epoch": plan.steps,
        "received": chosen < received,
        "global_batch": slots,
        "slots": [
            {
                "slot": first + at,
                "rank": (first + at) * ranks // slots,
                "id": int(item),
                "occurrence": int(found.occurrence[at]),
                **({} if found.sets is None else {"set": int(found.sets[at])}),
                **({} if found.is_first is None else {"is_first": bool(found.is_first[at])}),
                "drive": found.drives[at],
                "frame": int(found.numbers[at]),
                "global_frame": int(found.frames[at]),
                "windows": window_facts(view, plan, found, at) if item >= 0 else {},
            }
            for at, item in enumerate(found.items.tolist())
        ],
    }


def _add_faults(facts: dict[str, Any], ledger: Path) -> None:  # Any: JSON
    """Say for each slot what the run's fault policy decided about its item at this very step; the last decision last."""
    from ..loader.quarantine import quarantine_entries

    here = [facts["set_id"], facts["epoch"], facts["step"]]
    entries = [entry for entry in quarantine_entries(ledger) if [entry["set"], entry["epoch"], entry["step"]] == here]
    for slot in facts["slots"]:
        slot["faults"] = [entry for entry in entries if entry["item"] == slot["id"]]


def _batch_size_at(segments: tuple[tuple[int, int], ...], step: int) -> int:
    """Return the global batch size that `step` was, or will be, taken with."""
    end = 0
    for batch_size, steps in segments[:-1]:
        end += steps
        if step < end:
            return batch_size
    return segments[-1][0]


def _print(facts: dict[str, Any]) -> None:  # Any: JSON
    say(
        f"epoch {facts['epoch']}, step {facts['step']} of {facts['steps_in_epoch']} "
        f"({'received' if facts['received'] else 'not yet received'} when the state was saved), "
        f"global batch {facts['global_batch']}, {facts['sampler']['kind']} order, seed {facts['seed']}"
    )
    for slot in facts["slots"]:
        if slot["id"] < 0:
            say(f"\nslot {slot['slot']} (rank {slot['rank']}): padding")
            continue
        repeat = f", occurrence {slot['occurrence']}" if slot["occurrence"] else ""
        where = f"set {slot['set']}, " if "set" in slot else ""
        where += f"drive {plain(slot['drive'])}, frame {slot['frame']}" + (", begins anew" if slot.get("is_first") else "")
        say(f"\nslot {slot['slot']} (rank {slot['rank']}): id {slot['id']}, {where}{repeat}")
        for fault in slot.get("faults", ()):
            outcome = f"replaced by id {fault['replaced']}" if fault.get("replaced", -1) >= 0 else fault["action"]
            say(f"  bad: {plain(outcome)}: {plain(fault.get('reason', ''))}")
        for name, sensors in slot["windows"].items():
            for sensor, places in sensors.items():
                label = plain(sensor) if len(sensors) == 1 and sensor == name else f"{plain(name)}/{plain(sensor)}"
                say(f"  {label:28} {' '.join(map(_place, places))}")
    say("\neach payload: step from the frame's own, @ stamp in s; (…) a repeat, – nothing there, and its sync error where not 0")


def _place(place: dict[str, Any]) -> str:  # Any: JSON
    if place["row"] < 0:
        return f"{place['step']:+d}–"
    error = f"({place['sync_error_ns'] / 1e6:+.1f} ms)" if place["sync_error_ns"] else ""
    text = f"{place['step']:+d}@{place['stamp'] // 10**9}.{place['stamp'] % 10**9:09d}{error}"
    return text if place["valid"] else f"({text})"


def _draw(packed: PackedSet, facts: dict[str, Any], path: Path) -> None:  # Any: JSON
    """Draw the items' frames below one another. Augmentation is not part of it: the picture shows what was read."""
    import numpy as np

    from ._set_scene import scene_from_set
    from .picture import overview, write_picture

    frames = [slot["global_frame"] for slot in facts["slots"] if slot["id"] >= 0][:_PICTURED]
    if not frames:
        report(f"nothing to draw: step {facts['step']} holds padding only")
        return
    write_picture(np.concatenate([overview(scene_from_set(packed, frame), width=_PICTURE_WIDTH) for frame in frames]), path)
    report(f"wrote {str(path)!r}: {len(frames)} of {len(facts['slots'])} slots")
