"""The demo's whole road, small: drives, pack, two real ranks under torchrun, table, picture; then again from what is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

COMMAND = [sys.executable, "-m", "headway.tools.demo", "--tiny", "--drives", "1", "--seconds", "3", "--step-ms", "0"]


@pytest.mark.slow
def test_the_demo_runs_end_to_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--directory", str(tmp_path)], capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for row in ("samples/s", "MB/s", "time to first batch", "share of time waited", "headway", "equal"):
        assert row in done.stdout
    ranks = [json.loads((tmp_path / f"run/rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert [rank["epoch_steps"] for rank in ranks] == [[2, 2], [2, 2]]  # 7 frames in global batches of 4
    assert ranks[0]["samples"] + ranks[1]["samples"] == 14
    picture = cv2.imread(str(tmp_path / "overview.png"))
    assert picture is not None
    assert picture.shape[1] == 2400
    assert "Warning" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root, to take the loopback away")
def test_a_machine_without_loopback_is_told_so_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--net", *COMMAND, "--directory", str(tmp_path)], capture_output=True, text=True, timeout=110, check=False
    )
    if done.stderr.startswith("unshare:"):
        pytest.skip(f"cannot take the loopback away here: {done.stderr.strip()}")
    assert done.returncode == 2
    assert "127.0.0.1 does not answer" in done.stderr.splitlines()[-1]
