"""The one JSON shape every bench writes: what was run, where, under which conditions, and the rows measured.

    {"headway_bench": 1, "bench": "peers", "command": […], "started": "2026-11-30T16:00:00Z", "wall_s": 12.3,
     "versions": {name: version}, "machine": {…}, "conditions": {name: value}, "noise": {…} | null, "quiet": bool | null,
     "rows": [{name: value}, …], "summary": {name: value}}

Units are in the names (`first_batch_s`, `anon_mib`). A row holds numbers, strings, booleans, null, or lists of them.
Values that could carry a secret (URL user info and queries) are cut before they are stored.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from ..formats import SetError, UsageError
from .machine import Machine, Noise, describe, versions

__all__ = ["SCHEMA_VERSION", "Result", "Value", "read_result", "write_result"]

SCHEMA_VERSION = 1

Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+@")
_QUERY = re.compile(r"(?<=\w)\?[^\s\"']+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of one bench."""

    bench: str
    """Its name on the command line."""
    rows: Sequence[Mapping[str, Value]]
    conditions: Mapping[str, Value] = field(default_factory=dict)
    """What a reader must know to repeat it: sizes, seeds, cold or warm, repeats."""
    summary: Mapping[str, Value] = field(default_factory=dict)
    """The few numbers a report opens with."""
    wall_s: float = 0.0
    noise: Noise | None = None
    command: Sequence[str] = ()
    """Arguments after the program's name; by default those of this process."""
    started: str = ""
    """UTC, ISO 8601; by default now."""
    machine: Machine | None = None
    """By default this one."""

    def to_json(self) -> dict[str, Value]:
        """Return plain JSON data, secrets cut, in the order documented above."""
        machine = self.machine or describe()
        command = self.command or [_program(), *sys.argv[1:]]
        data: dict[str, Value] = {
            "headway_bench": SCHEMA_VERSION,
            "bench": self.bench,
            "command": list(command),
            "started": self.started or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "wall_s": round(self.wall_s, 3),
            "versions": dict(versions()),
            "machine": {key: _plain(value) for key, value in machine.to_json().items()},
            "conditions": dict(self.conditions),
            "noise": None if self.noise is None else {key: round(value, 3) for key, value in asdict(self.noise).items()},
            "quiet": None if self.noise is None else self.noise.quiet,
            "rows": [dict(row) for row in self.rows],
            "summary": dict(self.summary),
        }
        return {key: _plain(value) for key, value in data.items()}


def write_result(result: Result, path: Path | None) -> None:
    """Write a result as JSON to `path` (whole or not at all), or to stdout when None."""
    text = json.dumps(result.to_json(), indent=1, ensure_ascii=True, allow_nan=False) + "\n"
    if path is None:
        sys.stdout.write(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_result(path: Path) -> dict[str, Value]:
    """Read a result written by any bench.

    Raises:
        SetError: not a bench result, or of a version this headway does not know.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SetError(f"cannot read bench result {str(path)!r}: not JSON ({error}); run the bench again") from error
    if not isinstance(data, dict) or data.get("headway_bench") != SCHEMA_VERSION:
        found = data.get("headway_bench") if isinstance(data, dict) else type(data).__name__
        raise SetError(f"cannot read bench result {str(path)!r}: found version {found!r}, expected {SCHEMA_VERSION}")
    return data


def _program() -> str:
    """Return what was run as its user calls it: `python -m headway.tools.main` is `headway`."""
    name = Path(sys.argv[0]).name
    return "headway" if name == "main.py" else name


def _plain(value: object) -> Value:
    """Return JSON data: finite numbers, secrets cut from strings."""
    if isinstance(value, str):
        return _QUERY.sub("?…", _USER_INFO.sub("…@", value)) if "://" in value else value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    raise UsageError(f"a bench result holds {type(value).__name__} {value!r}; give plain numbers and strings")
