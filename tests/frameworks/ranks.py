"""Starting ranks and reading what they saw: torchrun or plain processes, real ones, and one diary a rank."""

from __future__ import annotations

import json
import os
import signal
import socket
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

__all__ = ["PATIENCE_S", "Ranks", "free_port", "needs"]

ROOT = Path(__file__).resolve().parents[2]
# One launch takes 5 to 15 s on two idle cores; that others use the machine, too, is no error of ours.
PATIENCE_S = 600
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

    def start(self, *options: str, ranks: int = 2, torchrun: bool = True, killed: bool = False, restarts: int = 0) -> None:
        """Run the program on `ranks` processes to its end, a kill if `killed`; torchrun starts it anew `restarts` times."""
        module = f"tests.frameworks.programs.{self.program}"
        launch = ["-m"]
        if torchrun:
            launch += ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "-m"]
        command = [sys.executable, *launch, module, str(self.set_path), str(self.out), *options]
        done = subprocess.run(command, cwd=ROOT, env=_environ(), capture_output=True, text=True, timeout=PATIENCE_S)
        was_killed = done.returncode == -signal.SIGKILL or (done.returncode != 0 and "SIGKILL" in done.stderr)
        as_expected = was_killed if killed else done.returncode == 0
        assert as_expected, f"{' '.join(command)} gave {done.returncode}\n{done.stdout}\n{done.stderr}"

    def start_elastic(self, port: int, *options: str) -> None:
        """Run the program under two torchrun agents of two ranks, of which the second dies; the first is to end well."""
        module = f"tests.frameworks.programs.{self.program}"
        conf = "join_timeout=120,last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=10"
        agents = []
        for number in range(2):
            torchrun = [
                "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=2", "--max-restarts=3", "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic", f"--rdzv-conf={conf},is_host={1 - number}",
                "--local-addr=127.0.0.1", "--monitor-interval=0.5", "--module",
            ]  # fmt: skip
            command = [sys.executable, *torchrun, module, str(self.set_path), str(self.out), *options]
            extra = {"DIES_WITH_ITS_NODE": "1"} if number else {}
            with (self.out / f"agent{number}.log").open("w") as log:
                agents.append(subprocess.Popen(command, cwd=ROOT, env=_environ() | extra, stdout=log, stderr=log))
        try:
            assert agents[0].wait(PATIENCE_S) == 0, (self.out / "agent0.log").read_text()[-4000:]
            assert agents[1].wait(60) != 0
        finally:
            for agent in agents:
                agent.kill()
                agent.wait()

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


def _environ() -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if name not in _LAUNCHERS_SAY}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": path,
        "DS_ACCELERATOR": "cpu",
        "TOKENIZERS_PARALLELISM": "0",
        # Else ranks started anew find the gloo addresses of those that died in the store that they share, and may wait for them.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def free_port() -> int:
    """Return a TCP port of this machine that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
