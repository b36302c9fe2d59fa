"""Says when a wait goes on too long: what is waited for, and where all threads of this process stand.

Stacks are `faulthandler`'s, which needs no cooperation of the threads it looks at. A wait is only reported, once: whether it
ends in an error is for its owner to say.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import tempfile
import threading
import time

__all__ = ["Wait"]

log = logging.getLogger("headway")


class Wait:
    """Waits of one owner, one after another; `look` reports the present one when it has lasted `stall_s` seconds.

    The owner looks itself wherever it comes by; where it does not, `watch` starts a thread that does (daemon, asleep between
    looks, ended by `close`). A thread of Python's cannot look while native code keeps the interpreter's lock.
    """

    def __init__(self, what: str, stall_s: float) -> None:
        self.what, self.detail = what, ""
        self._stall_s = stall_s
        self._since: float | None = None
        self._told: float | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """The owner begins to wait."""
        self._since, self.detail = time.monotonic(), ""

    def end(self) -> None:
        """What was waited for has come, or will not."""
        self._since = None

    def look(self, *, at_once: bool = False) -> None:
        """Report the present wait, unless it was reported before or is still short (`at_once`: however short it is)."""
        since = self._since
        if since is None or since == self._told:
            return
        waited = time.monotonic() - since
        if waited >= self._stall_s or at_once:
            self._told = since
            log.warning("headway: waiting for %s for %.1f s: %s\n%s", self.what, waited, self.detail, stacks())

    def watch(self) -> None:
        """Let a thread look; called again, it is started only once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headway-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Let the thread end."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._stall_s / 4):
            self.look()


def stacks() -> str:
    """Return the stacks of all threads of this process, newest call first."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return f"process {os.getpid()}:\n{file.read().decode(errors='replace')}"
