"""SPDL by an expert's hand: one thread decodes a batch straight into its tensor; no per-sample arrays, no collation copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from .contract import Peer, Run
from .samples import BATCH, FileSamples, Stored, as_sweep, camera, collate, picture, shuffled_batches
from .spdl_loader import pipeline

__all__ = ["PEER"]


def _open(run: Run, *, threads: int) -> Callable[[], Iterator[Any]]:
    import torch

    samples, size, epochs = FileSamples(run.packed, run.workload), BATCH[run.workload], count()

    def w1(index: Any) -> dict[str, Any]:
        rows = [samples[int(i)] for i in index]
        image = torch.empty((size, samples.cameras, 3, 256, 704))
        view = image.numpy()
        for place, row in enumerate(rows):
            for eye in range(samples.cameras):
                camera(row[f"cam{eye}"], view[place, eye])
        rest = [
            {name: row[name] for name in ("trajectory", "calibration", "boxes")} | {"lidar": as_sweep(row["lidar"])}
            for row in rows
        ]
        return {"image": image, **collate(rest)}

    def w2(index: Any) -> dict[str, Any]:
        image = torch.empty((size, 3, 224, 224))
        view = image.numpy()
        for place, i in enumerate(index):
            picture(samples[int(i)]["cam0"], view[place])
        return {"image": image, "label": torch.from_numpy(samples.small["label"][index])}

    work = w1 if run.workload == "W1" else w2
    return lambda: pipeline(shuffled_batches(len(samples), size, next(epochs)), [(work, threads)], threads=threads)


PEER = Peer(
    name="spdl-direct",
    requirements=("spdl==0.8.0",),
    settings=lambda workload: [{"threads": number} for number in (2, 3)],
    pack=lambda run: FileSamples.write(Stored(run.data), run.packed),
    open=_open,
    cannot=dict.fromkeys(("W3", "W4"), "nothing to decode straight into a batch; see spdl"),
    packs_like="torch",
)
