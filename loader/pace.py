"""What to fetch and decode next, how much of it at once and how far ahead: every scheduling decision, as pure functions.

Nothing here reads a clock, waits, or holds a thread: seconds of any one clock and measured numbers come in, decisions come
out, so that the engine, the fetcher and `simulate` decide alike. Where "numbers" are taken, arrays work too (one entry a
rank). In the order a batch meets them: `deadline` and `slack`, `shares` (whose turn), `hold` and `ramp` (how far ahead),
`needed_rate` and `steer` (requests in flight), `hedge_after`, `hedge_part` and `may_hedge` (a second request), `govern` (decode
threads).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..formats.errors import UsageError

__all__ = [
    "Governor",
    "Hold",
    "InFlight",
    "Pace",
    "Round",
    "deadline",
    "govern",
    "hedge_after",
    "hedge_part",
    "hold",
    "may_hedge",
    "needed_rate",
    "ramp",
    "shares",
    "slack",
    "steer",
]

Numbers = float | NDArray[np.floating[Any]] | NDArray[np.integer[Any]]  # Any: of whatever width
Whole = NDArray[np.int64]

_MOST_BATCHES: Final = 4
_SOON: Final = 3  # × the 98th percentile: a second request now may still be in time, one sent a moment later may not
_EARLY, _CALM = 0.25, 0.5  # of the budget of second requests
_SOON_BATCHES: Final = 2  # decoded in any case; from here on a step's bytes are better held encoded, at a tenth of the size
_ROOM: Final = 1.25  # × the requests at which the store is just full: it must not run dry between two answers
_INFLATED: Final = 1.5  # × the unloaded latency: more requests now wait in the store instead of being served
_UNLOADED: Final = 1.1
_REFUSED: Final = 0.02
_STALE_ROUNDS: Final = 16
_DISTURBED: Final = 1.08  # × the consumer's undisturbed step time; less is noise on a shared machine (bench/README.md)
_HELPED: Final = 0.97
_LATE: Final = 0.03  # share of its time that the consumer waits, from which on it needs the threads more than the cores
_CALM_ROUNDS: Final = 8
_FORGOTTEN_ROUNDS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the scheduler is told; whatever is None is chosen by measurement, and its current value is in `DataLoader.stats`.

    Also chosen: `LoaderOptions.prefetch` (metric `batches_ahead`) and `num_workers` (metric `decode_threads`).

    >>> Pace(requests=16).headway_s
    2.0
    """

    headway_s: float = 2.0
    """Seconds of input to hold ready ahead of the consumer."""
    requests: int | None = None
    """Requests to a store in flight (metric `requests_in_flight`); None: latency × rate, found by probing."""
    hedge_after_s: float | None = None
    """When an unanswered request gets a second one (metric `hedge_after_s`); None: at its 98th percentile, or when its batch
    is in danger; infinity: never."""
    hedge_share: float = 0.02
    """Second requests, as a share of all."""
    governor: bool = True
    """Use fewer decode threads while they slow the consumer's own step and batches are not late."""

    def __post_init__(self) -> None:
        if not 0 < self.headway_s < 3600:
            raise UsageError(f"Pace: headway_s must be above 0 and below 3600, found {self.headway_s!r}")
        if self.requests is not None and not 1 <= self.requests <= 4096:
            raise UsageError(f"Pace: requests must be None (chosen) or from 1 to 4096, found {self.requests!r}")
        if self.hedge_after_s is not None and not self.hedge_after_s > 0:
            raise UsageError(f"Pace: hedge_after_s must be None (chosen) or above 0, found {self.hedge_after_s!r}")
        if not 0 <= self.hedge_share <= 1:
            raise UsageError(f"Pace: hedge_share must be between 0 and 1, found {self.hedge_share!r}")


def deadline(ask_s: Numbers, step_s: Numbers, ahead: Numbers) -> Any:  # Any: as numpy returns it: a number or an array
    """Return when the batch `ahead` steps after the next one will be asked for; the next one is at `ask_s`."""
    return ask_s + ahead * step_s


