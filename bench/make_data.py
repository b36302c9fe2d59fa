"""Write a workload to disk in the plainest form, so that every loader's packer starts from the same bytes.

    workload.json            what this is: name, sizes, seed, counts
    images/000000.jpg …      the distinct images
    sweeps/000000.bin …      the distinct sweeps, float32 (N, 5), little-endian
    columns.npz              per sample: which images and sweep it uses, trajectory, calibration, boxes, label, …

`workload.json` is written last: a directory without it is unfinished, and writing again completes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ..formats import NotASet, SetError, UsageError
from ..formats.pack_options import Progress
from .peers.samples import Stored
from .workloads import Sample, Workload, jpeg, sample_columns, sweep

__all__ = ["StoredWorkload", "make_data"]

FILE = "workload.json"


def make_data(load: Workload, directory: Path, *, threads: int = 2, progress: Progress | None = None) -> StoredWorkload:
    """Write `load` under `directory` and return it opened; what is there already is kept.

    Raises:
        UsageError: the directory holds another workload, or files that are none.
    """
    wanted = asdict(load)
    if (directory / FILE).exists():
        found = StoredWorkload(directory)
        if found.parameters != json.loads(json.dumps(wanted)):
            raise UsageError(
                f"cannot write workload {load.name} to {str(directory)!r}: it holds {found.parameters}; use another directory"
            )
        return found
    known = {"images", "sweeps", "columns.npz"}
    strangers = sorted(set(os.listdir(directory)) - known) if directory.is_dir() else []
    if strangers:
        raise UsageError(
            f"cannot write workload {load.name} to {str(directory)!r}: it holds {strangers[0]!r}; use an empty directory"
        )
    jobs: list[tuple[Path, Callable[[], bytes]]] = []
    for index in range(load.distinct_images):
        jobs.append((directory / "images" / f"{index:06d}.jpg", lambda index=index: jpeg(load, index)))  # type: ignore[misc]  # a default that binds the loop variable
    for index in range(load.distinct_sweeps):
        jobs.append((directory / "sweeps" / f"{index:06d}.bin", lambda index=index: sweep(load, index).tobytes()))  # type: ignore[misc]  # as above
    for folder in {path.parent for path, _ in jobs} | {directory}:
        folder.mkdir(parents=True, exist_ok=True)
    if progress is not None:
        progress.begin("making", len(jobs))
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)  # one thread an image is faster than OpenCV's own splitting of small ones
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda job: _write(*job), jobs):
                if progress is not None:
                    progress.advance(1)
    finally:
        cv2.setNumThreads(before)
    part = directory / "columns.part.npz"
    np.savez(part, **_columns(load))  # type: ignore[arg-type]  # the stubs know only allow_pickle=
    part.replace(directory / "columns.npz")
    _write(directory / FILE, lambda: (json.dumps(wanted, indent=1) + "\n").encode())
    return StoredWorkload(directory)


class StoredWorkload(Stored):
    """A workload on disk: its samples as any packer wants them; what is not there or broken is a typed error.

    >>> StoredWorkload(Path("w1"))[0].keys()  # doctest: +SKIP
    dict_keys(['cam0', …, 'lidar', 'boxes', 'trajectory', 'calibration'])
    """

    def __init__(self, directory: Path) -> None:
        try:
            super().__init__(directory)
        except FileNotFoundError as error:
            missing = Path(str(error.filename)).name
            raise NotASet(f"no workload in {str(directory)!r}: {missing} is missing; run `headway bench make-data`") from error
        except ValueError as error:
            raise SetError(
                f"cannot read {str(directory / FILE)!r}: {error}; make the data again in an empty directory"
            ) from error

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Sample:
        """Return sample `index`: encoded images as bytes, the sweep and the rest as arrays and numbers."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return super().__getitem__(index)


def _columns(load: Workload) -> dict[str, NDArray[Any]]:
    """Stack the columns of all samples; boxes, of varying count, end to end with `box_starts`."""
    samples = [sample_columns(load, index) for index in range(load.samples)]
    columns = {name: np.stack([sample[name] for sample in samples]) for name in samples[0] if name != "boxes"}
    if "boxes" in samples[0]:
        columns["boxes"] = np.concatenate([sample["boxes"] for sample in samples])
        columns["box_starts"] = np.cumsum([0, *(len(sample["boxes"]) for sample in samples)])
    return columns


def _write(path: Path, make: Callable[[], bytes]) -> None:
    if path.exists():
        return
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(make())
    part.replace(path)
