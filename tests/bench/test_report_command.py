"""`headway bench report`: two runs of one machine side by side; unlike machines and unlike benches refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.bench.report_command import compare
from headway.bench.result import Result, write_result
from headway.formats import UsageError


def _stored(path: Path, rate: float, **machine: Any) -> Path:
    write_result(Result(bench="node", rows=[{"rank": 0, "samples_per_s": rate}], summary={"samples_per_s": rate}), path)
    data = json.loads(path.read_text())
    data["machine"] |= machine
    path.write_text(json.dumps(data))
    return path


def test_two_runs_of_one_machine_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = _stored(tmp_path / "a.json", 100.0), _stored(tmp_path / "b.json", 110.0)
    compare(before, after, html_path=tmp_path / "both.html")
    assert "+10.0%" in capsys.readouterr().out
    text = (tmp_path / "both.html").read_text()
    assert text.count("In short") == 2


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ({"cpu": "abacus"}, "cpu: .*'abacus'"),
        ({"cores_usable": 64.0}, "cores_usable: .*64"),
        ({"gpus": ["H200"]}, "gpus: .*H200"),
    ],
)
def test_unlike_machines_are_refused_with_the_reason(tmp_path: Path, machine: dict[str, Any], reason: str) -> None:
    before, after = _stored(tmp_path / "a.json", 100.0), _stored(tmp_path / "b.json", 110.0, **machine)
    with pytest.raises(UsageError, match=f"cannot compare.*{reason}.*run both on one machine"):
        compare(before, after, html_path=tmp_path / "both.html")
    assert not (tmp_path / "both.html").exists()


def test_unlike_benches_are_refused(tmp_path: Path) -> None:
    before, after = _stored(tmp_path / "a.json", 100.0), tmp_path / "b.json"
    write_result(Result(bench="consumer", rows=[]), after)
    with pytest.raises(UsageError, match="'node' and 'consumer'"):
        compare(before, after, html_path=tmp_path / "both.html")
