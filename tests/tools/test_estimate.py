"""`headway estimate` from a limits file: numbers that can be worked out by hand, JSON for programs, refusals with a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import pytest

from headway.bench.batch_cost import NodeLimits, measure_node, read_limits
from headway.bench.node import NodeBench
from headway.formats import SetError

from .conftest import Runner

LIMITS = NodeLimits(
    cores=8,
    serial_batch_s=0.0,
    serial_sample_s=0.0,
    parallel_batch_s=0.0,
    parallel_sample_s=0.02,
    cpu_batch_s=0.0,
    cpu_sample_s=0.02,
    first_batch_s=0.05,
    first_sample_s=0.0,
    handover_s=0.0,
    decoded_sample_bytes=13e6,
    encoded_sample_bytes=1e6,
    image="256x704",
)


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    path = tmp_path / "limits.json"
    path.write_text(json.dumps(LIMITS.to_json()))
    return path


def estimate(run: Runner, tiny_set: Path, limits: Path, *more: object) -> dict[str, Any]:
    flags = ("--limits", limits, "--items", 20_000, "--steps", 200, "--json")
    ran = run("headway", "estimate", tiny_set, *flags, *more)
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_a_decode_bound_job(run: Runner, tiny_set: Path, limits: Path) -> None:
    """16 ranks, eight on a node of eight cores: one thread each, 80 ms a batch of four, steps of 20 ms; in the page cache."""
    found = estimate(run, tiny_set, limits, "--ranks", 16, "--step-ms", 20)
    assert found["samples_per_s"] == pytest.approx(16 * 4 / 0.08, rel=0.05)
    assert found["stall_share"] == pytest.approx(0.75, abs=0.05)
    assert found["binding"] in ("decode threads", "cores")
    assert found["nodes"] == 2
    best = found["what_if"][0]
    assert best["gain"] == pytest.approx(1.0, abs=0.1)


def test_a_consumer_bound_job_on_a_store(run: Runner, tiny_set: Path, limits: Path) -> None:
    store = ("--store", "s3", "--latency", "30:60", "--stalls", "0:0", "--bandwidth", "5")
    found = estimate(run, tiny_set, limits, "--ranks", 64, "--step-ms", 200, *store)
    assert found["stall_share"] < 0.01
    assert found["binding"] == "consumer"
    assert found["cache_bytes"] > 0
    assert found["memory_bytes"] < 1 << 30


def test_a_thin_network_is_named(run: Runner, tiny_set: Path, limits: Path) -> None:
    found = estimate(run, tiny_set, limits, "--ranks", 8, "--step-ms", 200, "--store", "s3", "--bandwidth", "0.05")
    assert found["binding"] == "bandwidth"
    assert found["samples_per_s"] == pytest.approx(50, rel=0.25)


def test_people_get_a_table(run: Runner, tiny_set: Path, limits: Path) -> None:
    ran = run("headway", "estimate", tiny_set, "--limits", limits, "--items", 100_000, "--steps", 100, "--store", "gcs")
    assert ran.code == 0, ran.err
    for word in ("throughput", "stall share", "binding", "memory a rank", "cache a node", "twice the cores"):
        assert word in ran.out


def test_a_picture_shows_how_it_changes_with_the_ranks(run: Runner, tiny_set: Path, limits: Path, tmp_path: Path) -> None:
    store = ("--store", "s3", "--bandwidth", "0.2", "--ranks", 32)
    estimate(run, tiny_set, limits, *store, "--png", tmp_path / "ranks.png")
    picture = cv2.imread(str(tmp_path / "ranks.png"))
    assert picture is not None
    assert picture.std() > 5


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--ranks", 64, "--limits"), "--items"),
        (("--ranks", 12, "--gpus-per-node", 8, "--limits"), "--gpus-per-node"),
        (("--items", 10_000, "--store", "tape", "--limits"), "--store 'tape'"),
        (("--items", 10_000, "--store", "s3", "--latency", "fast", "--limits"), "--latency 'fast'"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(run: Runner, tiny_set: Path, limits: Path, flags: tuple[object, ...], word: str) -> None:
    ran = run("headway", "estimate", tiny_set, *flags, limits)
    assert ran.code == 2
    assert word in ran.err


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"headway_limits": 9}', json.dumps({**LIMITS.to_json(), "cores": -1}), '{"headway_limits": 1, "x": 2}'],
)
def test_a_limits_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(SetError, match="write them with headway estimate"):
        read_limits(path)


def test_limits_survive_their_file(limits: Path) -> None:
    assert read_limits(limits) == LIMITS
    assert LIMITS.times(2.0).cost(4, ranks=8).parallel_s == pytest.approx(0.16)


@pytest.mark.full
def test_this_node_is_measured_by_real_ranks(tiny_set: Path) -> None:
    found = measure_node(NodeBench(tiny_set), batch_size=2, image=(24, 32), seconds=0.5, rounds=1)
    cost = found.cost(2, ranks=1)
    assert cost.cpu_s > 0
    assert cost.serial_s + cost.parallel_s > 0
    assert cost.decoded_bytes > 3 * 24 * 32 * 4
    assert found.encoded_sample_bytes > 0
