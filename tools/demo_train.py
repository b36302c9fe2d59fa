"""What each rank of the demo runs: two epochs over the packed drives with a toy model, and a note of how well it was fed.

Started by `torch.distributed.run`; ranks talk over gloo. The model is a stand-in that learns to guess the ego's next seconds;
each step is stretched to `--step-ms`, as a GPU's would be, so that the loader has a consumer to stay ahead of.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import typer
from torch import nn

from ..formats import HeadwayError
from ..loader.batch import Batch
from ..loader.dataloader import DataLoader
from ..loader.dataset import Dataset, open_dataset
from ..loader.images import Images
from ..loader.options import LoaderOptions
from ..loader.trajectory import Trajectory
from ..loader.window import Window
from .console import human_time

__all__ = ["demo_dataset", "main"]

PAST, FUTURE, RATE_HZ = "2s", "6s", 2.0
FUTURE_STEPS = 12


def demo_dataset(location: Path, *, height: int, width: int) -> Dataset:
    """Open the set as the demo looks at it: six cameras at one size, the sweep, the boxes, the ego's path."""
    return open_dataset(
        location,
        windows=[
            Window("CAM_*", name="camera"),
            Window("LIDAR_TOP"),
            Window("boxes"),
            Window("sample"),
            Trajectory(past=PAST, future=FUTURE, rate_hz=RATE_HZ),
        ],
        images=[Images("CAM_*", size=(height, width))],
    )


class Guess(nn.Module):
    """A few convolutions over six cameras that guess where the ego will be; small enough for one core."""

    def __init__(self) -> None:
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(3, 8, 7, stride=8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.head = nn.LazyLinear(FUTURE_STEPS * 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map uint8 (B, N, 3, H, W) to metres (B, FUTURE_STEPS, 2)."""
        batch, cameras = image.shape[:2]
        seen = self.eye(image.flatten(0, 1).float() / 127.5 - 1)
        guess: torch.Tensor = self.head(seen.reshape(batch, cameras * seen[0].numel()))
        return guess.reshape(batch, FUTURE_STEPS, 2)


def run(location: Path, output: Path, *, epochs: int, batch_size: int, step_ms: float) -> None:
    """Train and write what this rank saw to `output`/rank-R.json."""
    started = time.monotonic()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = demo_dataset(location, height=256, width=704)
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, options=LoaderOptions(seed=1))
    model = Guess()
    model(torch.zeros(1, 6, 3, 256, 704, dtype=torch.uint8))  # lazy layers take their size before ranks compare them
    trained = nn.parallel.DistributedDataParallel(model)
    optimiser = torch.optim.Adam(trained.parameters(), 1e-3)
    steps: list[int] = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        count = 0
        for batch in loader:
            began = time.monotonic()
            _step(trained, optimiser, batch)
            time.sleep(max(0.0, step_ms / 1e3 - (time.monotonic() - began)))
            count += 1
            if rank == 0:
                _tell(epoch, epochs, count, len(loader), loader.stats())
        steps.append(count)
    facts = {"rank": rank, "epoch_steps": steps, "wall_s": time.monotonic() - started, **loader.stats()}
    (output / f"rank-{rank}.json").write_text(json.dumps(facts, indent=1))
    dist.barrier()
    dist.destroy_process_group()


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, batch: Batch) -> None:
    """Learn from one batch; way-points off the drive's ends and padding count for nothing."""
    path = batch["trajectory"]
    goal, there = path["position"][:, -FUTURE_STEPS:, :2].float(), path["mask"][:, -FUTURE_STEPS:] & batch["valid"][:, None]
    miss = (model(batch["camera"]["image"][:, -1]) - goal).abs().sum(-1)
    loss = (miss * there).sum() / there.sum().clamp(min=1)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def _tell(epoch: int, epochs: int, step: int, steps: int, stats: dict[str, float]) -> None:
    """Keep one line up to date on a terminal; in a log, say it once an epoch."""
    line = (
        f"epoch {epoch + 1}/{epochs}  step {step:3}/{steps}  {stats['samples_per_s']:6.1f} samples/s a rank  "
        f"waited {100 * stats['waited_share']:4.1f} %  headway {human_time(stats['headway_s'])}"
    )
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{line}", end="\n" if (epoch + 1, step) == (epochs, steps) else "", file=sys.stderr, flush=True)
    elif step == steps:
        print(line, file=sys.stderr, flush=True)


def main(
    location: Annotated[Path, typer.Argument()],
    output: Annotated[Path, typer.Argument()],
    epochs: int = 2,
    batch_size: int = 2,
    step_ms: float = 200.0,
) -> None:
    """Run one rank."""
    try:
        run(location, output, epochs=epochs, batch_size=batch_size, step_ms=step_ms)
    except HeadwayError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error


if __name__ == "__main__":
    typer.run(main)
