"""Megatron-Energon: WebDataset tars prepared by its own tool, crude samples cooked by a task encoder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .contract import Peer, Run, Setting
from .samples import BATCH, collate
from .webdataset_loader import SHUFFLE_BUFFER, parser, write_tars

__all__ = ["PEER"]


def _pack(run: Run) -> None:
    write_tars(run)
    tool = Path(sys.executable).with_name("energon")
    options = [
        "--non-interactive",
        "--num-workers",
        "2",
        "--split-ratio",
        "1,0,0",
        "--sample-type",
        "CrudeWebdataset",
        "--force-overwrite",
    ]
    done = subprocess.run([str(tool), "prepare", *options, str(run.packed)], capture_output=True, text=True, check=False)
    if done.returncode or not (run.packed / ".nv-meta" / "dataset.yaml").exists():
        raise RuntimeError(f"energon prepare ended with {done.returncode}: {done.stderr[-500:]}")


def _open(run: Run, *, workers: int) -> Callable[[], Iterator[Any]]:
    from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
    from megatron.energon.task_encoder import stateless

    parse = parser(run.workload)

    @stateless
    def cook(sample: Any) -> Any:
        return dict(sample)

    class Encoder(DefaultTaskEncoder):
        cookers = [Cooker(cook)]  # noqa: RUF012  # energon's own way to state them
        decoder = None  # bytes are wanted; `parse` decodes

        @stateless
        def encode_sample(self, sample: Any) -> Any:
            return parse(sample)

        @stateless
        def batch(self, samples: Any) -> Any:
            return collate(samples)

        @stateless
        def encode_batch(self, batch: Any) -> Any:
            return batch

    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    dataset = get_train_dataset(
        str(run.packed),
        split_part="train",
        worker_config=config,
        batch_size=BATCH[run.workload],
        batch_drop_last=True,
        shuffle_buffer_size=SHUFFLE_BUFFER[run.workload],
        max_samples_per_sequence=100,
        task_encoder=Encoder(),
    )
    loader = get_loader(dataset, worker_config=config)
    return lambda: iter(loader)


def _settings(workload: str) -> list[Setting]:
    return [{"workers": count} for count in ((1, 2, 3) if workload == "W1" else (0, 2))]


PEER = Peer(name="energon", requirements=("megatron-energon==7.4.1",), settings=_settings, pack=_pack, open=_open)
