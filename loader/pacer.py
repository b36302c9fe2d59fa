"""One iterator's pace, live: what `pace` decides, from what its consumer's steps and this node's other ranks show.

The consumer's thread reports each step and thereby renews the decisions, which decode threads read: how many of them may work,
and how many batches to make ahead. Times are handed in (CLOCK_MONOTONIC), so that tests need no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median
from typing import Final

from .arbiter import Seat, take_seat
from .cores import Claim
from .decode import Decoder
from .native_decode import NativeDecoder
from .options import LoaderOptions
from .pace import Governor, Pace, deadline, govern, hold
from .topology import Topology

__all__ = ["Pacer", "begin_pacer"]

_ROUND_STEPS: Final = 8
_ROUND_S: Final = 0.5  # a round is both, so that one odd step decides nothing
_SHARE_S: Final = 0.2  # between two looks at the other ranks: a quarter of a millisecond each


class Pacer:
    """Decides threads and batches ahead for one iterator.

    Args:
        threads: decode threads of this rank when all ranks of the node are alike.
        is_chosen: whether that number is ours to change; a number that the user gave is kept.
        prefetch: batches ahead as the user gave them; None: chosen.
        memory_bytes: budget of batch memory.
        seat: this rank's place among those of its node, closed by the pacer; None: alone.
        node_threads: decode threads of the whole node, which ranks with a seat share.
        resize: told the number of threads when it changes, in the consumer's thread.
    """

    def __init__(
        self,
        pace: Pace,
        *,
        threads: int,
        is_chosen: bool,
        prefetch: int | None,
        memory_bytes: int,
        seat: Seat | None = None,
        node_threads: int = 0,
        resize: Callable[[int], None] | None = None,
    ) -> None:
        self._pace, self._prefetch, self._memory_bytes = pace, prefetch, memory_bytes
        self._seat = seat if is_chosen and threads else None
        self._node_threads = max(node_threads, threads)
        self._is_governed = is_chosen and pace.governor and threads > 0
        self._resize = resize
        self._given = threads
        self.most_threads = min(2 * threads, self._node_threads) if self._seat is not None else threads
        """Threads to start: more than `threads`, where other ranks may leave theirs to this one."""
        self.threads = threads
        """Decode threads that may work now."""
        self.batches = 2 if prefetch is None else prefetch
        """Batches to make ahead of the one asked for."""
        self.own_s = 0.0
        """The consumer's own time a step, without waiting: median of the last round."""
        self._governor = Governor(threads)
        self._own: list[float] = []
        self._waits: list[float] = []
        self._ready = 0
        self._asked_s = self._delivered_s = self._shared_s = self._waited_s = 0.0
        self._round_began_s = 0.0
        self._is_first = True

    def learn_from(self, other: Pacer) -> None:
        """Begin with what the pacer of an earlier epoch has found out, where that was about as many threads."""
        if self._is_governed and other._is_governed and other._given == self._given:
            self._governor = other._governor
        self.own_s = other.own_s
        if self._prefetch is None and other._prefetch is None:
            self.batches = other.batches

    def asked(self, now_s: float, ready: int) -> None:
        """The consumer asks for a batch while `ready` lie ready."""
        if not self._is_first:
            self._own.append(now_s - self._delivered_s)
        self._asked_s, self._ready = now_s, ready
        if self._seat is not None and not ready:
            self._say(now_s, waits=True)

    def delivered(self, now_s: float, batch_bytes: int) -> None:
        """The consumer got its batch, of so many bytes."""
        if self._is_first:  # the first batch was waited for by nobody's fault
            self._is_first, self._round_began_s = False, now_s
        else:
            self._waited_s = now_s - self._asked_s
            self._waits.append(self._waited_s)
        self._delivered_s = now_s
        if self._seat is not None:
            self._say(now_s, waits=False)
        if len(self._own) >= _ROUND_STEPS and now_s - self._round_began_s >= _ROUND_S:
            self._decide(now_s, batch_bytes)
        elif self._seat is not None and now_s - self._shared_s >= _SHARE_S:
            self._set_threads(now_s)

    def values(self) -> dict[str, float]:
        """Return the current value of everything chosen here, by its name."""
        return {"batches_ahead": float(self.batches), "decode_threads": float(self.threads), "own_step_s": self.own_s}

    def close(self) -> None:
        """Leave the seat; harmless when repeated."""
        if self._seat is not None:
            self._seat.close()
            self._seat = None

    def _decide(self, now_s: float, batch_bytes: int) -> None:
        self.own_s, wait_s = median(self._own), fmean(self._waits)
        self._own.clear()
        self._waits.clear()
        self._round_began_s = now_s
        if self._prefetch is None:
            # The set is on this machine: its page cache holds what is encoded, so that part is not ours to hold.
            held = hold(
                self._pace.headway_s,
                self.own_s,  # without waits: a loader that is late must not hold less for it
                batch_bytes=batch_bytes,
                encoded_bytes=0,
                memory_bytes=self._memory_bytes,
            )
            self.batches = int(held.batches)
        if self._is_governed:
            self._governor = govern(self._governor, own_s=self.own_s, wait_s=wait_s, most=self._given)
        self._set_threads(now_s)

    def _set_threads(self, now_s: float) -> None:
        threads = int(self._governor.threads) if self._is_governed else self._given
        if self._seat is not None:
            self._shared_s = now_s
            share = self._seat.decode_threads(now_s, self._node_threads)
            # A rank that asks for none keeps one: it may ask again before it looks again.
            threads = min(share, self.most_threads) if share > self._given else max(1, min(share, threads))
        if threads != self.threads:
            self.threads = threads
            if self._resize is not None:
                self._resize(threads)

    def _say(self, now_s: float, *, waits: bool) -> None:
        assert self._seat is not None
        step_s = self.own_s or now_s - self._delivered_s
        due = now_s if waits else float(deadline(now_s + step_s, step_s, self._ready))
        needed = self.most_threads if self._ready < self.batches else 0
        self._seat.say(now_s, deadline_s=due, work_s=self._waited_s, decode=needed, waits=waits)


def begin_pacer(
    options: LoaderOptions,
    place: Topology,
    decoder: Decoder,
    claim: Claim | None,
    *,
    threads: int,
    in_processes: bool,
    before: Pacer | None,
) -> Pacer:
    """Return the pacer of a new iterator, which knows what the one `before` found out.

    Feeder processes keep what they were given; `claim` is there where the number of threads is ours to choose.
    """
    is_chosen = claim is not None and not in_processes
    native = decoder if isinstance(decoder, NativeDecoder) else None

    def resize(threads: int) -> None:
        if claim is not None:
            claim.threads = threads
        if native is not None:
            native.resize(threads)

    pacer = Pacer(
        options.pace,
        threads=threads,
        is_chosen=is_chosen,
        prefetch=options.batches_ahead if in_processes else options.prefetch,
        memory_bytes=options.memory_bytes,
        seat=take_seat(local_rank=place.local_rank, local_size=place.local_size) if is_chosen else None,
        node_threads=threads * place.local_size,
        resize=resize,
    )
    if before is not None:
        pacer.learn_from(before)
    return pacer
