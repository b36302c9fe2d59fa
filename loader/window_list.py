"""Windows as JSON and back: what `to_json` wrote, or what a person wrote, where only the fields that differ are given.

[{"kind": "window", "sensors": ["CAM_*"], "past": 3, "stride": "1 frame"},
 {"kind": "sweeps", "sensor": "LIDAR_TOP", "past": 10, "choose": 9},
 {"kind": "trajectory", "future": "3s"}]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from ..formats import UsageError
from .sweeps import Sweeps
from .trajectory import Trajectory
from .window import Window

__all__ = ["AnyWindow", "windows_from_json"]

AnyWindow = Window | Trajectory | Sweeps

_KINDS: Final[Mapping[str, type[AnyWindow]]] = {"window": Window, "trajectory": Trajectory, "sweeps": Sweeps}


def windows_from_json(data: object) -> tuple[AnyWindow, ...]:
    """Return the windows that a JSON list describes; unknown kinds, fields and types are refused."""
    if not isinstance(data, list):
        raise UsageError(f"windows must be a JSON list of objects, found {type(data).__name__}")
    return tuple(_window(number, item) for number, item in enumerate(data))


def _window(number: int, item: object) -> AnyWindow:
    what = f"window {number} of the list"
    if not isinstance(item, dict) or not isinstance(item.get("kind"), str) or item["kind"] not in _KINDS:
        raise UsageError(f"{what}: expected an object whose 'kind' is one of {', '.join(_KINDS)}, found {str(item)[:100]}")
    kind = _KINDS[item["kind"]]
    known = {field.name: field for field in fields(kind)}
    values: dict[str, Any] = {name: value for name, value in item.items() if name != "kind"}  # Any: checked by the class
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise UsageError(f"{what}: a {item['kind']} has no field {unknown[0]!r}; it has: {', '.join(known)}")
    if kind is Window and not isinstance(values.get("sensors"), str | list):
        raise UsageError(f"{what}: 'sensors' must be a name, a pattern, or a list of them")
    for name in ("sensor", "name", "tolerance"):
        if values.get(name) is not None and not isinstance(values[name], str):
            raise UsageError(f"{what}: {name!r} must be text, found {values[name]!r}")
    for name in ("drop_self_key", "time_column", "deskew"):
        if not isinstance(values.get(name, False), bool):
            raise UsageError(f"{what}: {name!r} must be true or false, found {values[name]!r}")
    try:
        return kind(**values)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from error
