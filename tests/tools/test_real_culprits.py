"""Loaders with one slow part each, run for real: `headway explain` names the part from what they wrote."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import headway
from headway import DataLoader, LoaderOptions, Telemetry, Transforms
from headway.loader.decode import ImageJobs, PortableDecoder
from headway.tools.explain import explain_facts
from headway.tools.explain_schema import SCHEMA
from headway.tools.top import top_facts
from tests.loader.drives import write_drives

from .planted_run import assert_fits

SLOW_S = 0.04


class SlowDecoder(PortableDecoder):
    """Takes its time over every call."""

    name = "slow"
    whole_step = True

    def decode(self, jobs: ImageJobs) -> NDArray[np.int8]:
        time.sleep(SLOW_S)
        return super().decode(jobs)


def slow_sample(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(SLOW_S)
    return sample


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 18 frames."""
    return write_drives(tmp_path_factory.mktemp("culprits") / "set")


def explained(run: Path) -> dict[str, Any]:
    # The first step is left out: starting threads on a busy machine may take longer than all that was planted.
    facts = explain_facts(run, last=17)
    assert_fits(facts, SCHEMA)
    return facts


def stream(location: Path, run: Path, *, decoder: PortableDecoder | None = None, **options: Any) -> None:
    chosen = LoaderOptions(telemetry=Telemetry(directory=run), **options)
    for _ in DataLoader(headway.open(location), 1, num_workers=1, decoder=decoder, options=chosen):
        pass


@pytest.mark.slow
def test_a_slow_decoder_is_found(location: Path, tmp_path: Path) -> None:
    stream(location, tmp_path, decoder=SlowDecoder())
    facts = explained(tmp_path)
    assert facts["culprits"][0]["stage"] == "decode"
    assert facts["verdict"] == "the rank waits for images to be decoded"
    assert facts["remedies"][0]["stage"] == "decode"
    (row,) = top_facts(tmp_path)
    assert max(row["waits_s"], key=row["waits_s"].__getitem__) == "decode"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1])
def test_a_slow_transform_is_found_where_it_runs(location: Path, tmp_path: Path, processes: int) -> None:
    stream(location, tmp_path, transforms=Transforms(sample=slow_sample, processes=processes))
    facts = explained(tmp_path)
    # A machine with more to do than cores hands over late, which is no less true than what was planted.
    planted = [each["stage"] for each in facts["culprits"] if each["stage"] != "handover"]
    assert planted[0] == "transform"
    (remedy, *_) = (each["action"] for each in facts["remedies"] if each["stage"] == "transform")
    assert f"Transforms(processes=2) (now {processes})" in remedy


@pytest.mark.slow
def test_batches_that_are_held_are_found(location: Path, tmp_path: Path) -> None:
    options = LoaderOptions(telemetry=Telemetry(directory=tmp_path), memory_bytes=1 << 18, prefetch=1)
    images = headway.Images("CAM_BACK", size=(192, 192), name="camera")  # 110,592 bytes: two fit the budget
    dataset = headway.open(location, windows=[headway.Window("CAM_BACK", name="camera")], images=images)
    held: list[Any] = []
    for batch in DataLoader(dataset, 1, num_workers=1, options=options):
        held.append(batch)
        del batch
        if len(held) == 2:
            timer = threading.Timer(SLOW_S, held.clear)
            timer.start()
    timer.join()
    facts = explained(tmp_path)
    assert facts["culprits"][0]["stage"] == "memory"
    assert "LoaderOptions(memory_bytes=524288) (now 262144)" in facts["remedies"][0]["action"]
