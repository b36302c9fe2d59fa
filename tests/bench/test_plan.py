"""`headway bench plan`: its figures exist and its stand-ins for other shuffles are what they are said to be."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from headway.bench.plan import measure, quality_table, report
from headway.bench.shuffles import buffered, ideal, ideal_same_drive, quality, spread
from headway.tools.main import app


@pytest.mark.parametrize("shard_items", [1, 10, 37])
def test_every_order_holds_each_item_once(shard_items: int) -> None:
    for order in (
        ideal(500, seed=1),
        spread(500, shard_items=shard_items, range_items=80, seed=1),
        buffered(500, shard_items=shard_items, buffer_items=80, seed=1),
    ):
        assert np.array_equal(np.sort(order), np.arange(500))


def test_spread_keeps_a_shard_within_its_range() -> None:
    order = spread(5000, shard_items=10, range_items=400, seed=0)
    where = np.argsort(order).reshape(-1, 10)
    assert (where.max(axis=1) - where.min(axis=1)).max() < 1.25 * 400 + 400  # the argsort itself moves items a little
    assert (where.max(axis=1) - where.min(axis=1)).mean() > 150


def test_quality_of_a_known_order() -> None:
    drive = np.repeat(np.arange(4), 4)
    found = quality(np.arange(16), batch_size=4, drive=drive, unit_items=4)
    assert found.same_drive == 1.0
    assert found.distinct_drives[:2] == (1.0, 4.0)
    assert found.open_blocks == 1.0
    assert ideal_same_drive(drive) == pytest.approx(3 / 15)


@pytest.mark.slow
def test_measure_gives_every_figure() -> None:
    found = measure(items=10**6, batch_size=256, ranks=16, repeats=2, frames=2000)
    for name in ("rank_step_us", "global_step_ms", "plan_rss_growth_mib", "seek_ratio", "quality"):
        assert name in found
    json.dumps(found)
    assert "same drive" in report(found)


@pytest.mark.slow
def test_headway_mixes_better_than_a_buffer_or_spread_shards_at_equal_items_held() -> None:
    rows = quality_table(frames=28_130, drive_frames=40, frame_bytes=1, seed=3)
    for ours in (row for row in rows if row["order"] == "headway"):
        assert ours["same_drive_ratio"] <= 1.05
        for other in (row for row in rows if row["items_held"] == ours["items_held"] and row["order"] != "headway"):
            assert ours["same_drive"] < other["same_drive"]
            for window in (1, 4, 16, 64):
                assert ours[f"distinct_drives_{window}"] > other[f"distinct_drives_{window}"]


@pytest.mark.slow
def test_the_command_prints_one_json_object() -> None:
    result = CliRunner().invoke(app, ["bench", "plan", "--items", "100000", "--batch-size", "64", "--ranks", "8", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["items"] == 100_000
    assert {"command", "versions", "machine", "noise"} <= set(found)
