"""Packing on real Ray: the same bytes as here, lost workers replaced, errors as everywhere, and nothing left of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.formats import PackOptions, pack
from tests.formats.ramp import ramp_spec
from tests.formats.test_packer import tree
from tests.source_tree import ROOT

from .ranks import PATIENCE_S, needs

needs("ray")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.timeout(1300)]


@dataclass(frozen=True)
class Packed:
    """What became of each case of `programs/pack_on_ray.py`."""

    folder: Path
    told: dict[str, dict[str, Any]]  # Any: JSON


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """All cases, packed on one Ray: starting one takes longer than all of them."""
    folder = tmp_path_factory.mktemp("ray")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    env |= {"RAY_USAGE_STATS_ENABLED": "0"}
    env.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", "tests.frameworks.programs.pack_on_ray", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return Packed(folder, {line["case"]: line for line in lines})


@pytest.mark.parametrize("case", ["plain", "die-once"])
def test_a_set_packed_on_ray_has_the_same_bytes(case: str, packed: Packed, tmp_path: Path) -> None:
    assert packed.told[case]["code"] == 0, packed.told[case]
    pack(ramp_spec(), tmp_path / "here", PackOptions(workers=1, shard_bytes=20_000))
    assert tree(packed.folder / case) == tree(tmp_path / "here")
    assert (packed.folder / "mark.die-once").read_text() == "died"


@pytest.mark.parametrize(("case", "code", "name"), [("error", 3, "SourceError"), ("die-always", 6, "WorkerDied")])
def test_a_failed_run_leaves_nothing(case: str, code: int, name: str, packed: Packed) -> None:
    assert packed.told[case]["code"] == code
    assert packed.told[case]["said"].startswith(f"{name} cannot pack")
    assert not (packed.folder / case).exists()
