"""What a peer's state is worth: noted in one process in the middle of an epoch, restored in another, the next batches compared.

`python -m peers.measure_resume '<JSON>'` does one half and prints one line. "note" reads W3 once and keeps a state at each place
and a print of every batch that follows; "restore" makes a new loader, gives it a state and prints what it delivers. When an
epoch ends the next one follows, so that a place near the end is compared over as many batches.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .contract import Peer, Resumable, Run
from .measure_one import MARK
from .registry import load_peer
from .samples import one_thread

__all__ = ["main", "note", "restore"]


def note(task: dict[str, Any], peer: Peer, run: Run) -> dict[str, Any]:
    """Keep a state after each of `places` batches in `states`, and the prints of the next `batches` of each."""
    loader = _opened(peer, run)
    places: list[int] = task["places"]
    prints: list[str] = []
    bytes_of: list[int] = []
    stream = _endless(loader)
    for number in range(places[-1] + task["batches"]):
        if number in places:
            path = Path(task["states"], f"{places.index(number)}.pt")
            torch.save(loader.state(), path)
            bytes_of.append(path.stat().st_size)
        prints.append(_print(next(stream)))
    return {"prints": [prints[place : place + task["batches"]] for place in places], "state_bytes": bytes_of}


def restore(task: dict[str, Any], peer: Peer, run: Run) -> dict[str, Any]:
    """Return the time to the first batch after the restore, and the prints of the next `batches`."""
    begin = time.monotonic()
    loader = _opened(peer, run)
    loader.restore(torch.load(task["state"], weights_only=True))
    stream = _endless(loader)
    prints = [_print(next(stream))]
    first_batch_s, process_s = time.monotonic() - begin, time.time() - task["started"]
    prints += [_print(next(stream)) for _ in range(task["batches"] - 1)]
    return {"first_batch_s": first_batch_s, "process_s": process_s, "prints": prints}


def _opened(peer: Peer, run: Run) -> Resumable:
    if peer.resumable is None:
        raise ValueError(f"{peer.name} keeps no state")
    torch.manual_seed(1)  # some peers draw their order from torch's generator and keep that in their state
    return peer.resumable(run)


def _endless(loader: Resumable) -> Iterator[Any]:
    empty = 0
    while empty < 2:
        empty += 1
        for batch in loader.batches():
            empty = 0
            yield batch
    raise RuntimeError("two epochs in a row delivered nothing")


def _print(batch: Any) -> str:
    """Name a batch by its stamps: samples of W3 differ in them."""
    return hashlib.blake2b(np.asarray(batch["stamp"]).tobytes(), digest_size=8).hexdigest()


def main() -> None:
    """Do the half that the JSON argument asks for."""
    task = json.loads(sys.argv[1])
    one_thread()
    peer, run = load_peer(task["peer"]), Run(task["workload"], Path(task["data"]), Path(task["packed"]))
    figures = (note if task["do"] == "note" else restore)(task, peer, run)
    print(MARK + json.dumps(figures), flush=True)
    os._exit(0)  # some peers' workers and threads outlive them; the figures are out


if __name__ == "__main__":
    main()
