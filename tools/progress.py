"""A progress line with rate and time left, on stderr; silent where nobody watches (pipes, logs, CI).

`Bar` satisfies `formats.Progress`, so long tasks report to it directly. Only the process that made it draws.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from .console import human_bytes, human_time

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Bar"]


class Bar:
    """Stages of work, one line each: share done, rate, time left. Use as a context manager.

    >>> with Bar() as bar:
    ...     bar.begin("packing", 1000)
    ...     bar.advance(400)
    """

    def __init__(self, unit: str = "bytes") -> None:
        self.total = 0
        """Size of the current stage, in units; kept where nothing is drawn, too."""
        self.done = 0
        self._unit = unit
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = time.monotonic()

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            self._progress = _progress()
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self, stage: str, total: int) -> None:
        """Start a stage of `total` units."""
        self.total, self.done, self._started = total, 0, time.monotonic()
        if self._progress is not None:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(stage, total=max(total, 1), facts="")

    def advance(self, amount: int) -> None:
        """Count `amount` more units as done."""
        self.done += amount
        if self._progress is None or self._task is None:
            return
        seconds = time.monotonic() - self._started
        rate = self.done / max(seconds, 1e-6)
        left = max(self.total - self.done, 0) / rate if rate else 0.0
        facts = f"{self._amount(self.done)} of {self._amount(self.total)} · {self._amount(rate)}/s"
        if self.done and seconds > 1:
            facts += f" · {human_time(left)} left"
        self._progress.update(self._task, completed=min(self.done, max(self.total, 1)), facts=facts)

    def _amount(self, value: float) -> str:
        return human_bytes(value) if self._unit == "bytes" else f"{value:,.0f} {self._unit}"


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=32),
        TaskProgressColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
        console=Console(stderr=True, markup=False, highlight=False),
        transient=True,
    )
