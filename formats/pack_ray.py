"""Pack workers on a Ray cluster: the same tasks by the same code, so the same bytes; a lost Ray worker's task runs again.

Each attempt writes into a directory of its own. Where the node sees the staging directory (one machine, a shared file
system), finished files are renamed into it; elsewhere they travel through Ray's object store. The source must be readable
under the same path on every node, and headway installed there. Ray is imported in this module only, when packing starts.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from .errors import MissingExtra, WorkerDied
from .pack_worker import PackedShards, ShardTask, pack_shard
from .synced_file import write_synced

__all__ = ["run_on_ray"]

# A task that kills its worker each time (out of memory) is given up after so many further attempts.
_RETRIES: Final = 3
_TOKEN: Final = "ray.tmp"
_POLL_S: Final = 0.2
_ENDING_S: Final = 30.0  # for killed tasks to be gone; a node that does not answer for so long is left alone

_Shipped = dict[str, bytes]
"""File name → content, of files that could not be renamed into the staging directory."""


def run_on_ray(
    tasks: Sequence[ShardTask], workers: int | None, advance: Callable[[int], None], sizes: Sequence[int]
) -> Generator[tuple[int, PackedShards], None, None]:
    """Yield the number and result of each task as it comes, in no particular order.

    `workers` tasks run at once, by default as many as the cluster has cores; `sizes` are the source bytes of each task, for
    progress. Joins the cluster that `RAY_ADDRESS` or `ray start` names, else starts one on this machine and stops it after.

    Raises:
        MissingExtra: Ray is not installed.
        WorkerDied: a task lost its worker again and again; whatever an exception in a worker was, otherwise.
    """
    if not tasks:
        return
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "packing with --engine ray") from error
    ours = not ray.is_initialized()
    if ours:
        ray.init(log_to_driver=False, include_dashboard=False)
    token = secrets.token_hex(16)
    staging = Path(tasks[0].staging)
    (staging / _TOKEN).write_text(token)
    # spread: neighbouring shards read neighbouring parts of the source; one node should not read them all.
    remote = ray.remote(max_retries=_RETRIES, scheduling_strategy="SPREAD")(_attempt)
    running: dict[Any, int] = {}  # Any: Ray's references
    try:
        most = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting = iter(range(len(tasks)))
        while True:
            for at in waiting:
                running[remote.remote(tasks[at], token)] = at
                if len(running) >= most:
                    break
            if not running:
                return
            # A time-out, so that an interrupt is seen soon.
            for reference in ray.wait(list(running), timeout=_POLL_S)[0]:
                at = running.pop(reference)
                done, shipped = _result(ray, reference)
                for name, data in shipped.items():
                    _place(staging, name, data)
                advance(sizes[at])
                yield tasks[at].number, done
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if running:
            # Killing takes a moment, in which a task still puts files where the caller is about to remove all.
            ray.wait(list(running), num_returns=len(running), timeout=_ENDING_S)
        if ours:
            ray.shutdown()
        (staging / _TOKEN).unlink(missing_ok=True)


def _result(ray: Any, reference: Any) -> tuple[PackedShards, _Shipped]:  # Any: Ray is optional and untyped
    try:
        done: tuple[PackedShards, _Shipped] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        cause.add_note(f"in a Ray worker:\n{error}")
        raise cause from None
    except ray.exceptions.RayError as error:
        raise WorkerDied(
            f"cannot pack: a Ray worker was lost {_RETRIES + 1} times over ({type(error).__name__}); nothing was published. "
            "Give each task more memory, or use smaller shards, and run again"
        ) from error
    return done


def _attempt(task: ShardTask, token: str) -> tuple[PackedShards, _Shipped]:
    """Run one task in a directory of its own, in a Ray worker."""
    staging = Path(task.staging)
    shared = _sees(staging, token)
    # The suffix lets the next run sweep what a lost worker leaves.
    own = Path(tempfile.mkdtemp(prefix="ray-", suffix=".tmp", dir=staging if shared else None))
    try:
        done = pack_shard(replace(task, staging=str(own)), lambda amount: None)
        shipped: _Shipped = {}
        for path in sorted(path for path in own.rglob("*") if path.is_file()):
            name = path.relative_to(own).as_posix()
            if shared:
                (staging / name).parent.mkdir(exist_ok=True)
                os.replace(path, staging / name)
            else:
                shipped[name] = path.read_bytes()
        return done, shipped
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _sees(staging: Path, token: str) -> bool:
    """Whether this is the driver's staging directory, and not one of equal path on another machine."""
    try:
        return (staging / _TOKEN).read_text() == token
    except OSError:
        return False


def _place(staging: Path, name: str, data: bytes) -> None:
    (staging / name).parent.mkdir(exist_ok=True)
    aside = staging / f"{secrets.token_hex(8)}.tmp"
    write_synced(aside, data)
    os.replace(aside, staging / name)
