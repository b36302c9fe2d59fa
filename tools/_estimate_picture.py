"""How an estimate changes with the number of ranks, as one picture: the share of their time that ranks train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ._canvas import FUTURE, INK, MUTED, PANEL, PAST, Image, canvas, dot, line, polyline, text

__all__ = ["SizeOfJob", "draw_estimate"]

_HEIGHT, _WIDTH, _LEFT, _TOP, _RIGHT, _BOTTOM = 620, 1100, 110, 90, 60, 90
_TICKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class SizeOfJob:
    """What a job of so many ranks comes to."""

    ranks: int
    samples_per_s: float
    stall_share: float
    binding: str


def draw_estimate(sizes: Sequence[SizeOfJob], title: str) -> Image:
    """Return a chart as (H, W, 3) RGB: ranks on a logarithmic axis, 1 − stall share, and what binds where it changes."""
    page = canvas(_HEIGHT, _WIDTH)
    page[_TOP : _HEIGHT - _BOTTOM, _LEFT : _WIDTH - _RIGHT] = PANEL
    text(page, title, (_LEFT, 52), 24, weight=600)
    text(page, "share of their time that ranks train, by number of ranks", (_LEFT, 76), 16, colour=MUTED)
    scale = np.log2([size.ranks for size in sizes])
    span = max(float(scale[-1] - scale[0]), 1e-9)
    inner = _WIDTH - _LEFT - _RIGHT - 60
    x = _LEFT + 30 + inner * (scale - scale[0]) / span if len(sizes) > 1 else np.array([_LEFT + 30.0])
    low = _HEIGHT - _BOTTOM
    y = low - (low - _TOP) * (1 - np.array([size.stall_share for size in sizes]))
    for tick in _TICKS:
        at = low - (low - _TOP) * tick
        line(page, np.array([_LEFT, at]), np.array([_WIDTH - _RIGHT, at]), MUTED)
        text(page, f"{tick:.0%}", (_LEFT - 12, at + 6), 16, colour=MUTED, align="right")
    polyline(page, np.column_stack([x, y]), FUTURE, 3)
    before = ""
    for size, across, up in zip(sizes, x.tolist(), y.tolist(), strict=True):
        dot(page, np.array([across, up]), 5, FUTURE)
        text(page, f"{size.ranks:,}", (across, low + 28), 16, colour=INK, align="centre")
        text(page, f"{size.samples_per_s:,.0f}/s", (across, low + 52), 14, colour=MUTED, align="centre")
        if size.binding != before:
            text(page, size.binding, (across + 8, up + (26 if up < _TOP + 40 else -14)), 16, colour=PAST)
            before = size.binding
    return page
