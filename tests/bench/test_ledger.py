"""The bench of the stall ledger: its three cases do what they are called after, and its figures are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.bench.ledger import booking_s, measure_ledger, open_for_bench, summarise, writing_s
from headway.tools.main import app
from tests.loader.drives import write_drives


@pytest.mark.slow
def test_every_case_is_measured_each_round(tmp_path: Path) -> None:
    dataset = open_for_bench(write_drives(tmp_path / "set"), (32, 32))
    rows = list(measure_ledger(dataset, batch_size=1, steps=8, rounds=2))
    assert [row["round"] for row in rows] == [0, 1]
    for row in rows:
        for case in ("off", "ledger", "files"):
            assert row[f"{case}_cpu_us"] > 0
            assert row[f"{case}_wall_us"] > 0
        assert row["ledger_cost"] == pytest.approx(row["ledger_cpu_us"] / row["off_cpu_us"] - 1)
    found = summarise(rows)
    assert found["booking_share"] == pytest.approx(found["booking_us"] / found["off_cpu_us"])


def test_what_booking_and_writing_take_by_themselves_is_measured() -> None:
    assert 0 < booking_s(50) < 0.1
    assert 0 < writing_s(50) < 0.1


@pytest.mark.slow
def test_the_command_writes_a_result(tmp_path: Path) -> None:
    location = write_drives(tmp_path / "set")
    arguments = ["bench", "ledger", str(location), "--batch-size", "1", "--steps", "4", "--rounds", "1", "--image", "32x32"]
    done = CliRunner().invoke(app, [*arguments, "--json", str(tmp_path / "ledger.json")])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "ledger.json").read_text())
    assert result["bench"] == "ledger"
    assert {"ledger_cost", "files_cost", "booking_us", "writing_us"} <= set(result["summary"])
