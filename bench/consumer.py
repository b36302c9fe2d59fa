"""A training step to feed: a small torch model on the CPU, which holds the interpreter and a core, or a wait as for a device.

A step is a fixed amount of work, calibrated while nothing else runs: what the loader takes from it shows as a longer step. A core
that idles before each step does it slower all by itself, so steps are compared with steps alone at the same pace.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

__all__ = ["Consumer", "calibrate", "paced"]

_WIDTH = 64
_LAYERS = 4
_CALIBRATION_S = 1.0
_FEWEST = 5


class Consumer:
    """Does one step a call: `iterations` of a small model's training, or a sleep of `wait_s`."""

    def __init__(self, *, iterations: int = 0, wait_s: float = 0.0) -> None:
        self._iterations, self._wait_s = iterations, wait_s
        if iterations:
            import torch
            from torch import nn

            torch.set_num_threads(1)
            torch.manual_seed(1)
            layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
            self._model = nn.Sequential(*layers, nn.Linear(_WIDTH, 1))
            self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
            self._input: Any = torch.randn(32, _WIDTH)

    def __call__(self) -> None:
        """Take one step."""
        for _ in range(self._iterations):
            self._optimizer.zero_grad()
            self._model(self._input).square().mean().backward()
            self._optimizer.step()
        if self._wait_s:
            time.sleep(self._wait_s)


def calibrate(step_ms: float) -> tuple[int, float]:
    """Return the iterations that fill `step_ms` while nothing else runs, and the median step that gives, ms."""
    one = Consumer(iterations=1)
    for _ in range(20):
        one()
    took = _timed(one, _CALIBRATION_S / 2)
    iterations = max(1, round(step_ms / took))
    return iterations, _timed(Consumer(iterations=iterations), _CALIBRATION_S)


def paced(iterations: int, pause_s: float, seconds: float) -> tuple[float, float]:
    """Return a step's median and 95th percentile, ms, while nothing else runs, with `pause_s` before each."""
    laps = _laps(Consumer(iterations=iterations), seconds, pause_s)
    return 1e3 * statistics.median(laps), 1e3 * laps[int(0.95 * (len(laps) - 1))]


def _timed(step: Consumer, seconds: float) -> float:
    return 1e3 * statistics.median(_laps(step, seconds))


def _laps(step: Consumer, seconds: float, pause_s: float = 0.0) -> list[float]:
    laps: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(laps) < _FEWEST:
        if pause_s:
            time.sleep(pause_s)
        begin = time.perf_counter()
        step()
        laps.append(time.perf_counter() - begin)
    return sorted(laps)
