"""Ledger files of made-up ranks, and a check of JSON against the few words of JSON Schema that ours uses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.loader.run_files import file_name

__all__ = ["assert_fits", "plant"]


def plant(
    directory: Path,
    rank: int,
    waits_ms: Mapping[str, Sequence[float]],
    *,
    ranks: int = 1,
    consumer_ms: float | Sequence[float] = 100.0,
    node: int = 0,
    nodes: int = 1,
    name: str = "train",
    cores: int = 8,
    now: Mapping[str, float] | None = None,
    pid: int = 1,
) -> Path:
    """Write the file of a rank that waited so long in each stage, step by step, and return its path."""
    steps = max((len(column) for column in waits_ms.values()), default=0) or 50
    own = [consumer_ms] * steps if isinstance(consumer_ms, int | float) else list(consumer_ms)
    columns = {stage: [round(value * 1e6) for value in column] for stage, column in waits_ms.items()}
    waited = [sum(column[at] for column in columns.values()) for at in range(steps)]
    consumer = [round(value * 1e6) for value in own]
    clock = 10**12 * (rank + 1)  # every machine has a clock of its own
    header = {
        "headway_ledger": 1, "name": name, "rank": rank, "ranks": ranks, "local_rank": rank % max(1, ranks // nodes),
        "local_size": max(1, ranks // nodes), "node": node, "nodes": nodes, "host": f"host-{node}", "pid": pid, "cores": cores,
        "started_unix_s": 0.0, "monotonic_ns": clock,
    }  # fmt: skip
    lines = []
    for first in range(0, steps, 20):
        part = slice(first, first + 20)
        asked = []
        for own_ns, waited_ns in zip(consumer[part], waited[part], strict=True):
            clock += own_ns
            asked.append(clock)
            clock += waited_ns
        end = first + len(asked)
        total = {
            "steps": end, "samples": 4 * end, "bytes": 1000 * end, "consumer_ns": sum(consumer[:end]),
            "waits_ns": {stage: sum(column[:end]) for stage, column in columns.items()}, "busy_ns": {"decode": 10**7 * end},
        }  # fmt: skip
        lines.append(
            {
                "epoch": 0, "first": first, "asked_ns": asked, "consumer_ns": consumer[part], "waited_ns": waited[part],
                "waits_ns": {stage: column[part] for stage, column in columns.items()}, "ready": [1] * len(asked), "total": total,
                "now": {"at_ns": clock, "headway_s": 0.5, "ready": 1.0, "step_s": 0.1, "decode_threads": 2.0, **(now or {})},
            }
        )  # fmt: skip
    path = directory / file_name(name, rank)
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    return path


def assert_fits(value: Any, schema: Mapping[str, Any], where: str = "$") -> None:  # Any: JSON
    """Fail where `value` is not what `schema` says; only the words that ours uses are known, others are an error."""
    known = {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "minimum", "maximum", "anyOf"}
    assert set(schema) - {"description", "title", "$schema"} <= known, where
    if "anyOf" in schema:
        problems = []
        for choice in schema["anyOf"]:
            try:
                assert_fits(value, choice, where)
            except AssertionError as error:
                problems.append(str(error))
            else:
                return
        raise AssertionError(f"{where}: none of {problems}")
    if "const" in schema:
        assert value == schema["const"], where
    if "enum" in schema:
        assert value in schema["enum"], f"{where}: {value!r} is none of {schema['enum']}"
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        assert any(_is(value, name) for name in names), f"{where}: {value!r} is no {names}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        assert value >= schema.get("minimum", value), where
        assert value <= schema.get("maximum", value), where
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        assert set(schema.get("required", ())) <= set(value), f"{where}: lacks {set(schema['required']) - set(value)}"
        for key, item in value.items():
            assert key in properties or more is not False, f"{where}: {key!r} is not described"
            assert_fits(item, properties.get(key, more if isinstance(more, dict) else {}), f"{where}.{key}")
    if isinstance(value, list):
        for at, item in enumerate(value):
            assert_fits(item, schema.get("items", {}), f"{where}[{at}]")


def _is(value: Any, name: str) -> bool:  # Any: JSON
    kinds: dict[str, type | tuple[type, ...]] = {
        "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int, "number": (int, float),
    }  # fmt: skip
    return isinstance(value, kinds[name]) and not (isinstance(value, bool) and name in ("integer", "number"))
