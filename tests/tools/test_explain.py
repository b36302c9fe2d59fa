"""`headway explain` finds what was planted: who, in which stage, at what cost, and what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headway.formats import UsageError
from headway.loader.run_files import RankFile
from headway.loader.stall import STAGES
from headway.tools._blame import find_blame
from headway.tools._waits import RunWaits
from headway.tools.explain import explain_facts
from headway.tools.explain_schema import SCHEMA
from headway.tools.main import app

from .planted_run import assert_fits, plant

STEPS = 60


def explained(directory: Path, **options: Any) -> dict[str, Any]:
    facts = explain_facts(directory, **options)
    assert_fits(json.loads(json.dumps(facts, allow_nan=False)), SCHEMA)
    return facts


LATENCY = {"store_first_byte_s": 0.2, "store_answer_s": 0.22, "requests_in_flight": 16.0}
BANDWIDTH = {"store_first_byte_s": 0.01, "store_answer_s": 0.5}


@pytest.mark.parametrize(
    ("stage", "now", "resource", "doing", "remedy"),
    [
        ("store", LATENCY, "store latency", "the store", "Pace(requests=32)"),
        (
            "store",
            BANDWIDTH | {"cache_hits": 1.0, "cache_misses": 9.0},
            "store bandwidth",
            "the store",
            "CacheOptions(limit_bytes",
        ),
        ("decode", {}, "processor", "images to be decoded", "num_workers=7 (now 2)"),
        ("decompress", {}, "processor", "points and tables", "num_workers=7 (now 2)"),
        ("transform", {"feeder_processes": 2.0}, "user code", "transforms of yours", "Transforms(processes=4) (now 2)"),
        ("memory", {"memory_bytes": 1000.0}, "memory", "batch memory to come back", "memory_bytes=2000"),
        ("disk", {}, "disk", "the disk", "quicker disk"),
        ("transfer", {}, "device copies", "copies into pinned memory", "pin_memory"),
    ],
)
def test_a_stage_that_is_slow_is_found(
    tmp_path: Path, stage: str, now: dict[str, float], resource: str, doing: str, remedy: str
) -> None:
    plant(tmp_path, 0, {stage: [40.0] * STEPS, "handover": [0.05] * STEPS}, now=now)
    facts = explained(tmp_path)
    assert not facts["nothing_to_do"]
    assert doing in facts["verdict"]
    first = facts["culprits"][0]
    assert (first["rank"], first["stage"], first["resource"], first["steps"]) == (0, stage, resource, STEPS)
    assert first["lost_gpu_s"] == pytest.approx(0.040 * STEPS)
    assert facts["stall_share"] == pytest.approx(40.05 / 140.05)
    assert remedy in facts["remedies"][0]["action"]
    assert 0 < facts["remedies"][0]["gain_gpu_s"] <= facts["lost_gpu_s"]
    assert facts["remedies"][0]["stall_share_after"] < facts["stall_share"]


def test_a_gain_is_what_the_loss_would_be_less(tmp_path: Path) -> None:
    """A loader that takes 100 ms a step, with a consumer of 10: with twice the threads 50, so 40 of the 90 ms stay."""
    now = {"decode_threads": 2.0}
    plant(tmp_path, 0, {"decode": [90.0] * STEPS}, consumer_ms=10.0, cores=5, now=now)
    remedies = {each["effort"]: each for each in explained(tmp_path)["remedies"]}
    assert "num_workers=4 (now 2)" in remedies["option"]["action"]
    assert remedies["option"]["gain_gpu_s"] == pytest.approx(0.050 * STEPS)
    assert remedies["option"]["stall_share_after"] == pytest.approx(40 / 50)
    assert remedies["repack"]["gain_gpu_s"] == pytest.approx(0.035 * STEPS)


def test_a_consumer_that_is_the_limit_leaves_nothing_to_do(tmp_path: Path) -> None:
    plant(tmp_path, 0, {"handover": [0.1] * STEPS})
    facts = explained(tmp_path)
    assert facts["nothing_to_do"]
    assert facts["remedies"] == []
    assert facts["verdict"].startswith("nothing to do")


def test_gaps_now_and_then_ask_for_input_ready_longer(tmp_path: Path) -> None:
    plant(tmp_path, 0, {"store": [900.0 if step % 10 == 9 else 0.0 for step in range(STEPS)]}, now=LATENCY)
    assert "Pace(headway_s=2.9)" in explained(tmp_path)["remedies"][0]["action"]


def in_step(waits: list[list[float]], consumer: float = 100.0) -> list[list[float]]:
    """Return each rank's own time when all wait for the slowest at the end of each step: of step k, before it asks for k + 1."""
    slowest = [max(each[step] for each in waits) for step in range(len(waits[0]))]
    return [[consumer] + [consumer + slow - own for slow, own in zip(slowest[:-1], each[:-1], strict=True)] for each in waits]


