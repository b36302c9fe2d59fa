"""The ledger on disk: whole lines whatever happens, bounded files, sums that agree, and nothing of the user's in it."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import headway
from headway import DataLoader, LoaderOptions, Telemetry, Topology
from headway.formats import UsageError
from headway.loader.recorder import Recorder, Sources, Step
from headway.loader.run_files import file_name, read_run
from headway.loader.stall import Booked

PROGRAM = """
import sys, time
import headway
from headway import DataLoader, LoaderOptions, Telemetry

loader = DataLoader(headway.open(sys.argv[1]), 3, True, options=LoaderOptions(telemetry=Telemetry(directory=sys.argv[2])))
while True:
    for batch in loader:
        time.sleep(0.001)
"""


def loader_of(location: Path, telemetry: Telemetry, *, rank: int = 0, size: int = 1) -> DataLoader:
    place = Topology(rank=rank, size=size, local_rank=rank, local_size=size)
    return DataLoader(headway.open(location), 3, True, options=LoaderOptions(seed=5, telemetry=telemetry), topology=place)


def eventually(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 90
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_every_step_is_written_once_and_the_sums_agree(drives_set: Path, tmp_path: Path) -> None:
    loader = loader_of(drives_set, Telemetry(directory=tmp_path))
    for _ in range(3):
        for _ in loader:
            pass
    (found,) = read_run(tmp_path)
    assert found.header["ranks"] == 1
    assert found.header["pid"] == os.getpid()
    seen: list[tuple[int, int]] = []
    waits = consumer = 0
    for line in found.lines:
        columns = [line.get(key, []) for key in ("asked_ns", "consumer_ns", "waited_ns", "ready")] + list(
            line.get("waits_ns", {}).values()
        )
        assert {len(column) for column in columns} == {len(line.get("asked_ns", []))}
        for at, waited in enumerate(line.get("waited_ns", [])):
            seen.append((line["epoch"], line["first"] + at))
            assert sum(column[at] for column in line["waits_ns"].values()) == waited
        waits, consumer = waits + sum(line.get("waited_ns", [])), consumer + sum(line.get("consumer_ns", []))
    assert seen == [(epoch, number) for epoch in range(3) for number in range(len(loader))]
    total = found.last["total"]
    ledger = loader._loading.counted.ledger
    assert total["steps"] == len(seen)
    assert total["samples"] == 3 * 18
    assert total["consumer_ns"] == ledger.consumer_ns >= consumer  # and what came after each epoch's last batch
    assert total["waits_ns"] == ledger.waits_ns
    assert sum(total["waits_ns"].values()) >= waits


@pytest.mark.slow
def test_a_killed_rank_leaves_whole_lines(drives_set: Path, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(drives_set), str(tmp_path)])
    path = tmp_path / file_name("train", 0)
    try:
        eventually(lambda: path.exists() and path.read_bytes().count(b"\n") > 4)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    data = path.read_bytes()
    lines = data.split(b"\n")
    for line in lines[:-1]:
        json.loads(line)
    (found,) = read_run(tmp_path)
    assert len(found.lines) == len(lines) - 2  # the header, and what follows the last newline
    assert found.last["total"]["steps"] > 0
    path.write_bytes(data + b'{"total": {"ste')  # what a kill in the middle of a write would leave
    assert read_run(tmp_path)[0].lines == found.lines
    (end,) = read_run(tmp_path, last_bytes=len(data) // 2)
    assert 0 < len(end.lines) < len(found.lines)
    assert end.lines == found.lines[-len(end.lines) :]


def test_a_new_process_puts_the_old_file_aside(drives_set: Path, tmp_path: Path) -> None:
    old = tmp_path / file_name("train", 0)
    old.write_text('{"headway_ledger": 1, "rank": 0, "pid": 1, "host": "x"}\n{"epoch": 9, "first": 0, "asked_ns": [1]}\n')
    for _ in loader_of(drives_set, Telemetry(directory=tmp_path)):
        pass
    (found,) = read_run(tmp_path)
    assert {line["epoch"] for line in found.lines if "epoch" in line} == {0}
    assert (tmp_path / file_name("train", 0, old=True)).read_text().startswith('{"headway_ledger": 1, "rank": 0, "pid": 1')


def test_files_are_bounded_and_read_across_the_border(drives_set: Path, tmp_path: Path) -> None:
    loader = loader_of(drives_set, Telemetry(directory=tmp_path, file_bytes=1 << 13))
    for _ in range(12):
        for _ in loader:
            pass
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 1 << 13
    (found,) = read_run(tmp_path)
    steps = [
        (line["epoch"], line["first"] + at) for line in found.lines if "epoch" in line for at in range(len(line["asked_ns"]))
    ]
    assert steps == [(epoch, number) for epoch in range(steps[0][0], 12) for number in range(len(loader))]
    assert len(steps) > len(loader)
    assert found.last["total"]["steps"] == 12 * len(loader)  # totals go on


def test_loaders_do_not_write_into_each_others_files(drives_set: Path, tmp_path: Path) -> None:
    train = loader_of(drives_set, Telemetry(directory=tmp_path))
    for _ in train:
        pass
    with pytest.raises(UsageError, match=r"another loader does; give each .* Telemetry\(name=…\)"):
        iter(loader_of(drives_set, Telemetry(directory=tmp_path)))
    for _ in loader_of(drives_set, Telemetry(directory=tmp_path, name="val")):
        pass
    assert [(each.header["name"], each.rank) for each in read_run(tmp_path)] == [("train", 0), ("val", 0)]
    assert [each.header["name"] for each in read_run(tmp_path, "val")] == ["val"]
    assert len(train) == 6


def test_a_directory_that_cannot_be_made_is_said_at_once(drives_set: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write the ledger of Telemetry\(directory="):
        iter(loader_of(drives_set, Telemetry(directory=tmp_path / "file")))


def test_a_full_disk_costs_the_ledger_and_not_the_training(
    drives_set: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of(drives_set, Telemetry(directory=tmp_path))
    with caplog.at_level(logging.WARNING):
        batches = iter(loader)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, hard))  # the header is there, and no line fits
        try:
            assert sum(1 for _ in batches) == 6
            assert sum(1 for _ in loader) == 6
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
    said = [record.getMessage() for record in caplog.records if str(tmp_path) in record.getMessage()]
    assert len(said) == 1
    assert "training goes on without it" in said[0]
    (found,) = read_run(tmp_path)
    assert found.lines == []


def recorded(tmp_path: Path, values: Callable[[], dict[str, float]]) -> Recorder:
    recorder = Recorder(Telemetry(directory=tmp_path), Topology())
    recorder.begin(Sources(values, lambda: "plan"))
    recorder.delivered(Step(0, 0, Booked(1, 2, 3, {"decode": 3}), 1, 1, 1, None))
    return recorder


def test_a_number_that_cannot_be_had_costs_the_ledger_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> dict[str, float]:
        raise RuntimeError("no such number")

    recorder = recorded(tmp_path, fails)
    with caplog.at_level(logging.WARNING):
        recorder.ended(None)
        recorder.ended(None)
    assert caplog.text.count("RuntimeError: no such number; training goes on without it") == 1
    recorder.close()


@pytest.mark.slow
def test_a_loader_that_is_collected_in_the_ledgers_own_thread_does_not_hang_it(tmp_path: Path) -> None:
    closed = threading.Event()

    def collected() -> dict[str, float]:
        recorder.close()
        threads.append(threading.current_thread())
        closed.set()
        return {}

    threads: list[threading.Thread] = []
    recorder = recorded(tmp_path, collected)
    assert closed.wait(30)
    threads[0].join(30)
    assert not threads[0].is_alive()
    recorder.close()


@pytest.mark.slow
def test_a_long_wait_is_told_before_it_is_over(drives_set: Path, tmp_path: Path) -> None:
    def wait(batch: dict[str, object]) -> dict[str, object]:
        eventually(lambda: any("waiting_for" in line.get("now", {}) for each in read_run(tmp_path) for line in each.lines))
        return batch

    options = LoaderOptions(telemetry=Telemetry(directory=tmp_path), transforms=headway.Transforms(batch=wait))
    next(iter(DataLoader(headway.open(drives_set), 3, options=options)))
    told = [line["now"] for line in read_run(tmp_path)[0].lines if "waiting_for" in line["now"]]
    assert told[0]["waiting_for"] == "transform"
    assert told[0]["waiting_s"] >= 1


def test_nothing_of_the_users_is_written(drives_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-4711")
    folder = tmp_path / "canary-user"
    folder.mkdir()
    location = folder / "canary-set"
    location.symlink_to(drives_set)
    run = tmp_path / "run"
    for _ in loader_of(location, Telemetry(directory=run, trace_steps=3)):
        pass
    written = b"".join(path.read_bytes() for path in run.iterdir())
    dataset = headway.open(drives_set)
    names = [drive.name for drive in dataset.packed.drives] + list(dataset.packed.schema.by_name)
    for secret in ["canary", str(tmp_path), str(drives_set), dataset.packed.set_id, *names]:
        assert secret.encode() not in written
    assert {path.name for path in run.iterdir()} == {"train-rank00000.jsonl", "train-rank00000.trace.json"}


def test_a_directory_without_a_run_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no ledger in"):
        read_run(tmp_path)
    with pytest.raises(UsageError, match="no run directory"):
        read_run(tmp_path / "gone")
    (tmp_path / "x-rank00000.jsonl").write_text("[1]\n")
    with pytest.raises(UsageError, match="no ledger in"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "a/b"}, "name must be"),
        ({"file_bytes": 1}, "file_bytes must be"),
        ({"trace_steps": -1}, "trace_steps must be"),
        ({"directory": "x", "prometheus_port": 70000}, "prometheus_port must be"),
        ({"prometheus_port": 9000}, "need directory="),
    ],
)
def test_options_that_cannot_be_meant_are_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Telemetry(**given)  # type: ignore[arg-type]  # each case has other types


def test_other_things_than_telemetry_are_refused() -> None:
    with pytest.raises(UsageError, match="telemetry must be"):
        LoaderOptions(telemetry="runs/7")  # type: ignore[arg-type]  # that is the test
