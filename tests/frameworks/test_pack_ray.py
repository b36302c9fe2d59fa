"""Packing on real Ray: the same bytes as here, lost workers replaced, errors and interrupts as everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.formats import PackOptions, pack
from tests.formats.ramp import ramp_spec
from tests.formats.test_packer import tree

from .ranks import needs

needs("ray")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from headway.formats import *
from headway.formats import pack_ray
from headway.formats.adapters import SourceSpec
from tests.formats.ramp import ramp_spec
import ray
place, mode = sys.argv[1:]
spec = ramp_spec(fault=5) if mode == "error" else ramp_spec()
if mode in ("die-once", "die-always"):
    spec = replace(spec, kind="tests.frameworks.programs.dying_ramp:open_source", path=place + "." + mode)
ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
try:
    pack(spec, place, PackOptions(engine="ray", workers=2, shard_bytes=20_000))
except HeadwayError as error:
    print(type(error).__name__, error)
    sys.exit(error.exit_code)
"""


def _run(place: Path, mode: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.getcwd(), "RAY_USAGE_STATS_ENABLED": "0"}
    env.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-c", PROGRAM, str(place), mode]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("mode", ["plain", "die-once"])
def test_a_set_packed_on_ray_has_the_same_bytes(mode: str, tmp_path: Path) -> None:
    done = _run(tmp_path / "set", mode)
    assert done.returncode == 0, done.stdout + done.stderr
    pack(ramp_spec(), tmp_path / "here", PackOptions(workers=1, shard_bytes=20_000))
    assert tree(tmp_path / "set") == tree(tmp_path / "here")
    if mode == "die-once":
        assert (tmp_path / "set.die-once").read_text() == "died"


@pytest.mark.parametrize(("mode", "code", "name"), [("error", 3, "SourceError"), ("die-always", 6, "WorkerDied")])
def test_a_failed_run_leaves_nothing(mode: str, code: int, name: str, tmp_path: Path) -> None:
    done = _run(tmp_path / "set", mode)
    assert done.returncode == code, done.stdout + done.stderr
    assert f"\n{name} cannot pack" in "\n" + done.stdout
    assert not (tmp_path / "set").exists()
