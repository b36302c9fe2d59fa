"""What is counted: waits, pace, and the seconds of input that lie ready."""

from __future__ import annotations

import pytest

from headway.loader import stall
from headway.loader.stats import LoaderStats


class Clock:
    """A clock that goes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def ns(self) -> int:
        return round(self.now * 1e9)


def test_rates_waits_and_headway(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(stall, "now_ns", clock.ns)
    stats = LoaderStats()
    assert set(stats.report().values()) == {0.0}
    stats.begin()
    for step in range(5):
        stats.asked(ready=3)
        clock.now += 0.5 if step == 0 else 0.1  # waiting
        stats.delivered(samples=4, size=1000)
        clock.now += 0.9  # training
    stats.ended()
    clock.now += 1000  # between epochs nobody waits
    found = stats.report()
    assert (found["steps"], found["samples"], found["bytes"]) == (5, 20, 5000)
    assert found["first_batch_s"] == pytest.approx(0.5)
    assert found["waited_s"] == pytest.approx(0.9)
    assert found["active_s"] == pytest.approx(5.4)
    assert found["samples_per_s"] == pytest.approx(20 / 5.4)
    assert found["step_s"] == pytest.approx(1.0)
    assert found["headway_s"] == pytest.approx(3.0)
