"""The process that loads, decodes and transforms every n-th batch: the same engine as in a loader's threads, without torch.

Batches are made ahead as far as the parent allows, laid into the arena, and told to the parent, which gives their memory back
when the last view of them is dropped there. The process ends with its parent, however that ends.
"""

from __future__ import annotations

import copy
import faulthandler
import os
import select
import signal
import socket
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import WorkerDied
from ..formats.parent_death import die_with_parent
from .arena import Arena
from .buffers import SMALL_BYTES, BufferPool
from .dataset import Dataset
from .decode import Decoder
from .engine import Begun, Engine
from .faults import FaultPolicy
from .feeder_messages import bad_to_json, contents_to_json, error_to_json, receive, send
from .native_decode import default_decoder
from .options import LoaderOptions
from .plan import Plan
from .quarantine import BadSample
from .sample_stage import SampleStage
from .stall import Span, Trail, now_ns, within
from .steps import Contents, StepRecipe

__all__ = ["STAGES", "Feeding", "feed"]

STAGES: Final = ("starting", "decoding", "transforming", "waiting for batch memory", "waiting to be asked")
"""What `Arena.status[0]` says; [1] is the batch, [2] the item (−1: none in particular)."""
_DECODE, _TRANSFORM, _MEMORY, _IDLE = 1, 2, 3, 4
_NEVER_S: Final = 1e9  # the parent watches
_ALIGN: Final = 64
_LANES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """What the processes of one epoch are to make."""

    dataset: Dataset
    decoder: Decoder | None
    plan: Plan
    options: LoaderOptions
    batch_size: int
    rank: int
    threads: int
    """Decode threads of all processes together; 0: each decodes in its main thread."""
    first: int
    last: int


