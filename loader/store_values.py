"""What reading from stores has come to, by its names in `metrics`: requests, bytes, latency, hits of the node cache."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from ..formats.joined_set import JoinedSet

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet

__all__ = ["store_values"]

_RECENT_S = 30.0


def store_values(packed: PackedSet, now_s: float) -> dict[str, float]:
    """Return the numbers, summed over the sets of a joined one; empty where all is on this machine.

    store_first_byte_s against store_answer_s says whether requests wait (latency) or bytes flow (bandwidth); both are medians of
    the last half minute.
    """
    sets = packed.sets if isinstance(packed, JoinedSet) else (packed,)
    found: dict[str, float] = {}
    for each in sets:
        if each.remote is None:
            continue
        payloads, reader = each.remote.payloads, each.remote.reader
        answers = reader.answered(now_s - _RECENT_S)
        counts: list[tuple[str, float]] = [
            ("requests_in_flight", reader.at_once),
            ("requests_running", reader.running),
            ("store_requests", reader.traffic.requests),
            ("store_requests_hedged", reader.traffic.hedged),
            ("fetched_bytes", reader.traffic.bytes),
            ("cache_hits", payloads.hits),
            ("cache_misses", payloads.misses),
        ]
        for name, value in counts:
            found[name] = found.get(name, 0.0) + value
        if answers:
            first, slow = reader.percentiles()
            for name, value in (
                ("store_first_byte_s", first),
                ("hedge_after_s", reader.hedging.after_s(p50_s=first, p98_s=slow, left_s=float("inf"))),
                ("store_answer_s", median(answers)),
            ):
                found[name] = max(found.get(name, 0.0), value)
    return found