def slack(deadline_s: Numbers, now_s: Numbers, work_s: Numbers) -> Any:  # Any: see `deadline`
    """Return the seconds a piece of work can still wait: below 0 it is late, and is done first."""
    return deadline_s - now_s - work_s


def shares(slack_s: Numbers, demand: Numbers, slots: Numbers) -> Whole:
    """Divide a node's `slots` (requests, decode threads) among its ranks: (…, ranks) whole numbers.

    Each rank with demand gets one before any gets two; then late ranks (slack below 0) get what they ask for, then the
    others, evenly; what does not divide goes to the least slack. No rank gets more than its `demand`. With fewer slots than
    ranks the least slack goes first: as slack shrinks while one waits, everybody's turn comes.

    >>> shares(np.array([3.0, -0.5, 1.0]), np.array([4, 4, 0]), 4).tolist()
    [1, 3, 0]
    """
    slack_s, want = np.asarray(slack_s, np.float64), np.maximum(np.asarray(demand, np.int64), 0)
    left = np.maximum(np.broadcast_to(np.asarray(slots, np.int64), want.shape[:-1]).copy(), 0)
    slack_s = np.nan_to_num(np.broadcast_to(slack_s, want.shape), nan=np.inf)
    given = _fill(np.minimum(want, 1), left, slack_s)
    for wanting in (slack_s < 0, slack_s >= 0):
        given += _fill(np.where(wanting, want - given, 0), left - given.sum(axis=-1), slack_s)
    return given


class Hold(NamedTuple):
    """What to hold ahead of the consumer, besides the batch that it has: numbers or arrays."""

    batches: Any  # Any: see `deadline`; this and the next
    """Decoded batches: 1 to 4."""
    steps: Any
    """Further steps, as encoded payloads."""


def hold(
    headway_s: Numbers,
    step_s: Numbers,
    *,
    batch_bytes: Numbers,
    encoded_bytes: Numbers,
    memory_bytes: Numbers,
    batches: int | None = None,
) -> Hold:
    """Return how many steps to hold ready for a headway of so many seconds, within a memory budget.

    Args:
        step_s: the consumer's time a step; 0: not known yet, so as many as memory allows.
        batch_bytes: a decoded batch. The budget holds one more of them than is returned: the consumer's own.
        encoded_bytes: payloads of one step as stored.
        batches: take this many decoded ones, where the budget allows.
    """
    memory, batch, encoded = (np.asarray(value, np.float64) for value in (memory_bytes, batch_bytes, encoded_bytes))
    with np.errstate(divide="ignore", over="ignore"):
        needed = np.ceil(np.minimum(np.divide(headway_s, step_s), 1e6) - 1e-9)
        fitting = np.floor(memory / np.maximum(batch, 1)) - 1
        most = np.minimum(_MOST_BATCHES if batches is None else batches, np.minimum(needed, fitting))
        if batches is not None:
            most = np.minimum(batches, fitting)
        most = np.maximum(most, 1)
        soon = most if batches is not None else np.minimum(most, _SOON_BATCHES)
        spare = np.maximum(memory - (soon + 1) * batch, 0)
        steps = np.clip(np.floor(spare / np.maximum(encoded, 1)), 0, np.maximum(needed - soon, 0))
        more = np.clip(np.floor((spare - steps * encoded) / np.maximum(batch, 1)), 0, most - soon)
    return Hold((soon + more).astype(np.int64)[()], np.maximum(steps - more, 0).astype(np.int64)[()])


def ramp(done: Numbers, most: Numbers) -> Any:  # Any: see `deadline`
    """Return how many steps may be open after `done` ones: the first alone, then twice as many as are done, up to `most`.

    Nothing competes with the first batch, and the pipeline is full after a few.
    """
    return np.minimum(most, np.maximum(1, 2 * np.asarray(done)))[()]


