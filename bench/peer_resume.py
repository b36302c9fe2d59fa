"""Resuming W3 in the middle of an epoch, with every loader that keeps a state: how long, how big, and whether it is exact.

One process notes states at 1 %, 50 % and 99 % of an epoch and what follows each; for each a new process restores and goes on.
The batches that follow are compared one by one, at 99 % into the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..formats import UsageError
from .peer_rounds import PeerStore, known_peers
from .peers.contract import Peer
from .peers.registry import PEERS, load_peer
from .peers.samples import BATCH, Stored

__all__ = ["SHARES", "measure_peers_resume", "peers_with_state"]

SHARES = (0.01, 0.5, 0.99)
_NOTE_LIMIT_S = 180.0
_RESTORE_LIMIT_S = 90.0


def peers_with_state() -> list[str]:
    """Return the names of the peers that can resume, headway among them."""
    return [name for name in PEERS if load_peer(name).resumable is not None]


def measure_peers_resume(
    names: Sequence[str], data: Path, cache: Path, *, batches: int = 100, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Return a row for each peer and place: seconds to the first batch, state bytes, batches that came as they should.

    Raises:
        UsageError: the data is not W3, or a peer is unknown or keeps no state.
    """
    stored = Stored(data)
    if stored.name != "W3":
        raise UsageError(f"resume compares loaders over W3, and {str(data)!r} is {stored.name}; run `headway bench make-data W3`")
    peers = known_peers(names)
    if stateless := [peer.name for peer in peers if peer.resumable is None]:
        raise UsageError(f"{', '.join(stateless)} keep no state; those that do: {', '.join(peers_with_state())}")
    steps = len(stored) // BATCH["W3"]
    places = [min(int(steps * share), steps - 1) for share in SHARES]
    store = PeerStore(stored.name, data, cache, say=say)
    rows = []
    for peer in peers:
        try:
            store.pack(peer)
            rows += _resume(store, peer, places, batches, say)
        except UsageError as error:
            rows.append({"peer": peer.name, "cannot": str(error)})
    return rows


def _resume(
    store: PeerStore, peer: Peer, places: Sequence[int], batches: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    say(f"{peer.name}: noting states after {', '.join(map(str, places))} batches")
    states = store.packed(peer).with_name(f"{peer.name}.states")
    states.mkdir(exist_ok=True)
    task: Mapping[str, Any] = {"do": "note", "places": list(places), "batches": batches, "states": str(states)}
    noted = store.run(peer, task, limit_s=_NOTE_LIMIT_S, module="measure_resume")
    if "error" in noted:
        raise UsageError(noted["error"])
    rows = []
    for number, (share, place) in enumerate(zip(SHARES, places, strict=True)):
        task = {"do": "restore", "state": str(states / f"{number}.pt"), "batches": batches}
        found = store.run(peer, task, limit_s=_RESTORE_LIMIT_S, module="measure_resume")
        row: dict[str, Any] = {"peer": peer.name, "share": share, "step": place, "state_bytes": noted["state_bytes"][number]}
        if "error" in found:
            rows.append(row | {"cannot": found["error"]})
            continue
        wanted = noted["prints"][number]
        same = sum(a == b for a, b in zip(found["prints"], wanted, strict=True))
        rows.append(
            row
            | {
                "first_batch_s": found["first_batch_s"],
                "process_s": found["process_s"],
                "batches_compared": batches,
                "batches_same": same,
                "exact": same == batches,
            }
        )
    return rows