def feed(feeding: Feeding, index: int, processes: int, channel: socket.socket, parent: int, *, dies_with_parent: bool) -> None:
    """Be process `index` of `processes`: make batches first + index, and every `processes`-th from there on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if dies_with_parent:
        die_with_parent(parent)
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 2)
    file, stacks = descriptors
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    arena = Arena(file, os.fstat(file).st_size)
    control = _Control(channel, parent)
    try:
        _Feeder(feeding, index, processes, arena, control).run()
    except BaseException as error:  # whatever it is, the parent gets it
        control.send({"batch": int(arena.status[1]), "error": error_to_json(_explained(error, arena))})
    control.until_closed()


def _explained(error: BaseException, arena: Arena) -> BaseException:
    """Return what is to be raised in the parent."""
    if isinstance(error, Exception) and not isinstance(error, MemoryError):
        return error
    died = WorkerDied(
        f"feeder process {os.getpid()} was ended by {error!r} while {STAGES[int(arena.status[0])]} batch {int(arena.status[1])}, "
        f"last item {int(arena.status[2])}"
    )
    died.__cause__ = error
    return died


class _Control:
    """The channel to the parent: what it allows, what it gives back, and that it is still there."""

    def __init__(self, channel: socket.socket, parent: int) -> None:
        self._channel = channel
        self._changed = threading.Condition()
        self._allowed = -1
        self.held: dict[int, Contents] = {}
        """Batches that the parent sees, by number."""
        self.faults: list[BadSample] = []
        self._closed = threading.Event()
        self._parent = os.pidfd_open(parent)
        threading.Thread(target=self._listen, name="headway-feeder-control", daemon=True).start()

    def allowed(self, number: int) -> None:
        """Wait until the parent wants batch `number`."""
        with self._changed:
            self._changed.wait_for(lambda: self._allowed >= number)

    def send(self, message: dict[str, Any]) -> None:  # Any: JSON
        """Tell the parent, with what the fault policy decided meanwhile."""
        faults, self.faults = self.faults, []
        try:
            send(self._channel, {**message, "faults": [bad_to_json(bad) for bad in faults]})
        except OSError:
            os._exit(0)  # the parent is gone, or does not want any more

    def until_closed(self) -> None:
        """Wait for the end, which ends the process."""
        self._closed.wait()

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._parent, select.POLLIN)
        while True:
            for ready, _ in poll.poll():
                message = None if ready == self._parent else receive(self._channel)
                if message is None:
                    os._exit(0)  # nothing here outlives the parent's interest, whatever the other threads are in
                with self._changed:
                    self._allowed = max(self._allowed, message["allow"])
                    for number in message["release"]:
                        self.held.pop(number, None)
                    self._changed.notify_all()


class _Strided:
    """The recipe of one process: its batch k is batch start + k × stride of the epoch."""

    def __init__(self, recipe: StepRecipe[Contents], start: int, stride: int) -> None:
        self._recipe, self._start, self._stride = recipe, start, stride

    def begin(self, step: int) -> Begun[Contents]:
        return self._recipe.begin(self._start + step * self._stride)


class _Feeder:
    def __init__(self, feeding: Feeding, index: int, processes: int, arena: Arena, control: _Control) -> None:
        self._arena, self._control = arena, control
        began = now_ns()
        self._lanes: dict[int, int] = {}
        options = replace(feeding.options, max_bad=1 << 60, max_bad_share=1.0)  # the parent counts for all processes
        # Opened anew: nothing of a forked parent's, whose threads may have held locks of it, is used.
        dataset = copy.deepcopy(feeding.dataset)
        decoder = feeding.decoder or default_decoder()
        assembler = dataset.assembler(decoder)
        faults = FaultPolicy(options, view=feeding.plan.view, epoch=feeding.plan.epoch, record=self._bad)
        recipe = StepRecipe(
            feeding.plan,
            assembler,
            faults,
            batch_size=feeding.batch_size,
            rank=feeding.rank,
            accumulate=options.accumulate,
            deliver=_as_they_are,
        )
        call = options.transforms.sample
        self._stage = None if call is None else SampleStage(call, assembler, feeding.plan)
        # What is decoded and what transforms make do not compete: else batches ahead could keep the next one from being finished.
        budget = options.memory_bytes // processes
        made = budget // 2 if call is not None else budget // 4
        self._made = BufferPool(made, arena.block)
        threads = max(1, feeding.threads // processes) if feeding.threads else 0
        if threads:
            decoder.start(threads)
        numbers = range(feeding.first + index, feeding.last, processes)
        self._numbers = numbers
        self._engine: Engine[Contents] = Engine(
            _Strided(recipe, numbers.start, processes),
            BufferPool(budget - made, arena.block),
            first=0,
            last=len(numbers),
            threads=max(2, threads) if threads and decoder.whole_step else threads,
            prefetch=min(1, options.batches_ahead),
            stall_s=_NEVER_S,
        )

        self._begun: list[Span] = [("start", began, began, now_ns(), threading.get_ident())]

    def run(self) -> None:
        self._engine.start()
        for number in self._numbers:
            self._say(_IDLE, number)
            self._control.allowed(number)
            self._say(_DECODE, number)
            contents = self._next(number)
            trail = self._engine.trail or Trail()
            if self._stage is not None:
                trail.begin("transform")
                contents = self._stage(contents, self._allocate, begun=partial(self._say, _TRANSFORM, number))
                trail.end()
            trail.begin("assemble")
            described = self._laid_out(contents)
            trail.end()
            self._control.held[number] = contents
            done = [(*span[:4], self._lane(span[4])) for span in self._begun + trail.spans]
            self._begun.clear()
            self._control.send({"batch": number, "contents": described, "trail": done})
            del contents

    def _lane(self, thread: int) -> int:
        """Return a number for a thread of this process that no other process has."""
        return os.getpid() * _LANES + self._lanes.setdefault(thread, len(self._lanes)) % _LANES

    def _next(self, number: int) -> Contents:
        try:
            return self._engine.next()
        except Exception as error:
            # The engine counts the batches of this process; people count those of the rank.
            notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("while making batch")]
            error.__notes__ = [*notes, f"while making batch {number} in feeder process {os.getpid()}"]
            raise

    def _bad(self, bad: BadSample) -> None:
        self._control.faults.append(bad)

    def _say(self, stage: int, number: int, item: int = -1) -> None:
        self._arena.status[:3] = stage, number, item

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:  # Any: by the user's transform
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size <= SMALL_BYTES:
            return np.empty(shape, dtype)
        return self._lease(size).view(dtype).reshape(shape)

    def _lease(self, size: int) -> NDArray[np.uint8]:
        before = self._arena.status[:3].copy()
        self._arena.status[0] = _MEMORY
        with within("memory"):
            (memory,) = self._made.lease([size], what=f"batch {int(before[1])}, after the transform,", timeout_s=None)
        self._arena.status[:3] = before
        return memory

    def _laid_out(self, contents: Contents) -> Any:  # Any: JSON
        """Copy what does not lie in the arena yet into one piece of it, and say where everything is."""
        apart: list[NDArray[Any]] = []
        starts: dict[int, int] = {}
        total = 0

        def measure(array: NDArray[Any]) -> int:
            nonlocal total
            if array.nbytes and (not array.flags.c_contiguous or self._arena.start_of(array) is None):
                apart.append(array)
                starts[id(array)] = total
                total += -(-array.nbytes // _ALIGN) * _ALIGN
            return 0

        contents_to_json(contents, measure)
        memory = self._lease(total) if total else np.empty(0, np.uint8)
        begin = self._arena.start_of(memory) or 0
        for array in apart:
            start = starts[id(array)]
            memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
        contents["\0memory"] = memory
        return contents_to_json(
            {name: value for name, value in contents.items() if name != "\0memory"},
            lambda array: begin + starts[id(array)] if id(array) in starts else (self._arena.start_of(array) or 0),
        )


def _as_they_are(contents: Contents) -> Contents:
    return contents
