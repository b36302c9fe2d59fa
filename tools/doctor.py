"""`headway doctor`: which of headway's paths this machine and installation take, and how to get the fast one.

It looks and changes nothing. Advice is not an error: the exit code is 0 unless headway itself is broken here.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from .console import human_bytes, plain, report, say

__all__ = ["Finding", "doctor_command", "findings"]

# Extra → a module that it brings.
_EXTRAS: Final = {
    "dali": "nvidia.dali",
    "nvimgcodec": "nvidia.nvimgcodec",
    "triton": "triton",
    "remote": "obstore",
    "webdataset": "webdataset",
    "ros": "rosbags",
    "video": "av",
    "pcd": "pypcd4",
    "folder": "yaml",
    "ray": "ray",
    "metrics": "prometheus_client",
    "view": "matplotlib",
}
_FILES: Final = 1024
"""Open files below which a set of many shards, sockets and a training framework together become tight."""

State = Literal["ok", "slow", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at."""

    name: str
    state: State
    """ok; slow: works, and a faster path exists; note: nothing wrong, and good to know."""
    found: str
    remedy: str = ""


def doctor_command(
    gpu: Annotated[bool, typer.Option(help="Look for GPU decoders, too, which loads torch.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show which paths are active here and how to get the fast ones."""
    found = list(findings(gpu=gpu))
    if as_json:
        say(json.dumps({"findings": [asdict(each) for each in found]}, indent=1))
        return
    width = max(len(each.name) for each in found)
    for each in found:
        say(f"{each.state:4}  {each.name:{width}}  {plain(each.found)}")
        if each.remedy:
            say(f"{'':4}  {'':{width}}  → {plain(each.remedy)}")
    slow = sum(each.state == "slow" for each in found)
    report(f"{slow} of {len(found)} could be faster" if slow else "everything takes its fast path")


def findings(*, gpu: bool) -> Iterator[Finding]:
    """Yield what there is to say, quick things first."""
    for look in (_versions, _native, _processor, _decoder, _cores, _memory, _shared_memory, _files, _huge_pages, _cache, _extras):
        yield look()
    if gpu:
        yield from _gpu()


def _versions() -> Finding:
    names = ("headway", "torch", "numpy", "pyarrow", "opencv-python-headless", "simplejpeg")
    found = [f"{name} {_version(name)}" for name in names]
    return Finding(name="versions", state="ok", found=f"Python {platform.python_version()}, " + ", ".join(found))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _native() -> Finding:
    from ..formats import kernel

    reason = kernel.unavailable()
    if not reason:
        return Finding(name="native core", state="ok", found="built and in use")
    remedy = "install gcc, libjpeg-dev (2.1 or newer) and libzstd-dev, then reinstall headway; without HEADWAY_NATIVE=0"
    return Finding(name="native core", state="slow", found=f"not in use: {reason}", remedy=remedy)


def _processor() -> Finding:
    flags = set()
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(("flags", "Features")):
            flags = set(line.split(":", 1)[1].split())
            break
    fast = next((name for name in ("avx2", "asimd", "neon") if name in flags), None)
    if fast is not None:
        return Finding(name="vector unit", state="ok", found=fast)
    return Finding(
        name="vector unit",
        state="slow",
        found=f"no AVX2 or NEON seen on {platform.machine()}",
        remedy="give the virtual machine a CPU model that passes AVX2 on (host-passthrough)",
    )


def _decoder() -> Finding:
    from ..loader.native_decode import default_decoder

    name = default_decoder().name
    if name == "native":
        return Finding(name="image decoder", state="ok", found="native: all images of a batch in one call, no interpreter lock")
    remedy = "build the native core, or let processes decode: LoaderOptions(transforms=Transforms(processes=2))"
    return Finding(name="image decoder", state="slow", found=f"{name}: simplejpeg and OpenCV", remedy=remedy)


def _cores() -> Finding:
    from ..formats.cores import usable_cores
    from ..loader.cores import decode_threads

    visible, usable = os.cpu_count() or 1, usable_cores()
    found = f"{usable} usable of {visible} visible; num_workers=None takes {decode_threads(1)} thread(s) for one rank a node"
    if usable == visible:
        return Finding(name="cores", state="ok", found=found)
    remedy = "affinity or the control group's CPU quota limits them; libraries that count visible cores start too many threads"
    return Finding(name="cores", state="note", found=found, remedy=remedy)


def _memory() -> Finding:
    from ..formats.control_group import memory_bound

    facts = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines() if ":" in line)
    free = int(facts.get("MemAvailable", "0 kB").split()[0]) * 1024
    whole, limit = int(facts.get("MemTotal", "0 kB").split()[0]) * 1024, memory_bound()
    more = f", the control group allows {human_bytes(limit)} in all" if limit is not None and limit < whole else ""
    found = f"{human_bytes(free)} available{more}; a loader takes LoaderOptions.memory_bytes, 1 GiB unless told otherwise"
    if 0 < free < 2 << 30:
        return Finding(name="memory", state="note", found=found, remedy="set LoaderOptions(memory_bytes=…) to what there is")
    return Finding(name="memory", state="ok", found=found)


def _shared_memory() -> Finding:
    try:
        facts = os.statvfs("/dev/shm")
    except OSError:
        return Finding(name="/dev/shm", state="note", found="not there; headway needs none, torch's own workers do")
    size = human_bytes(facts.f_blocks * facts.f_frsize)
    return Finding(name="/dev/shm", state="ok", found=f"{size}; headway's processes share anonymous memory and need none of it")


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    if soft == resource.RLIM_INFINITY or soft >= _FILES:
        return Finding(name="open files", state="ok", found=f"ulimit -n {limit}")
    more = "as much as you like" if hard == resource.RLIM_INFINITY else f"up to {hard}"
    return Finding(name="open files", state="note", found=f"ulimit -n {limit}", remedy=f"ulimit -n {_FILES} (allowed {more})")


def _huge_pages() -> Finding:
    chosen = _read("/sys/kernel/mm/transparent_hugepage/enabled").partition("[")[2].partition("]")[0] or "unknown"
    if chosen in ("always", "madvise"):
        return Finding(name="huge pages", state="ok", found=f"transparent_hugepage/enabled is {chosen}")
    return Finding(
        name="huge pages",
        state="note",
        found=f"transparent_hugepage/enabled is {chosen}",
        remedy="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled makes first touches of batch memory cheaper",
    )


def _cache() -> Finding:
    from ..formats import HeadwayError
    from ..formats.cache_directory import cache_directory

    try:
        place = cache_directory("index")
    except HeadwayError as error:
        return Finding(name="cache", state="slow", found=str(error), remedy="remove it, or set XDG_CACHE_HOME to one of your own")
    if place is None:
        remedy = "set XDG_CACHE_HOME to a directory that can be written; filtered views are indexed anew at each start without"
        return Finding(name="cache", state="slow", found="no cache directory can be made", remedy=remedy)
    free = os.statvfs(place)
    return Finding(name="cache", state="ok", found=f"{place.parent}, {human_bytes(free.f_bavail * free.f_frsize)} free")


def _extras() -> Finding:
    there = [extra for extra, module in _EXTRAS.items() if _installed(module)]
    absent = [extra for extra in _EXTRAS if extra not in there]
    remedy = f"pip install 'headway[{','.join(absent)}]' adds the rest; each is needed only for what it is called after"
    return Finding(name="extras", state="ok", found=f"installed: {', '.join(there) or 'none'}", remedy=remedy if absent else "")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _gpu() -> Iterator[Finding]:
    from ..gpu_decode import capabilities

    for each in capabilities():
        yield Finding(name=f"decode: {each.name}", state="ok" if each.usable else "note", found=each.why)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
