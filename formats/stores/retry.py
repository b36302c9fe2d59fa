"""Which store failures are worth another try, and for how long: classification, and retry against a deadline.

Transient failures (time-outs, resets, 5xx) and throttling (429, SlowDown) are tried again with exponential backoff and full
jitter until the deadline; missing objects, refused credentials and changed versions are final at once. Backoff: Brooker,
"Exponential Backoff And Jitter", AWS Architecture Blog, 2015. A Retry-After header is not seen: obstore shows no headers of a
failed answer, nor honours it itself; so a throttled request waits at least a second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from ..errors import StoreError, UsageError

__all__ = ["Failure", "Retry"]

Failure = Literal["transient", "throttled", "missing", "auth", "changed", "exists", "permanent"]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How long and how hard to try."""

    deadline_s: float = 60.0
    """Seconds from the first attempt after which the last failure is raised."""
    first_wait_s: float = 0.05
    """Upper bound of the first wait; each later bound doubles."""
    longest_wait_s: float = 5.0
    """Upper bound of any wait. Throttled requests wait at least a second."""

    def __post_init__(self) -> None:
        if not 0 <= self.first_wait_s <= self.longest_wait_s or self.deadline_s < 0:
            raise UsageError(f"retry needs 0 <= first_wait_s <= longest_wait_s and a deadline >= 0, not {self}")

    def run(
        self,
        call: Callable[[], Result],
        *,
        what: str,
        classify: Callable[[Exception], Failure],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> Result:
        """Return `call()`, tried again while its failures are transient and time is left; StoreError otherwise."""
        start, attempt = clock(), 0
        while True:
            attempt += 1
            try:
                return call()
            except Exception as error:
                failure = classify(error)
                if failure not in ("transient", "throttled"):
                    raise
                wait = self.wait_s(attempt, throttled=failure == "throttled")
                if clock() - start + wait > self.deadline_s:
                    spent = clock() - start
                    raise StoreError(f"{what}: still {failure} after {attempt} attempts in {spent:.1f} s: {error}") from error
                sleep(wait)

    def wait_s(self, attempt: int, *, throttled: bool) -> float:
        """Return how long to wait after failure number `attempt`."""
        # Jitter must differ between ranks that failed together, so it is the one draw that is not keyed.
        bound = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(attempt - 1, 30))
        wait = random.SystemRandom().uniform(0, bound)
        return max(1.0, wait) if throttled else wait
