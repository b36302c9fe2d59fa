"""How many decode threads a rank should run: the cores it may really use, shared fairly with the ranks beside it.

Loaders of one process that are iterated at the same time (training and validation) share the rank's threads, too.
"""

from __future__ import annotations

import os
import threading

from ..formats.cores import usable_cores

__all__ = ["Claim", "decode_threads", "usable_cores"]


def decode_threads(local_size: int, cores: int | None = None) -> int:
    """Return the threads for one of `local_size` ranks on a node.

    From four cores a rank on, one is left to the trainer: over-subscribed cores slow it more than a late batch does.
    """
    share = (usable_cores() if cores is None else cores) // local_size
    return max(1, share - 1 if share >= 4 else share)


class Claim:
    """One iterator's claim to `threads` decode threads, which it shares with all others of this process that have not ended."""

    def __init__(self, threads: int, *, at_least: int = 1) -> None:
        global _claims
        self.threads, self._at_least = threads, at_least
        """What is claimed; may be changed while the iterator lives."""
        self._has_ended = False
        with _lock:
            _claims = (*_claims, self)

    def allowed(self) -> int:
        """Return how many threads may work now; changes as other iterators come and go."""
        claims = _claims
        if len(claims) < 2 or self._has_ended:
            return max(self._at_least, self.threads)
        each, rest = divmod(self.threads, len(claims))
        return max(self._at_least, each + (claims.index(self) < rest))

    def end(self) -> None:
        """Leave the threads to the others; harmless when repeated."""
        global _claims
        with _lock:
            self._has_ended = True
            # All that have ended: making this tuple may finalise another iterator, whose claim ends in here.
            _claims = tuple(claim for claim in _claims if not claim._has_ended)


# Replaced as a whole under the lock, so that reading needs none.
_claims: tuple[Claim, ...] = ()
_lock = threading.RLock()  # a finaliser may end a claim in a thread that holds it


def _forget() -> None:
    """Drop the parent's claims in a forked child, which has none of its threads."""
    global _claims, _lock
    _claims, _lock = (), threading.RLock()


os.register_at_fork(after_in_child=_forget)
