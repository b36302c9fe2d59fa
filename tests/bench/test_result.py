"""Bench results: one JSON shape, no secrets, machines told apart, noise measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from headway.bench import main as bench_main
from headway.bench.machine import Noise, NoiseMeter, describe, versions
from headway.bench.result import SCHEMA_VERSION, Result, read_result, write_result
from headway.formats import SetError, UsageError
from headway.tools import main as headway_command


def test_a_result_says_where_and_with_what_it_was_measured(tmp_path: Path) -> None:
    noise = Noise(wall_s=2.0, own_cores=1.9, foreign_cores=0.1, steal_cores=0.0)
    write_result(Result(bench="demo", rows=[{"samples_per_s": 3.5}], noise=noise, wall_s=2.0), tmp_path / "a/result.json")
    stored = read_result(tmp_path / "a/result.json")
    assert list(stored) == [
        "headway_bench", "bench", "command", "started", "wall_s", "versions", "machine", "conditions", "noise", "quiet", "rows",
        "summary",
    ]  # fmt: skip
    assert stored["headway_bench"] == SCHEMA_VERSION
    assert stored["quiet"] is True
    assert stored["rows"] == [{"samples_per_s": 3.5}]
    assert {"python", "numpy", "torch"} <= set(versions())
    machine = stored["machine"]
    assert isinstance(machine, dict)
    assert machine["cpu"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["result.json"]


def test_secrets_of_urls_are_cut() -> None:
    stored = Result(
        bench="demo",
        rows=[{"set": "s3://key:hunter2@bucket/set?X-Amz-Signature=hunter2"}],
        command=["bench", "https://u:hunter2@host/a?sig=hunter2"],
    ).to_json()
    assert "hunter2" not in json.dumps(stored)
    assert "bucket/set" in json.dumps(stored)


def test_numbers_that_are_none_become_null() -> None:
    stored = Result(bench="demo", rows=[{"a": math.nan, "b": math.inf, "c": [1, 2.5, None, True]}]).to_json()
    assert stored["rows"] == [{"a": None, "b": None, "c": [1, 2.5, None, True]}]


def test_rows_hold_plain_values_only() -> None:
    with pytest.raises(UsageError, match="plain numbers"):
        Result(bench="demo", rows=[{"a": object()}]).to_json()  # type: ignore[dict-item]  # the wrong value is the test


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"headway_bench": 99}', "[" * 100_000])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SetError, match="cannot read bench result"):
        read_result(tmp_path / "x.json")


def test_unlike_machines_are_told_apart() -> None:
    machine = describe()
    assert machine.unlike(machine) == []
    assert machine.unlike(replace(machine, cpu="abacus", gpus=("another",)))
    assert machine.cores_usable >= 0.01
    assert machine.memory_limit_bytes <= machine.memory_bytes


def test_noise_is_never_negative() -> None:
    with NoiseMeter() as meter:
        sum(range(100_000))
    noise = meter.noise
    assert min(noise.wall_s, noise.own_cores, noise.foreign_cores, noise.steal_cores) >= 0
    assert replace(noise, foreign_cores=1.0).quiet is False


def test_the_group_is_part_of_headway(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        headway_command.main(
            ["bench", "make-data", "W3", str(tmp_path / "w3"), "--samples", "20", "--json", str(tmp_path / "r.json")]
        )
    assert ended.value.code == 0
    assert "20 samples" in capsys.readouterr().out
    stored = read_result(tmp_path / "r.json")
    assert stored["bench"] == "make-data"
    with pytest.raises(SystemExit) as refused:
        headway_command.main(["bench", "make-data", "W3", str(tmp_path / "other"), "--image", "big"])
    assert refused.value.code == 2
    assert bench_main.app.info.name == "bench"
