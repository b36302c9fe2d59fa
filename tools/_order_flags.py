"""Which order is meant: the sampler by flags or by a state, and the sets and weight tables that it needs beside the first set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from ..formats import UsageError
from ._view_flags import open_view

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet
    from ..loader.sampler import Sampler
    from ..loader.view import View
    from ..loader.weighted import Weighted

__all__ = ["MixFlag", "OrderName", "WeightsFlag", "open_mixed_view", "sampler_from_flags", "sampler_from_state"]

OrderName = Literal["shuffled", "sequential", "evaluation", "weighted", "mixture", "sticky"]
WeightsFlag = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Weighted order: a table (.npy, WeightTable.save) or a WeightJournal's folder."),
]
MixFlag = Annotated[
    list[Path] | None, typer.Option("--mix", metavar="SET", help="Another set after SET, as in headway.mix; repeat for more.")
]


@contextmanager
def open_mixed_view(
    locations: Sequence[Path], windows: Path | None, where: str | None, exclude: Sequence[str] | None
) -> Iterator[tuple[PackedSet, View]]:
    """Open one set, or several as `headway.mix` does, and the view that the flags describe; filters are for all of them."""
    from ..formats.packed_set import open_set
    from ..loader.mixed import join_views

    with ExitStack() as opened:
        sets = [opened.enter_context(open_set(location)) for location in locations]
        if len(sets) == 1:
            yield sets[0], open_view(sets[0], windows, where, exclude)
            return
        view = join_views([open_view(packed, windows, where, _of_set(packed, sets, exclude or ())) for packed in sets])
        yield view.packed, view


def sampler_from_flags(
    view: View,
    kind: str,
    *,
    block_items: int | None,
    span_blocks: int,
    chunk_items: int | None,
    weights: Path | None,
    shares: str | None,
    epoch_items: int | None,
    virtual_slots: int,
    drop_last: bool,
) -> Sampler:
    """Return the sampler that flags describe; flags of another sampler are refused rather than ignored."""
    from ..loader.mixture import Mixture
    from ..loader.sequential import Evaluation, Sequential
    from ..loader.shuffled import Shuffled
    from ..loader.sticky import SlotSticky

    if kind not in get_args(OrderName):
        raise UsageError(f"--sampler {kind!r} is none of {', '.join(get_args(OrderName))}")
    for name, value, kinds in (
        ("--weights", weights, ("weighted",)),
        ("--shares", shares, ("mixture",)),
        ("--chunk-items", chunk_items, ("sticky",)),
        ("--epoch-items", epoch_items, ("weighted", "mixture")),
        ("--block-items", block_items, ("shuffled", "mixture")),
        ("--drop-last", drop_last or None, ("shuffled", "sequential", "weighted", "mixture", "sticky")),
    ):
        if value is not None and kind not in kinds:
            raise UsageError(f"{name} has no meaning in {kind} order; it goes with --sampler {' or '.join(kinds)}")
    if kind == "weighted":
        return weighted(weights, epoch_items=epoch_items, drop_last=drop_last)
    if kind == "mixture":
        return Mixture(
            weights=_shares(shares, len(view.info.sets)),
            epoch_items=epoch_items,
            virtual_slots=virtual_slots,
            block_items=block_items,
            span_blocks=span_blocks,
            drop_last=drop_last,
        )
    if kind == "sticky":
        return SlotSticky(chunk_items=chunk_items, drop_last=drop_last)
    if kind == "shuffled":
        return Shuffled(block_items=block_items, span_blocks=span_blocks, drop_last=drop_last)
    return Sequential(drop_last=drop_last) if kind == "sequential" else Evaluation()


def sampler_from_state(described: Mapping[str, Any], view: View, *, weights: Path | None) -> Sampler:  # Any: JSON
    """Return the sampler that a state describes; `State.resume` compares what becomes of it with the state."""
    from ..loader.mixture import Mixture
    from ..loader.sequential import Evaluation, Sequential
    from ..loader.shuffled import Shuffled, default_block_items
    from ..loader.sticky import SlotSticky

    def number(name: str) -> int | None:
        value = described.get(name)
        if value is not None and not isinstance(value, int):
            raise UsageError(f"cannot rebuild the order: sampler.{name} must be a whole number or a truth value, found {value!r}")
        return value

    def numbers(name: str, values: object) -> list[int]:
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise UsageError(f"cannot rebuild the order: sampler.{name} must be a list of whole numbers, found {values!r:.100}")
        return values

    kind, drop_last = described.get("kind"), bool(number("drop_last"))
    if kind == "shuffled":
        return Shuffled(block_items=number("block_items"), span_blocks=number("span_blocks") or 0, drop_last=drop_last)
    if kind == "sequential":
        return Sequential(drop_last=drop_last)
    if kind == "evaluation":
        return Evaluation()
    if kind == "sticky":
        return SlotSticky(chunk_items=number("chunk_items"), drop_last=drop_last)
    if kind == "weighted":
        return weighted(weights, epoch_items=number("epoch_items"), drop_last=drop_last)
    if kind != "mixture":
        raise UsageError(f"cannot rebuild the order of a {kind!r} sampler: this headway knows {', '.join(get_args(OrderName))}")
    sets, blocks = described.get("sets"), numbers("block_items", described.get("block_items"))
    slots = numbers("sets", [part[0] for part in sets if isinstance(part, list) and part] if isinstance(sets, list) else None)
    defaults = [default_block_items(part) for part in view.info.sets]
    return Mixture(
        weights=tuple(numbers("shares", described.get("shares"))),
        epoch_items=number("epoch_items"),
        # A set of fewer items has fewer slots, so the most of any set stands for all.
        virtual_slots=max(slots, default=1),
        block_items=None if blocks == defaults else max(blocks, default=1),
        span_blocks=number("span_blocks") or 0,
        drop_last=drop_last,
    )


def weighted(path: Path | None, *, epoch_items: int | None, drop_last: bool) -> Weighted:
    """Return the weighted sampler of a table's file or of a journal's folder."""
    from ..loader.weighted import Weighted, WeightJournal
    from ..loader.weights import WeightTable

    if path is None:
        raise UsageError("a weighted order needs its weights: give --weights, the table's .npy or the journal's folder")
    if path.is_dir():
        return WeightJournal(path).sampler(epoch_items=epoch_items, drop_last=drop_last)
    return Weighted(table=WeightTable.open(path), epoch_items=epoch_items, drop_last=drop_last)


def _shares(text: str | None, sets: int) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        found = ()
    if not found or len(found) != sets:
        raise UsageError(f"--shares {text!r}: expected {max(sets, 2)} numbers, one for SET and each --mix, such as --shares 2,1")
    return found


def _of_set(packed: PackedSet, sets: Sequence[PackedSet], exclude: Sequence[str]) -> list[str]:
    """Return the tombstones that name a drive of `packed`; one that no set knows is left to the view to refuse."""
    names = [{drive.name for drive in each.drives} for each in sets]
    mine = {drive.name for drive in packed.drives}

    def drive(text: str) -> str:
        name, colon, frame = text.rpartition(":")
        return name if colon and frame.isdecimal() and all(text not in each for each in names) else text

    return [text for text in exclude if drive(text) in mine or all(drive(text) not in each for each in names)]