def needed_rate(per_step: Numbers, step_s: Numbers, *, ready_s: Numbers, headway_s: Numbers) -> Any:  # Any: see `deadline`
    """Return the requests (or bytes) a second that keep up with the consumer, with twice that while headway is missing.

    Infinite while nothing is ready or the consumer's pace (`step_s` 0) is unknown.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.asarray(np.divide(per_step, step_s)) * (2 - np.clip(np.divide(ready_s, headway_s), 0, 1))
    return np.where((np.asarray(ready_s) <= 0) | (np.asarray(step_s) <= 0), np.inf, rate)[()]


class Round(NamedTuple):
    """What was seen since the last decision; best taken over at least as many answers as were in flight."""

    in_flight: Any  # Any: see `deadline`; this and the next ones
    """Mean number of requests under way."""
    rate: Any
    """Answers a second."""
    latency_s: Any
    """Median time to an answer: the median, as a few stalled requests say nothing about load."""
    refused: Any = 0.0
    """Share of answers that were 429 or 503."""


class InFlight(NamedTuple):
    """How many requests to keep in flight, and what the next decision needs to know. Begins as `InFlight()`."""

    limit: Any = 4.0  # Any: see `deadline`; this and the next ones
    base_s: Any = np.inf
    """Latency of the store when we do not load it."""
    stale: Any = 0
    """Rounds since `base_s` was last seen."""
    before: Any = 0.0
    """In flight in the round before, and its latency."""
    before_s: Any = 0.0


def steer(state: InFlight, seen: Round, *, need: Numbers = np.inf, least: float = 1, most: float = 256) -> InFlight:
    """Return the state with the next limit.

    Little's law: n requests in flight at latency l serve n / l a second. The limit grows until the need is met with room for
    chance: ×2 while that takes four times as many, else by a quarter, and not where latency has begun to grow with it. At 1.5
    times what it was unloaded, more requests only queue in the store: the limit becomes rate × unloaded latency, with room.
    The unloaded latency is measured anew by a round at half the limit when it was not seen for 16 rounds, and taken to have
    changed when fewer requests made it no shorter. 429 and 503 cost three tenths.
    """
    limit, base = np.asarray(state.limit, np.float64), np.asarray(state.base_s, np.float64)
    flight, rate, latency = (np.asarray(value, np.float64) for value in (seen.in_flight, seen.rate, seen.latency_s))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        no_help = (state.before >= 1.2 * flight) & (latency >= 0.9 * np.asarray(state.before_s))
        probed = np.asarray(state.stale) >= _STALE_ROUNDS
        base = np.where(no_help | probed, latency, np.minimum(base, latency))
        stale = np.where(latency <= _UNLOADED * base, 0, np.asarray(state.stale) + 1)
        queueing = latency > _INFLATED * base
        # The number in flight varies like its square root; two of these more, and two, for answers that keep others waiting.
        load = np.where(np.isfinite(need), need * (flight / rate), np.inf)
        want = load + 2 * np.sqrt(load) + 2
        is_free, used = latency <= _UNLOADED * base, flight >= 0.75 * limit
        grown = np.where(is_free & (want > 4 * limit), 2 * limit, np.maximum(limit * 1.25, limit + 1))
        grown = np.where(used & (latency <= _ROOM * base), grown, limit)
        chosen = np.minimum(np.where(queueing, np.maximum(rate * base * _ROOM, limit / 2), grown), want)
        chosen = np.where(stale >= _STALE_ROUNDS, limit / 2, chosen)
        chosen = np.where(np.asarray(seen.refused) > _REFUSED, 0.7 * limit, chosen)
        silent = ~(rate > 0) | ~np.isfinite(latency)  # nothing came back: nothing was learnt
    chosen = np.clip(np.where(silent, limit, chosen), least, most)
    return InFlight(
        chosen[()],
        np.where(silent, state.base_s, base)[()],
        np.where(silent, state.stale, stale)[()],
        np.where(silent, state.before, flight)[()],
        np.where(silent, state.before_s, latency)[()],
    )


def hedge_after(*, p50_s: float, p98_s: float, left_s: float) -> float:
    """Return the seconds after which an unanswered request gets a second one, whose first answer wins.

    At the 98th percentile of its store's latency, or earlier if its batch (asked for in `left_s`) would otherwise be late: a
    second one takes about a median latency. Never before a median latency has passed.
    """
    return min(p98_s, max(p50_s, left_s - p50_s)) if p98_s > p50_s else p98_s


def hedge_part(*, waited_s: float, p98_s: float, left_s: float) -> float:
    """Return which part of the budget of second requests one more may use, for a request without news for `waited_s`.

    Half of it is kept for what will soon be late. Three quarters are kept from requests that are not slow yet: where a rank is
    late, all of them are in a hurry, and would leave nothing for the one in a hundred that hangs.
    """
    return _EARLY if waited_s < p98_s else _CALM if left_s >= _SOON * p98_s else 1.0


def may_hedge(sent: int, hedged: int, *, share: float = 0.02) -> bool:
    """Whether one more second request stays within `share` of all `sent`; the very first may be one."""
    return share > 0 and hedged + 1 <= max(1.0, share * sent)


class Governor(NamedTuple):
    """How many decode threads may work, and what the next decision needs to know. Begins as `Governor(threads)`."""

    threads: Any  # Any: see `deadline`; this and the next ones
    base_s: Any = np.inf
    """The consumer's own step time where nothing disturbs it."""
    calm: Any = 0
    """Rounds without disturbance."""
    before: Any = 0
    """Threads in the round before, and the consumer's own step time."""
    before_s: Any = 0.0
    needed: Any = 0
    """Threads with fewer than which the consumer waited, and the rounds since."""
    since: Any = 0


