"""Two real ranks that meet in an all-reduce each step: the one whose input is slow is named within 50 steps, and so is why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headway.loader.run_files import read_run
from headway.tools.explain_schema import SCHEMA
from headway.tools.main import app
from tests.loader.drives import write_drives
from tests.source_tree import ROOT

from .heavy_drives import slow_store, write_heavy
from .planted_run import assert_fits

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist

location, run, cache, slow_s = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
dist.init_process_group("gloo")
rank = dist.get_rank()
os.environ["XDG_CACHE_HOME"] = f"{cache}/{rank}"  # as on nodes of their own
import headway
from headway import DataLoader, LoaderOptions, Telemetry, Transforms

def sometimes_slow(sample):
    time.sleep(slow_s if rank == 1 else 0)
    return sample

options = LoaderOptions(
    seed=3, telemetry=Telemetry(directory=run), transforms=Transforms(sample=sometimes_slow if slow_s else None, processes=0)
)
loader = DataLoader(headway.open(location.replace("RANK", str(rank))), 1, True, drop_last=True, num_workers=1, options=options)
steps = 0
while steps < 50:
    for batch in loader:
        time.sleep(0.02)  # the step
        dist.all_reduce(torch.zeros(1))
        steps += 1
        if steps == 50:
            break
loader._loading.counted.recorder.close()  # os._exit runs no finalisers
dist.barrier()
os._exit(0)  # gloo's threads abort some ends after all work is done
"""


def explained(location: str, tmp_path: Path, *, slow_s: float = 0.0) -> dict[str, Any]:
    """Run two ranks for 50 steps and return what `headway explain --json` says of them."""
    program = tmp_path / "rank.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    command += [location, str(tmp_path / "run"), str(tmp_path / "cache"), str(slow_s)]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment)
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(CliRunner().invoke(app, ["explain", str(tmp_path / "run"), "--json"]).stdout)
    assert_fits(facts, SCHEMA)
    assert facts["ranks"] == 2
    assert facts["steps"] <= 50
    return facts


@pytest.mark.slow
def test_a_rank_with_a_slow_transform_is_named(tmp_path: Path) -> None:
    facts = explained(str(write_drives(tmp_path / "set")), tmp_path, slow_s=0.08)
    assert facts["synchronous"]
    assert facts["slow_rank"]["rank"] == 1
    assert facts["culprits"][0]["stage"] == "transform"
    assert facts["verdict"].startswith("rank 1 waits for transforms of yours")
    assert facts["remedies"][0]["stage"] == "transform"


@pytest.mark.slow
def test_a_rank_whose_store_gives_a_tenth_is_named(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="needs the extra `remote`")
    write_heavy(tmp_path / "set", frames=104)
    with slow_store(tmp_path / "set", {"0": 60e6, "1": 6e6}) as url:
        facts = explained(f"{url}/RANK", tmp_path)
    assert facts["synchronous"]
    assert facts["slow_rank"]["rank"] == 1
    assert (facts["culprits"][0]["rank"], facts["culprits"][0]["stage"]) == (1, "store")
    assert facts["verdict"] == "rank 1 waits for the store and all others for it"
    assert any("rank 1 slower than the others" in each["action"] for each in facts["remedies"])
    for each in read_run(tmp_path / "run"):
        now = each.last["now"]
        assert now["cache_misses"] > 0
        assert now["fetched_bytes"] > 20e6
        assert {"requests_in_flight", "requests_running", "encoded_bytes", "hedge_after_s", "store_requests"} <= set(now)
