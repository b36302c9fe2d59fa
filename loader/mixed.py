"""Several opened sets as one dataset, for mixtures: items of one set after those of another, in batches of one structure.

Each set keeps its own view (filters, tombstones). What a batch holds must be the same in all of them, so sensors and windows
that are asked for have to agree; where they do not, the error says what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import PackedSet, UsageError
from ..formats.joined_set import JoinedSet
from .dataset import Dataset
from .native_decode import default_decoder
from .sampler import ViewInfo
from .view import View

__all__ = ["JoinedView", "Mixed", "join_views", "mix"]

Int64 = NDArray[np.int64]


def mix(datasets: Sequence[Dataset]) -> Mixed:
    """Return one dataset of several opened ones, to be drawn from in proportions with `DataLoader(sampler=Mixture(…))`.

    Args:
        datasets: what `headway.open` returned, in the order of the mixture's weights; opened with the same windows, images and
            padding. `where` and `exclude` are each set's own.

    Raises:
        UsageError: a sensor that is read, a window, or how images look differs between them.

    >>> both = headway.mix([headway.open(drives_set), headway.open(drives_set, exclude=["drive-1"])])
    >>> loader = headway.DataLoader(both, batch_size=6, sampler=headway.Mixture(weights=(2, 1)))
    >>> next(iter(loader))["set"].tolist()
    [0, 0, 0, 0, 1, 1]
    """
    return Mixed(datasets)


class Mixed(Dataset):
    """The items of several datasets end to end, those of the first one first; `batch["set"]` says which one an item is from."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:  # made of datasets that are open, not of a packed set
        self.datasets = tuple(datasets)
        if not self.datasets or not all(isinstance(each, Dataset) and not isinstance(each, Mixed) for each in self.datasets):
            raise UsageError(f"headway.mix takes datasets of headway.open, one or more; found {list(datasets)!r:.200}")
        first = self.datasets[0]
        for number, each in enumerate(self.datasets[1:], 1):
            for what, mine, theirs in (("images", first.images, each.images), ("padding", first.padding, each.padding)):
                _check_alike(what, list(mine), list(theirs), f"datasets 0 and {number}")
        self.images, self.padding = first.images, first.padding
        self.view = join_views([each.view for each in self.datasets])
        self.packed = self.view.packed
        self._assembler = self.assembler(default_decoder())

    def __reduce__(self) -> tuple[Any, ...]:  # Any: the shape pickle asks for
        return Mixed, (self.datasets,)

    def __repr__(self) -> str:
        return f"Mixed({list(self.datasets)!r})"


class JoinedView(View):
    """The items of several views end to end; global frames are those of the joined set."""

    def __init__(self, packed: JoinedSet, views: Sequence[View]) -> None:
        super().__init__(packed, windows=views[0].windows)
        self.packed: JoinedSet = packed
        self._views = tuple(views)

    @property
    def info(self) -> ViewInfo:
        """What a plan needs to know, each set's own included."""
        return self._joined_info

    def frames(self, items: Int64) -> Int64:
        """Return the joined set's frame numbers of `items`; −1 stays −1."""
        items = np.asarray(items, np.int64)
        starts = self._item_starts
        if items.size and (items.min() < -1 or items.max() >= starts[-1]):
            bad = int(items[(items < -1) | (items >= starts[-1])][0])
            raise UsageError(f"the mixed view has no item {bad}; it has items 0 to {starts[-1] - 1} (−1 is padding)")
        frames = np.full(items.shape, -1, np.int64)
        for view, first, end, offset in zip(self._views, starts[:-1], starts[1:], self.packed.set_starts[:-1], strict=True):
            here = (items >= first) & (items < end)
            if here.any():
                frames[here] = view.frames(items[here] - first) + offset
        return frames

    def items_of(self, frames: Int64) -> Int64:
        """Return the items that are any of `frames`, ascending."""
        found = []
        starts = self.packed.set_starts
        for view, first, begin, end in zip(self._views, self._item_starts[:-1], starts[:-1], starts[1:], strict=True):
            here = frames[(frames >= begin) & (frames < end)]
            if len(here):
                found.append(view.items_of(here - begin) + first)
        return np.concatenate(found) if found else np.empty(0, np.int64)

    @cached_property
    def _joined_info(self) -> ViewInfo:
        return ViewInfo.joined([view.info for view in self._views])

    @cached_property
    def _item_starts(self) -> Int64:
        return np.cumsum([0, *(view.items for view in self.info.sets)], dtype=np.int64)


def join_views(views: Sequence[View]) -> JoinedView:
    """Return the view of several end to end, whose windows and the sensors that they read must agree."""
    first = views[0]
    joined = JoinedSet([view.packed for view in views if isinstance(view.packed, PackedSet)])
    for number, view in enumerate(views[1:], 1):
        places = f"{str(joined.sets[0].location)!r} and {str(joined.sets[number].location)!r}"
        _check_alike("windows", _windows(first), _windows(view), places)
    for name in first.names:
        for sensor in first.sensors(name):
            if sensor in joined.differences:
                raise UsageError(
                    f"cannot mix: window {name!r} reads sensor {sensor!r}, which is not the same in all sets: "
                    f"{joined.differences[sensor]}; open the sets with windows= that leave it out, or pack them alike"
                )
    return JoinedView(joined, views)


def _check_alike(what: str, mine: list[Any], theirs: list[Any], which: str) -> None:  # Any: windows as JSON, Images, Padding
    """Refuse what would give batches of different structures."""
    if mine == theirs:
        return
    pairs = [pair for pair in zip_longest(mine, theirs, fillvalue="none") if pair[0] != pair[1]]
    raise UsageError(
        f"cannot mix: {which} differ in {what}: {str(pairs[0][0])[:300]} against {str(pairs[0][1])[:300]}; "
        f"open them with the same {what}="
    )


def _windows(view: View) -> list[Any]:  # Any: JSON with the sensors that patterns mean in this set
    return [
        {**window.to_json(), "means": list(view.sensors(name))} for window, name in zip(view.windows, view.names, strict=True)
    ]
