"""Batches from feeder processes: their side here. Started with an iterator, told what is wanted, mapped, watched, ended with it.

Memory goes one way and is never copied on it: a process lays a batch into its arena and says where, the tensors here are views
of the same pages, and when the last one is dropped the process is told so. A process that ends unasked is noticed at once (its
end of the channel closes), and what is raised says how it ended and what it was doing.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import multiprocessing
import os
import select
import signal
import socket
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import UsageError, WorkerDied
from .arena import HEADER_BYTES, create_arena
from .batch import Batch
from .buffers import BufferPool
from .cores import Claim
from .delivery import Delivery
from .draft import Task
from .engine import Engine
from .faults import FaultPolicy
from .feeder_messages import Message, bad_from_json, contents_from_json, error_from_json, receive, send
from .feeder_process import STAGES, Feeding, feed
from .samples import Sample
from .stall import Span, Stage, Trail, attach
from .transforms import Start

__all__ = ["FeederEngine", "Feeding"]

_LOOK_S: Final = 0.1  # between looks at what was dropped meanwhile
_END_S: Final = 2.0
_STACKS_S: Final = 1.0


class FeederEngine(Engine[Batch]):
    """An engine whose batches come from processes; one thread here receives them and finishes them."""

    def __init__(
        self,
        feeding: Feeding,
        processes: int,
        pool: BufferPool,
        faults: FaultPolicy,
        deliver: Delivery,
        claim: Claim | None = None,
        trail: Callable[[], Trail] = Trail,
    ) -> None:
        self._feeder = _Feeder(feeding, processes)
        super().__init__(
            _Received(self._feeder, faults, deliver),
            pool,
            first=feeding.first,
            last=feeding.last,
            threads=1,
            prefetch=feeding.options.batches_ahead,
            stall_s=feeding.options.stall_s,
            claim=claim,
            trail=trail,
        )

    def start(self) -> None:
        """Start the processes and the thread."""
        self._feeder.start()
        super().start()

    def close(self, *, wait: bool = True) -> None:
        """End the thread and the processes."""
        if os.getpid() != self._pid:
            return
        self._feeder.end()
        super().close(wait=wait)
        self._feeder.join()

    def awaited(self) -> Stage:
        """Return what the batch that is to be handed out next is in."""
        return self._feeder.awaited()

    def values(self) -> dict[str, float]:
        """Return what is chosen, by its name in `metrics`; batch memory is in the processes."""
        return {"feeder_processes": float(len(self._feeder.children)), "memory_bytes": float(self._pool.budget_bytes)}

    def _stalled(self, waited: float) -> str:
        return f"{super()._stalled(waited)}\nFeeder processes:\n{self._feeder.describe()}"


class _Received:
    """The recipe: a step is a batch to wait for."""

    def __init__(self, feeder: _Feeder, faults: FaultPolicy, deliver: Delivery) -> None:
        self.feeder, self.faults, self.deliver = feeder, faults, deliver

    def begin(self, step: int) -> _ReceivedStep:
        return _ReceivedStep(self, step)


class _ReceivedStep:
    def __init__(self, recipe: _Received, number: int) -> None:
        self._recipe, self._number = recipe, number
        self.what = f"batch {number}"
        self.sizes: Sequence[int] = ()
        self.changes = False
        self._contents: Sample = {}

    def tasks(self, memory: Sequence[NDArray[np.uint8]]) -> Sequence[Task]:
        return [Task(self._wait, "waiting for its feeder process")]

    def finish(self) -> Batch | None:
        contents, self._contents = self._contents, {}
        self._recipe.faults.passed(int((contents["id"] >= 0).sum()))
        return self._recipe.deliver(contents)

    def _wait(self) -> None:
        message = self._recipe.feeder.get(self._number)
        for bad in message.faults:
            self._recipe.faults.take(bad_from_json(bad))
        if message.error is not None:
            raise message.error
        attach(message.trail)
        self._contents = message.contents


class _Arrived:
    def __init__(self, contents: Sample, error: Exception | None, message: Message) -> None:
        self.contents, self.error = contents, error
        self.faults: list[Message] = message["faults"]
        self.trail: list[Span] = [tuple(span) for span in message.get("trail", ())]


class _Child:
    """One process, its channel and its arena."""

    def __init__(self, feeding: Feeding, index: int, processes: int) -> None:
        options, self.index = feeding.options, index
        self.channel, self._theirs = socket.socketpair()
        self.stacks = os.memfd_create("headway-stacks", os.MFD_CLOEXEC)
        self._file, size = create_arena(options.memory_bytes // processes)
        self.memory = mmap.mmap(self._file, size)
        self.status: NDArray[np.int64] = np.frombuffer(self.memory, np.int64, HEADER_BYTES // 8)
        self.dropped: deque[int] = deque()
        """Batches whose last view is gone; finalisers append, whoever talks to the process passes it on."""
        context: Any = multiprocessing.get_context(_method(options.transforms.start))  # Any: its classes differ by method
        is_main = threading.current_thread() is threading.main_thread()
        forked = context.get_start_method() == "fork"
        self.process: BaseProcess = context.Process(
            target=_fed if forked else feed,
            args=(feeding, index, processes, self._theirs, os.getpid()),
            # A process whose parent died is killed by the kernel, if it is the child of the main thread: others end before us.
            kwargs={"dies_with_parent": is_main and context.get_start_method() != "forkserver"},
            name=f"headway-feeder-{index}",
            daemon=True,
        )
        self.method: str = context.get_start_method()

    def start(self) -> None:
        try:
            with warnings.catch_warnings():
                # Python warns of threads at a fork. The child uses nothing of theirs: it opens sets anew, has threads of its own.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.process.start()
        except AssertionError as error:
            raise UsageError(
                "this process may not have children of its own (it is daemonic); set Transforms(processes=0)"
            ) from error
        except (AttributeError, TypeError, ValueError, ImportError) as error:
            raise _unsendable(self.method, error) from error
        except Exception as error:
            if type(error).__name__ != "PicklingError":  # its module is not one to import here
                raise
            raise _unsendable(self.method, error) from error
        self._theirs.close()
        socket.send_fds(self.channel, [b"\0"], [self._file, self.stacks])
        os.close(self._file)
        self._file = -1

    def view(self, message: Message) -> Sample:
        """Return the batch of a message, over memory that is reported as dropped with its last view."""
        owner = (ctypes.c_uint8 * len(self.memory)).from_buffer(self.memory)
        weakref.finalize(owner, self.dropped.append, message["batch"]).atexit = False
        contents: Sample = contents_from_json(message["contents"], memoryview(owner).cast("B"))
        return contents

    def tell(self, allow: int) -> None:
        release = []
        while self.dropped:
            release.append(self.dropped.popleft())
        with contextlib.suppress(OSError):  # a process that is gone is noticed where it is listened to
            send(self.channel, {"allow": allow, "release": release})

    def shut(self) -> None:
        for end in (self.channel, self._theirs):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.channel.close()
        self._theirs.close()
        for file in (self._file, self.stacks):
            if file >= 0:
                os.close(file)
        self._file = self.stacks = -1

    def doing(self) -> str:
        stage, number, item = self.status[:3].tolist()
        about = f", last item {item}" if item >= 0 else ""
        return f"{STAGES[stage] if 0 <= stage < len(STAGES) else 'lost'} batch {number}{about}"

    def how_it_ended(self) -> str:
        self.process.join(_END_S)
        code = self.process.exitcode
        if code is None:
            return "closed its channel"
        if code < 0:
            try:
                return f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"was killed by signal {-code}"
        return f"ended with exit code {code}"

    def told_stacks(self) -> str:
        size = os.fstat(self.stacks).st_size
        return os.pread(self.stacks, min(size, 1 << 20), 0).decode(errors="replace") if size else ""


class _Feeder:
    """The processes of one iterator. `get` is called by one thread at a time, `end` and `describe` by any."""

    def __init__(self, feeding: Feeding, processes: int) -> None:
        self._feeding = feeding
        self._count = max(1, min(processes, feeding.last - feeding.first))
        self.children: list[_Child] = []
        self._arrived: dict[int, _Arrived] = {}
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._died: str = ""
        self._wanted = feeding.first

    def start(self) -> None:
        _open.add(self)
        try:
            for index in range(self._count):
                child = _Child(self._feeding, index, self._count)
                self.children.append(child)
                child.start()
        except BaseException:
            self.end()
            self.join()
            raise

    def get(self, number: int) -> _Arrived:
        """Return batch `number` once it is there."""
        self._wanted = number
        ahead = self._feeding.options.batches_ahead
        allow = number + (max(ahead, self._count - 1) if ahead else 0)
        for child in self.children:
            child.tell(allow)
        while number not in self._arrived:
            if self._ended.is_set():
                raise WorkerDied("this iterator was closed while it waited for a batch")
            if self._died:
                raise WorkerDied(self._died)
            self._exchange(allow)
        return self._arrived.pop(number)

    def _exchange(self, allow: int) -> None:
        """Hear what the processes have to say, for a moment."""
        poll = select.poll()
        by_file: dict[int, _Child] = {child.channel.fileno(): child for child in self.children}
        for file in by_file:
            poll.register(file, select.POLLIN)
        for file, _ in poll.poll(_LOOK_S * 1000):
            child = by_file[file]
            message = receive(child.channel)
            if message is None:
                if not self._ended.is_set():
                    self._died = self._obituary(child)
                return
            error = error_from_json(message["error"]) if "error" in message else None
            self._arrived[message["batch"]] = _Arrived({} if error is not None else child.view(message), error, message)
        for child in self.children:
            if child.dropped:
                child.tell(allow)

    def _obituary(self, child: _Child) -> str:
        how = child.how_it_ended()
        stacks = child.told_stacks()
        return (
            f"feeder process {child.process.pid} {how} while {child.doing()}; a transform that exits or crashes does this, so "
            "does a system that is out of memory (see its log); Transforms(processes=0) runs it in this process"
            + (f"\n{stacks}" if stacks else "")
        )

    def awaited(self) -> Stage:
        """Return what the process is in whose batch is waited for."""
        for child in self.children:
            if self._wanted % len(self.children) == (child.index + self._feeding.first) % len(self.children):
                return _IN_STAGE[int(child.status[0])]
        return "start"

    def describe(self) -> str:
        """Return what each process is doing, with the stacks of its threads."""
        lines = []
        for child in self.children:
            before = os.fstat(child.stacks).st_size
            with contextlib.suppress(OSError, TypeError):
                os.kill(child.process.pid or 0, signal.SIGUSR1) if child.process.pid else None
            until = time.monotonic() + _STACKS_S
            while os.fstat(child.stacks).st_size == before and time.monotonic() < until:
                time.sleep(0.01)
            held = " (your program still holds batches, or views of them)" if child.status[0] == _MEMORY else ""
            lines.append(f"  process {child.process.pid}: {child.doing()}{held}\n{child.told_stacks()}")
        return "\n".join(lines)

    def end(self) -> None:
        """Have the processes end."""
        self._ended.set()
        for child in self.children:
            child.shut()
            if child.process.pid is not None and os.getpid() == self._pid:
                with contextlib.suppress(ValueError):  # joined already
                    child.process.kill()  # nothing in there is worth waiting for: what it made is in the plan

    def join(self) -> None:
        """Reap the processes, which were killed, and let go of everything shared with them but the batches still held."""
        _open.discard(self)
        for child in self.children:
            if child.process.pid is not None:
                child.process.join(_END_S)
            child.close()
        self._arrived.clear()


_MEMORY: Final = STAGES.index("waiting for batch memory")
_IN_STAGE: Final[tuple[Stage, ...]] = ("start", "decode", "transform", "memory", "handover")  # as STAGES
_open: weakref.WeakSet[_Feeder] = weakref.WeakSet()


def _fed(*arguments: Any, **more: Any) -> None:  # Any: as `feed`
    """Be a forked process: let go of what belongs to the parent's other processes, whose ends it must not keep open."""
    gc.freeze()  # what lies about in the parent is finalised there
    for feeder in list(_open):
        for child in feeder.children:
            child.channel.close()
            if child.stacks >= 0 and child.channel is not None:
                os.close(child.stacks)
                child.stacks = -1
    feed(*arguments, **more)


def _method(start: Start) -> str:
    if start != "auto":
        return start
    return "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


def _unsendable(method: str, error: Exception) -> UsageError:
    return UsageError(
        f"cannot hand the transforms to a process started by {method!r}: {error}; define them (no lambdas, no functions inside "
        "functions) at the top level of a module, or use Transforms(start='fork')"
    )
