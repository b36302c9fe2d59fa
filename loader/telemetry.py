"""What a loader writes down and shows of its waits: off unless asked for, and never sent anywhere by itself."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ..formats import UsageError

__all__ = ["Telemetry"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Outputs of the stall ledger; `LoaderOptions(telemetry=…)` takes them, equal on all ranks.

    Nothing of it names sets, drives, sensors, users or paths. `headway top` and `headway explain` read the directory.

    >>> Telemetry(directory="runs/7", prometheus_port=9464).name
    'train'
    """

    directory: str | os.PathLike[str] | None = None
    """Run directory, made if missing: each rank adds the files `<name>-rank<n>.jsonl`. Ranks and nodes may share it."""
    name: str = "train"
    """Tells the loaders of one process apart, such as "train" and "val"."""
    file_bytes: int = 16 << 20
    """Size at which a rank's file is put aside as `.old.jsonl` and begun anew; so a rank takes twice this at most."""
    prometheus_port: int | None = None
    """Local rank 0 serves all ranks of its node here, read from their files; needs `directory`. 0: any free port, which is
    logged."""
    prometheus_address: str = "127.0.0.1"
    """Address to serve on; "0.0.0.0" lets other machines scrape."""
    trace_steps: int = 0
    """Write the first so many steps as `<name>-rank<n>.trace.json`, which Perfetto and chrome://tracing open."""
    nvtx: bool = False
    """Mark waits and stages as NVTX ranges, for Nsight Systems."""
    profiler: bool = False
    """Mark them by `torch.profiler.record_function`."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(f"Telemetry: name must be 1 to 64 of A-Z a-z 0-9 _ . -, found {self.name!r}")
        if not 1 << 12 <= self.file_bytes <= 1 << 40:
            raise UsageError(f"Telemetry: file_bytes must be from 4096 to 2**40, found {self.file_bytes!r}")
        if self.trace_steps < 0:
            raise UsageError(f"Telemetry: trace_steps must be 0 or more, found {self.trace_steps!r}")
        if self.prometheus_port is not None and not 0 <= self.prometheus_port < 65536:
            raise UsageError(f"Telemetry: prometheus_port must be a port or None, found {self.prometheus_port!r}")
        if self.directory is None and (self.prometheus_port is not None or self.trace_steps):
            raise UsageError("Telemetry: prometheus_port and trace_steps need directory=…, where ranks write their files")
