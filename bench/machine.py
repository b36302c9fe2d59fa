"""What a number was measured on, and how much of the machine others used meanwhile.

A bench result without its machine is a rumour. `describe` reads what the kernel says; `NoiseMeter` measures foreign load and
steal around a run, so that a disturbed run can be marked and repeated rather than averaged in.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Final

from ..formats import kernel
from ..formats.control_group import memory_bound
from ..formats.cores import core_share

__all__ = ["Machine", "Noise", "NoiseMeter", "describe", "versions"]

QUIET_CORES: Final = 0.35
"""A run counts as quiet while others use less than this many cores, the border the peer baseline was measured with."""

_LIBRARIES: Final = (
    "headway", "numpy", "pyarrow", "torch", "simplejpeg", "opencv-python-headless", "zstandard", "xxhash",
    "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu12", "torchvision", "triton",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The parts of a node that decide what a loader can do on it."""

    cpu: str
    cores_visible: int
    """Logical cores of the machine."""
    cores_usable: float
    """What this process may use: affinity and cgroup quota."""
    memory_bytes: int
    memory_limit_bytes: int
    """cgroup limit, or the memory there is."""
    kernel: str
    transparent_hugepages: str
    gpus: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return asdict(self)

    def unlike(self, other: Machine) -> list[str]:
        """Name what makes numbers of the two machines incomparable; empty if nothing does."""
        fields = ("cpu", "cores_usable", "gpus")
        return [
            f"{name}: {getattr(self, name)!r} and {getattr(other, name)!r}"
            for name in fields
            if getattr(self, name) != getattr(other, name)
        ]


def describe() -> Machine:
    """Read this machine's description from the kernel."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cpu=_cpu_model(),
        cores_visible=os.cpu_count() or 1,
        cores_usable=round(core_share(), 2),
        memory_bytes=memory,
        memory_limit_bytes=min(memory, memory_bound() or memory),
        kernel=platform.release(),
        transparent_hugepages=_chosen(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        gpus=tuple(_gpus()),
    )


def versions() -> dict[str, str]:
    """Return the versions of Python, of every library the numbers depend on (absent ones are left out), and the core's state."""
    found = {"python": platform.python_version(), "native core": "in use" if kernel.available() else "not in use"}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What others took of the machine during a run."""

    wall_s: float
    own_cores: float
    """CPU time of this process and its ended children, per second."""
    foreign_cores: float
    steal_cores: float
    """Taken by the hypervisor for other guests."""

    @property
    def others(self) -> float:
        """Return the cores that others and the hypervisor took together."""
        return self.foreign_cores + self.steal_cores

    @property
    def quiet(self) -> bool:
        """Say whether the run may be used as it is."""
        return self.others < QUIET_CORES


class NoiseMeter:
    """Measures around a `with` block; read `noise` afterwards.

    >>> with NoiseMeter() as meter:
    ...     total = sum(range(1000))
    >>> meter.noise.wall_s >= 0
    True
    """

    noise: Noise

    def __enter__(self) -> NoiseMeter:
        self._start = self._read()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        wall, own, busy, steal = (after - before for before, after in zip(self._start, self._read(), strict=True))
        wall = max(wall, 1e-9)
        self.noise = Noise(
            wall_s=wall, own_cores=own / wall, foreign_cores=max(0.0, busy - own) / wall, steal_cores=max(0.0, steal) / wall
        )

    @staticmethod
    def _read() -> tuple[float, float, float, float]:
        """Return monotonic time, own CPU time, the machine's busy time and stolen time, in seconds."""
        own = 0.0
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            usage = resource.getrusage(who)
            own += usage.ru_utime + usage.ru_stime
        busy = steal = 0.0
        try:
            ticks = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
            per_second = os.sysconf("SC_CLK_TCK")
            user, nice, system, _idle, _iowait, irq, softirq, stolen = ticks
            busy, steal = (user + nice + system + irq + softirq) / per_second, stolen / per_second
        except (OSError, ValueError):
            busy = own  # not Linux: nothing to compare with, so no noise is claimed
        return time.monotonic(), own, busy, steal


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _chosen(path: Path) -> str:
    """Return the bracketed word of a kernel setting such as `always [madvise] never`."""
    try:
        return path.read_text().partition("[")[2].partition("]")[0] or "unknown"
    except OSError:
        return "unknown"


def _gpus() -> list[str]:
    found = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            for line in information.read_text().splitlines():
                if line.startswith("Model:"):
                    found.append(line.partition(":")[2].strip())
        except OSError:
            continue
    return found
