"""Starting ranks and reading what they saw: torchrun or plain processes, real ones, and one diary a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headway
from headway import Window
from headway.loader.plan import Plan
from headway.loader.shuffled import Shuffled

__all__ = ["Ranks", "needs"]

ROOT = Path(__file__).resolve().parents[2]
_LAUNCHERS_SAY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")


def needs(module: str) -> None:
    """Skip a whole test module where a framework is not installed, and say where it is."""
    pytest.importorskip(module, reason=f"{module} is not installed here; `make frameworks` installs it")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Runs of one program over one set, and their diaries."""

    program: str
    set_path: Path
    out: Path

    def start(self, *options: str, ranks: int = 2, torchrun: bool = True, expect: int | None = 0) -> None:
        """Run the program on `ranks` processes to its end; `expect` None: it is to fail."""
        module = f"tests.frameworks.programs.{self.program}"
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--module"] if torchrun else ["-m"]
        environ = {name: value for name, value in os.environ.items() if name not in _LAUNCHERS_SAY}
        environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "0"}
        command = [sys.executable, *launch, module, str(self.set_path), str(self.out), *options]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=170)
        failed = done.returncode != 0
        assert failed == (expect is None), f"{' '.join(command)} gave {done.returncode}\n{done.stdout}\n{done.stderr}"

    def entries(self, run: str, rank: int) -> list[dict[str, Any]]:  # Any: JSON
        """Return what one rank wrote in one run."""
        return [json.loads(line) for line in (self.out / f"{run}-{rank}.jsonl").read_text().splitlines()]

    def steps(self, run: str, ranks: int = 2) -> list[list[int]]:
        """Return the global batches of a run: the ranks' items of each step, side by side."""
        by_rank = [[entry["ids"] for entry in self.entries(run, rank) if "ids" in entry] for rank in range(ranks)]
        assert len({len(steps) for steps in by_rank}) == 1, f"ranks differ in steps: {by_rank}"
        return [[item for ids in parts for item in ids] for parts in zip(*by_rank, strict=True)]

    def facts(self, run: str, rank: int) -> dict[str, Any]:  # Any: JSON
        """Return all that one rank wrote besides steps, put together."""
        return {name: value for entry in self.entries(run, rank) if "ids" not in entry for name, value in entry.items()}

    def planned(self, batch_size: int, epoch: int = 0) -> list[list[int]]:
        """Return the global batches of an epoch as the plan has them."""
        dataset = headway.open(self.set_path, windows=[Window("note"), Window("ego"), Window("LIDAR")])
        plan = Plan(dataset.view.info, Shuffled(), seed=3, epoch=epoch, segments=[(batch_size, 0)])
        return [plan.step(step).items.tolist() for step in range(plan.steps)]
