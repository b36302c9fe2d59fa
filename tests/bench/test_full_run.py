"""The whole run: parts kept as they are done, what is there not run again, a limit that leaves parts out and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.bench.full_run import FullOptions, FullRun, Sizes
from headway.bench.make_data import make_data
from headway.bench.result import read_result
from headway.bench.workload_source import SPEC_KIND
from headway.bench.workloads import workload
from headway.formats.adapters import SourceSpec
from headway.formats.packer import pack

SIZES = Sizes(
    samples={"W3": 600, "W1": 4}, seconds=0.2, rounds=1, node_s=0.5, startup_items=(1000,), resume_batches=2
)  # fmt: skip


def _run(folder: Path, limit_s: float | None = None) -> FullRun:
    return FullRun(FullOptions(out=folder / "out", cache=folder / "cache", peers="torch", limit_s=limit_s, sizes=SIZES))


def test_every_kind_of_bench_is_a_part(tmp_path: Path) -> None:
    run = FullRun(FullOptions(out=tmp_path, cache=tmp_path, sizes=Sizes.full()))
    names = [part.name for part in run.parts()]
    assert len(set(names)) == len(names)
    wanted = {"limits-W1", "node-1", "node-2", "node-4", "consumer", "startup", "resume", "resume-W1"}
    assert wanted | {f"peers-W{number}" for number in (1, 2, 3, 4)} <= set(names)
    commands = {part.arguments[0] for part in run.parts()}
    assert commands == {"limits", "node", "consumer", "startup", "resume", "peers", "own-cost"}


def test_parts_that_are_there_stay_and_a_limit_leaves_the_rest_out(tmp_path: Path) -> None:
    run = _run(tmp_path, limit_s=0.0)
    out = tmp_path / "out"
    out.mkdir()
    (out / "node-1.json").write_text("kept")
    states = run.run()
    assert states["node-1"] == {"state": "there already"}
    assert {state["state"] for name, state in states.items() if name != "node-1"} == {"left out: the time limit was reached"}
    assert (out / "node-1.json").read_text() == "kept"
    assert json.loads((out / "full.json").read_text()) == states


@pytest.mark.slow
def test_a_part_that_fails_says_why_and_one_that_works_is_kept(tmp_path: Path) -> None:
    run = _run(tmp_path)
    data = make_data(workload("W3", samples=600), tmp_path / "data").directory
    pack(SourceSpec(kind=SPEC_KIND, path=str(data)), str(tmp_path / "cache" / "sets" / "W3-600"))
    work, fail = (next(part for part in run.parts() if part.name == name) for name in ("limits-W3", "node-1"))
    run.parts = lambda: [fail, work]  # type: ignore[method-assign]  # two parts in place of minutes of them
    states = run.run()
    assert states["node-1"]["state"] == "failed"
    assert "W1-4" in states["node-1"]["why"]  # that set was not made
    assert states["limits-W3"]["state"] == "done"
    assert read_result(tmp_path / "out" / "limits-W3.json")["bench"] == "limits"
    text = (tmp_path / "out" / "limits-W3.json").read_text()
    assert "$CACHE/sets/W3-600" in text  # published results do not tell where things lay
    assert str(tmp_path) not in text
    assert (tmp_path / "out" / "node-1.log").exists()
    assert not (tmp_path / "out" / "limits-W3.log").exists()
