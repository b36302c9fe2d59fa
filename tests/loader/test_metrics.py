"""Metrics, traces and ranges: one endpoint a node, every chosen number with a name, files that other programs open."""

from __future__ import annotations

import json
import logging
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import headway
from headway import DataLoader, LoaderOptions, Telemetry, Topology, Transforms
from headway.formats import MissingExtra
from headway.loader.metrics import METRICS
from headway.loader.ranges import ranges_of
from headway.loader.run_files import read_run

parser = pytest.importorskip("prometheus_client.parser", reason="needs the extra `metrics`")


def loader_of(
    location: Path, telemetry: Telemetry, *, rank: int = 0, size: int = 1, threads: int | None = None, **more: Any
) -> DataLoader:
    place, options = Topology(rank=rank, size=size, local_rank=rank, local_size=size), LoaderOptions(telemetry=telemetry, **more)
    return DataLoader(headway.open(location), 3, True, num_workers=threads, options=options, topology=place)


def scrape(port: int) -> dict[str, list[Any]]:
    """Return the samples of an endpoint by the name of their family."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {family.name: list(family.samples) for family in parser.text_string_to_metric_families(text)}


def port_of(loader: DataLoader) -> int:
    recorder = loader._loading.counted.recorder
    assert recorder is not None
    assert recorder.port is not None
    return recorder.port


def test_one_port_serves_all_ranks_of_the_node(drives_set: Path, tmp_path: Path) -> None:
    telemetry = Telemetry(directory=tmp_path, prometheus_port=0)
    ranks = [loader_of(drives_set, telemetry, rank=rank, size=2) for rank in range(2)]
    for loader in ranks:
        for _ in loader:
            pass
    assert ranks[1]._loading.counted.recorder is not None
    assert ranks[1]._loading.counted.recorder.port is None  # local rank 0 serves
    found = scrape(port_of(ranks[0]))
    steps = {sample.labels["rank"]: sample.value for sample in found["headway_steps"]}
    assert steps == {"0": len(ranks[0]), "1": len(ranks[1])}
    waited = {"0": 0.0, "1": 0.0}
    for sample in found["headway_wait_seconds"]:
        assert set(sample.labels) == {"rank", "node", "loader", "stage"}
        waited[sample.labels["rank"]] += sample.value
    for rank, loader in enumerate(ranks):
        assert waited[str(rank)] == pytest.approx(loader._loading.counted.ledger.waited_ns * 1e-9)
    val = loader_of(drives_set, Telemetry(directory=tmp_path, prometheus_port=0, name="val"), rank=0, size=2)
    for _ in val:
        pass
    assert port_of(val) == port_of(ranks[0])  # the loaders of a process share it
    assert {sample.labels["loader"] for sample in scrape(port_of(val))["headway_steps"]} == {"train", "val"}


def test_everything_chosen_automatically_has_a_name_and_a_value(drives_set: Path, tmp_path: Path) -> None:
    loader = loader_of(drives_set, Telemetry(directory=tmp_path, prometheus_port=0))
    batches = iter(loader)
    next(batches)
    pacer = loader._packed.engines.pacer
    assert pacer is not None
    chosen = set(pacer.values())
    for _ in batches:
        pass
    now = read_run(tmp_path)[0].last["now"]
    listed = {metric.key: metric.name for metric in METRICS}
    assert chosen | {"memory_bytes", "memory_held_bytes", "memory_leased_bytes"} <= set(now) & set(listed)
    assert {"decode_threads", "batches_ahead"} <= chosen
    served = scrape(port_of(loader))
    for key in chosen:
        assert [sample.value for sample in served[listed[key]]] == [now[key]]


def test_names_are_prometheus_own_and_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names) == len({metric.key for metric in METRICS})
    for metric in METRICS:
        assert metric.name.startswith("headway_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")


def test_a_taken_port_costs_the_metrics_and_not_the_training(
    drives_set: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = loader_of(drives_set, Telemetry(directory=tmp_path / "a", prometheus_port=0))
    for _ in first:
        pass
    with caplog.at_level(logging.WARNING):
        for _ in loader_of(drives_set, Telemetry(directory=tmp_path / "b", prometheus_port=port_of(first))):
            pass
    assert "choose another prometheus_port" in caplog.text


def test_an_absent_extra_is_named(drives_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(MissingExtra, match="needs the extra 'metrics'"):
        iter(loader_of(drives_set, Telemetry(directory=tmp_path, prometheus_port=0)))
    with pytest.raises(MissingExtra, match="nvtx"):
        iter(loader_of(drives_set, Telemetry(nvtx=True)))


def dim(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1])
def test_a_trace_is_what_chrome_and_perfetto_open(drives_set: Path, tmp_path: Path, processes: int) -> None:
    telemetry = Telemetry(directory=tmp_path, trace_steps=4)
    loader = loader_of(drives_set, telemetry, rank=1, size=2, transforms=Transforms(sample=dim, processes=processes))
    for _ in range(3):
        for _ in loader:
            pass
    events = json.loads((tmp_path / "train-rank00001.trace.json").read_text())
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["ph"] for event in events} == {"X", "M"}
    for event in events:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
    for event in spans:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    assert {event["pid"] for event in events} == {1}
    assert len([event for event in spans if event["name"] == "wait"]) == 4
    assert {"plan", "decode", "assemble", "transform"} <= {event["name"] for event in spans}
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert {event["tid"] for event in spans} <= named
    for lane in named:  # on one lane, pieces follow each other
        ends = 0.0
        for event in sorted((event for event in spans if event["tid"] == lane), key=lambda event: float(event["ts"])):
            assert event["ts"] >= ends - 0.001
            ends = event["ts"] + event["dur"]


@pytest.mark.slow
def test_torchs_profiler_sees_waits_and_stages(drives_set: Path) -> None:
    import torch

    loader = loader_of(drives_set, Telemetry(profiler=True), threads=0)  # stages run in the profiled thread
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for _ in loader:
            pass
    names = {event.key for event in seen.key_averages()}
    assert {"headway.wait", "headway.plan", "headway.decode", "headway.assemble"} <= names


def test_ranges_are_pushed_and_popped_in_step(drives_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx = pytest.importorskip("nvtx", reason="needs the extra `metrics`")
    open_ranges: list[str] = []
    seen: set[str] = set()

    class Domain:
        def get_event_attributes(self, message: str) -> str:
            return message

        def push_range(self, message: str) -> None:
            open_ranges.append(message)
            seen.add(message)

        def pop_range(self) -> None:
            open_ranges.pop()

    assert ranges_of(Telemetry(nvtx=True)) is not None  # the real one, which does nothing without a profiler
    monkeypatch.setattr(nvtx, "get_domain", lambda name: Domain())
    loader = loader_of(drives_set, Telemetry(nvtx=True, profiler=True), threads=0)
    for _ in loader:
        pass
    assert open_ranges == []
    assert {"headway wait", "headway plan", "headway decode"} <= seen