def govern(state: Governor, *, own_s: Numbers, wait_s: Numbers, most: Numbers, least: Numbers = 1) -> Governor:
    """Return the state with the number of decode threads for the next round of steps.

    Args:
        own_s: median time a step that the consumer spent on itself, from getting a batch to asking for the next.
        wait_s: mean time a step that it waited.

    A consumer that waits gets a thread more. One that does not wait, and whose own step became slower than it was, gets rid of
    one, and of another as long as that helps. If it does not help, its steps have simply become longer: that is the new
    normal, and the thread comes back. After eight calm rounds one comes back, too, to see whether it still disturbs; where
    all are there already, one goes, to see whether they do. A number with which the consumer waited is not tried again for 64
    rounds.
    """
    threads, base = np.asarray(state.threads, np.int64), np.asarray(state.base_s, np.float64)
    own, wait = np.asarray(own_s, np.float64), np.asarray(wait_s, np.float64)
    most = np.maximum(most, least)
    fewer = np.asarray(state.before) > threads
    with np.errstate(invalid="ignore"):
        helped = fewer & (own < _HELPED * np.asarray(state.before_s))
        no_help = fewer & ~helped
        base = np.where(no_help, own, np.minimum(base, own))
        late = wait > _LATE * (own + wait)
        calm = np.where(own <= _DISTURBED * base, np.asarray(state.calm) + 1, 0)
        probe = np.where(calm >= _CALM_ROUNDS, np.where(threads < most, 1, -1), 0)
        move = np.where(late | no_help, 1, np.where(helped | (own > _DISTURBED * base), -1, probe))
    since = np.where(late, 0, np.asarray(state.since) + 1)
    needed = np.where(late & (threads < most), threads + 1, np.where(since >= _FORGOTTEN_ROUNDS, 0, state.needed))
    chosen = np.clip(threads + move, np.minimum(np.maximum(needed, least), most), most)
    calm = np.where(chosen != threads, 0, calm)
    return Governor(chosen[()], base[()], calm[()], threads[()], own[()], needed[()], since[()])


def _fill(want: Whole, slots: Whole, slack_s: NDArray[np.float64]) -> Whole:
    """Give `slots` (…) out evenly among (…, ranks) that want them; the rest one each, by least slack."""
    given = np.zeros_like(want)
    for _ in range(want.shape[-1]):
        is_open = want > given
        each = (slots - given.sum(axis=-1)) // np.maximum(is_open.sum(axis=-1), 1)
        if not (each * is_open.any(axis=-1)).any():
            break
        given += np.minimum(each[..., None], want - given)
    order = np.argsort(np.argsort(np.where(want > given, slack_s, np.inf), axis=-1, kind="stable"), axis=-1, kind="stable")
    given += (want > given) & (order < (slots - given.sum(axis=-1))[..., None])
    return given
