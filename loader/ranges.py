"""A profiler's annotations around waits and stages: NVTX ranges for Nsight Systems, and torch's `record_function`."""

from __future__ import annotations

import threading
from typing import Any

from ..formats import MissingExtra
from .stall import Ranges
from .telemetry import Telemetry

__all__ = ["ranges_of"]


def ranges_of(telemetry: Telemetry) -> Ranges | None:
    """Return what is to be told of each stage; None where nothing was asked for.

    Raises:
        MissingExtra: NVTX was asked for and is not installed.
    """
    chosen: list[Ranges] = []
    if telemetry.nvtx:
        chosen.append(_Nvtx())
    if telemetry.profiler:
        chosen.append(_Recorded())
    if len(chosen) == 2:
        return _Both(*chosen)
    return chosen[0] if chosen else None


class _Nvtx:
    def __init__(self) -> None:
        try:
            import nvtx
        except ImportError as error:
            raise MissingExtra("metrics", "Telemetry(nvtx=True)") from error
        self._domain = nvtx.get_domain("headway")
        self._attributes: dict[str, Any] = {}  # Any: nvtx has no types

    def push(self, stage: str) -> None:
        found = self._attributes.get(stage)
        if found is None:
            found = self._attributes[stage] = self._domain.get_event_attributes(message=f"headway {stage}")
        self._domain.push_range(found)

    def pop(self) -> None:
        self._domain.pop_range()


class _Recorded:
    """`record_function` is entered and left in the same thread, so each thread has its own stack."""

    def __init__(self) -> None:
        from torch.profiler import record_function

        self._function = record_function
        self._local = threading.local()

    def push(self, stage: str) -> None:
        entered = self._function(f"headway.{stage}")
        entered.__enter__()  # type: ignore[no-untyped-call]  # torch's
        self._local.__dict__.setdefault("stack", []).append(entered)

    def pop(self) -> None:
        stack = self._local.__dict__.get("stack")
        if stack:
            stack.pop().__exit__(None, None, None)


class _Both:
    def __init__(self, outer: Ranges, inner: Ranges) -> None:
        self._outer, self._inner = outer, inner

    def push(self, stage: str) -> None:
        self._outer.push(stage)
        self._inner.push(stage)

    def pop(self) -> None:
        self._inner.pop()
        self._outer.pop()