def test_one_slow_rank_is_named_with_what_all_lost(tmp_path: Path) -> None:
    waits = [[0.1] * 50, [0.2] * 50, [30.0] * 50, [0.1] * 50]
    for rank, (own, consumer) in enumerate(zip(waits, in_step(waits), strict=True)):
        plant(tmp_path, rank, {"store": own}, ranks=4, consumer_ms=consumer)
    facts = explained(tmp_path)
    assert facts["synchronous"]
    assert facts["slow_rank"]["rank"] == 2
    assert facts["slow_rank"]["factor"] == pytest.approx(300, rel=0.01)
    assert facts["verdict"] == "rank 2 waits for the store and all others for it"
    assert facts["lost_gpu_s"] == pytest.approx(4 * 50 * 0.030)
    assert [row["rank"] for row in facts["per_rank"] if row["made_others_wait_gpu_s"] > 0.1] == [2]
    remedy = next(each for each in facts["remedies"] if "rank 2 slower than the others" in each["action"])
    assert remedy["gain_gpu_s"] == pytest.approx(4 * 50 * (0.030 - 0.0002))


def test_a_slow_node_is_named_by_its_host(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    waits = [(rng.uniform(20, 40, 50) if rank in (2, 3) else rng.uniform(0, 0.5, 50)).tolist() for rank in range(6)]
    for rank, (own, consumer) in enumerate(zip(waits, in_step(waits), strict=True)):
        plant(tmp_path, rank, {"disk": own}, ranks=6, node=rank // 2, nodes=3, consumer_ms=consumer)
    facts = explained(tmp_path)
    assert facts["slow_node"] == {"node": 1, "host": "host-1", "ranks": [2, 3]}
    assert facts["slow_rank"] is None
    assert facts["verdict"].startswith("the ranks of node 1 (host-1) wait for the disk")


def test_all_ranks_alike_is_nobodys_fault(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    waits = [rng.uniform(10, 30, 50).tolist() for _ in range(4)]
    for rank, (own, consumer) in enumerate(zip(waits, in_step(waits), strict=True)):
        plant(tmp_path, rank, {"decode": own}, ranks=4, consumer_ms=consumer)
    facts = explained(tmp_path)
    assert facts["synchronous"]
    assert facts["slow_rank"] is facts["slow_node"] is None
    assert facts["verdict"] == "ranks wait for images to be decoded"


def test_ranks_that_do_not_keep_step_lose_only_their_own(tmp_path: Path) -> None:
    plant(tmp_path, 0, {"store": [50.0] * STEPS}, ranks=2)
    plant(tmp_path, 1, {"store": [0.0] * STEPS}, ranks=2)
    facts = explained(tmp_path)
    assert not facts["synchronous"]
    assert facts["lost_gpu_s"] == pytest.approx(0.050 * STEPS)


def test_starting_threads_does_not_make_a_rank_slow(tmp_path: Path) -> None:
    waits = [[3000.0] + [0.1] * 49, [100.0] + [5.0] * 49]
    for rank, (own, consumer) in enumerate(zip(waits, in_step(waits), strict=True)):
        plant(tmp_path, rank, {"start": own[:1] + [0.0] * 49, "transform": [0.0, *own[1:]]}, ranks=2, consumer_ms=consumer)
    facts = explained(tmp_path)
    assert facts["slow_rank"]["rank"] == 1
    assert "transforms of yours" in facts["verdict"]


def test_what_is_missing_and_what_is_torn_is_said_or_passed_over(tmp_path: Path) -> None:
    path = plant(tmp_path, 1, {"store": [5.0] * 40}, ranks=3)
    plant(tmp_path, 0, {"store": [5.0] * 60}, ranks=3)
    plant(tmp_path, 0, {"decode": [50.0] * 60}, name="val")
    with path.open("a") as file:
        for line in (
            '{"epoch": 0, "first": "x", "waits_ns": []}\n',
            '{"epoch": 0, "first": 40, "asked_ns": [1], "waited_ns": [-1], "consumer_ns": [1], "waits_ns": {}}\n',
            '{"epoch": 0, "first": 40, "asked_ns": [1], "waited_ns": [1, 2], "consumer_ns": [1], "waits_ns": {"a": [1]}}\n',
            '[]\n{"epoch":',
        ):
            file.write(line)
    facts = explained(tmp_path)
    assert (facts["loader"], facts["ranks"], facts["missing_ranks"], facts["steps"]) == ("train", 2, [2], 40)
    assert explained(tmp_path, last=7)["first_step"] == [0, 33]
    assert explained(tmp_path, loader="val")["culprits"][0]["stage"] == "decode"
    with pytest.raises(UsageError, match="no ledger of loader 'test'"):
        explained(tmp_path, loader="test")


def test_ranks_without_a_step_in_common_are_an_error(tmp_path: Path) -> None:
    plant(tmp_path, 0, {"store": [5.0] * 3}, ranks=2)
    (tmp_path / "train-rank00001.jsonl").write_text('{"headway_ledger": 1, "rank": 1, "ranks": 2, "name": "train"}\n')
    with pytest.raises(UsageError, match="no step in common"):
        explained(tmp_path)


@given(
    waits=st.lists(st.lists(st.floats(0, 10), min_size=4, max_size=4), min_size=1, max_size=5),
    consumer=st.floats(0.01, 10),
)
def test_the_loss_is_whole_and_due_to_somebody(waits: list[list[float]], consumer: float) -> None:
    waited = np.array(waits)
    ranks = [RankFile({"rank": rank}) for rank in range(len(waits))]
    halves, own = {"store": waited / 2, "disk": waited / 2}, np.full_like(waited, consumer)
    run = RunWaits(ranks, np.zeros((4, 2), np.int64), np.cumsum(own + waited, axis=1), own, halves, waited)
    blame = find_blame(run)
    expected = len(waits) * waited.max(axis=0).sum() if blame.is_synchronous else waited.sum()
    assert blame.lost_gpu_s == pytest.approx(float(expected))
    assert sum(each.lost_gpu_s for each in blame.culprits) == pytest.approx(blame.lost_gpu_s)


def test_the_command_prints_the_same_for_people_and_programs(tmp_path: Path) -> None:
    plant(tmp_path, 0, {"decode": [40.0] * STEPS}, name="train")

    def printed(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["explain", *arguments])
        assert done.exit_code == 0
        return done.stdout

    text = printed(str(tmp_path))
    assert text.startswith("the rank waits for images to be decoded\n")
    assert "GPU-seconds lost" in text
    assert "[option] let free cores of the node decode" in text
    assert_fits(json.loads(printed(str(tmp_path), "--json")), SCHEMA)
    assert json.loads(printed("--schema")) == json.loads(json.dumps(SCHEMA))
    assert isinstance(CliRunner().invoke(app, ["explain"]).exception, UsageError)


def test_every_stage_has_words(tmp_path: Path) -> None:
    for stage in STAGES:
        plant(tmp_path, 0, {stage: [40.0] * STEPS})
        assert "waits for input" not in explained(tmp_path)["verdict"]
