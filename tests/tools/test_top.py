"""`headway top` and the dashboard: what is shown is what ranks wrote, and names only metrics that exist."""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headway.formats import UsageError
from headway.loader.metrics import METRICS
from headway.loader.run_files import file_name
from headway.tools.grafana import dashboard
from headway.tools.main import app
from headway.tools.top import top_facts

from .planted_run import plant


def test_rates_are_of_the_last_seconds(tmp_path: Path) -> None:
    early, late = [0.0] * 200, [50.0] * 200  # 100 ms of the consumer's own a step
    plant(
        tmp_path, 0, {"store": early + late}, now={"cache_hits": 3.0, "cache_misses": 1.0, "memory_bytes": 100.0}, pid=os.getpid()
    )
    (row,) = top_facts(tmp_path)
    assert row["waited_share"] == pytest.approx(50 / 150, rel=0.01)
    assert row["samples_per_s"] == pytest.approx(4 / 0.150, rel=0.01)
    assert row["busy"]["decode"] == pytest.approx(0.010 / 0.150, rel=0.01)
    assert set(row["waits_s"]) == {"store"}
    assert row["cache_hit_share"] == 0.75
    assert row["headway_s"] == 0.5
    assert row["chosen"]["memory_bytes"] == 100
    assert row["steps"] == 400


def test_states_are_told_apart(tmp_path: Path) -> None:
    here = platform.node()
    for rank, name in enumerate(["running", "waiting", "silent", "gone"]):
        path = plant(tmp_path, rank, {"store": [1.0] * 3}, ranks=4, now={})
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[0] |= {"host": here, "pid": os.getpid() if name != "gone" else 2**22 + 7}
        if name == "waiting":
            lines[-1]["now"] |= {"waiting_for": "store", "waiting_s": 12.5}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        if name == "silent":
            os.utime(path, (1, 1))
    rows = top_facts(tmp_path)
    assert [row["state"] for row in rows] == ["running", "waiting", "silent", "gone"]
    assert (rows[1]["waiting_for"], rows[1]["waiting_s"]) == ("store", 12.5)


def test_a_rank_that_has_only_begun_is_shown(tmp_path: Path) -> None:
    (tmp_path / file_name("train", 0)).write_text('{"headway_ledger": 1, "rank": 0, "name": "train", "monotonic_ns": 5}\n')
    (row,) = top_facts(tmp_path)
    assert (row["steps"], row["waited_share"]) == (0, 0.0)


def test_the_table_names_every_rank_once_without_a_terminal(tmp_path: Path) -> None:
    for rank in range(3):
        plant(tmp_path, rank, {"decode": [9.0] * 5}, ranks=3, node=rank // 2, nodes=2, name="\x1b[2Jtrain")
    text = CliRunner().invoke(app, ["top", str(tmp_path), "--once"]).stdout
    assert "\x1b" not in text
    for rank in range(3):
        assert len(re.findall(rf"│ +{rank} │ \\x1b\[2Jtrain ", text)) == 1
    assert "decode" in text
    printed = json.loads(CliRunner().invoke(app, ["top", str(tmp_path), "--json", "--node", "1"]).stdout)
    assert [row["rank"] for row in printed["ranks"]] == [2]


def test_where_nothing_runs_is_a_usage_error(tmp_path: Path) -> None:
    for arguments in (["top"], ["top", str(tmp_path)], ["top", str(tmp_path / "gone"), "--once"]):
        assert isinstance(CliRunner().invoke(app, arguments).exception, UsageError)


def test_the_dashboard_names_only_metrics_and_labels_that_exist() -> None:
    printed = json.loads(CliRunner().invoke(app, ["top", "--grafana"]).stdout)
    assert printed == json.loads(json.dumps(dashboard()))
    names = {metric.name for metric in METRICS}
    by_stage = {metric.name for metric in METRICS if metric.by_stage}
    expressions = [target["expr"] for panel in printed["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in printed["templating"]["list"] if variable["type"] == "query"]
    for expression in expressions:
        used = set(re.findall(r"headway_\w+", expression))
        assert used
        assert used <= names, f"{used - names} in {expression}"
        labels = set(re.findall(r"[{,](\w+)=~", expression)) | set(re.findall(r"by \((\w+)\)", expression))
        assert labels <= {"rank", "node", "loader"} | ({"stage"} if used <= by_stage else set())
    ids = [panel["id"] for panel in printed["panels"]]
    assert len(set(ids)) == len(ids)
    places: list[Any] = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in printed["panels"]]
    assert len(set(places)) == len(places)
