"""What a feeder process and its parent tell each other: short JSON messages over a socket pair, arrays as places in the arena.

Nothing received is run: an error comes as the name of its type, its arguments and its traceback as text, and becomes an exception
of that type if the receiver has it loaded already.
"""

from __future__ import annotations

import builtins
import json
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import HeadwayError, WorkerDied
from .payloads import PayloadPlace, place_at, place_of
from .quarantine import BadSample

__all__ = [
    "Message",
    "RemoteTraceback",
    "bad_from_json",
    "bad_to_json",
    "contents_from_json",
    "contents_to_json",
    "error_from_json",
    "error_to_json",
    "receive",
    "send",
]

Message = dict[str, Any]  # Any: JSON
Contents = dict[str, Any]  # Any: see Batch
_LIMIT: Final = 256 << 20
"""Bytes of a message: names and texts of one batch are some KB; more is not one of ours."""
_TEXT: Final = 20_000


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text: the cause of the error that is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def send(to: socket.socket, message: Message) -> None:
    """Send one message, whole."""
    data = json.dumps(message).encode()
    to.sendall(struct.pack("<Q", len(data)) + data)


def receive(source: socket.socket) -> Message | None:
    """Wait for one message; None: the other side is gone."""
    head = _exactly(source, 8)
    if head is None:
        return None
    (size,) = struct.unpack("<Q", head)
    if size > _LIMIT:
        raise WorkerDied(f"a feeder process announced a message of {size} bytes, more than {_LIMIT} are never sent")
    data = _exactly(source, size)
    if data is None:
        return None
    message: Message = json.loads(data)
    return message


def _exactly(source: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while len(view):
        try:
            got = source.recv_into(view)
        except ConnectionError:
            return None
        if not got:
            return None
        view = view[got:]
    return data


def contents_to_json(value: Any, place: Callable[[NDArray[Any]], int]) -> Any:  # Any: see Batch
    """Return a batch's contents with each array as [place in the arena, dtype, shape]."""
    if isinstance(value, dict):
        return {"d": {name: contents_to_json(item, place) for name, item in value.items()}}
    if isinstance(value, np.ndarray):
        return {"a": [place(value), value.dtype.str, list(value.shape)]}
    return {"v": value}


def contents_from_json(described: Any, memory: memoryview) -> Any:  # Any: JSON; see Batch
    """Return the contents, arrays as views of `memory`, which is the arena."""
    if "d" in described:
        return {name: contents_from_json(item, memory) for name, item in described["d"].items()}
    if "a" not in described:
        return described["v"]
    start, dtype, shape = described["a"]
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, dtype)
    return np.frombuffer(memory, dtype, count, start).reshape(shape)


def error_to_json(error: BaseException) -> Message:
    """Describe an error with its traceback."""
    simple = all(isinstance(argument, str | int | float | None) for argument in error.args)
    lines = "".join(traceback.format_exception(error))
    place = place_of(error)
    return {
        "module": type(error).__module__,
        "name": type(error).__qualname__,
        "args": list(error.args) if simple else [str(error)],
        "notes": [str(note) for note in getattr(error, "__notes__", ())],
        "traceback": lines if len(lines) <= _TEXT else f"{lines[: _TEXT // 2]}\n…\n{lines[-_TEXT // 2 :]}",
        "place": None if place is None else [place.sensor, place.stamp],
    }


def error_from_json(described: Message) -> Exception:
    """Return the error, of its own type where that is loaded here and takes its arguments back, with the traceback as cause."""
    name, arguments = described["name"], described["args"]
    found: Any = builtins if described["module"] == "builtins" else sys.modules.get(described["module"])  # Any: a module
    for part in name.split("."):
        found = getattr(found, part, None)
    error: Exception | None = None
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            error = found(*arguments)
        except Exception:  # its constructor wants something else; what it says is kept all the same
            error = None
    if error is None:
        error = RuntimeError(f"{name}: {', '.join(map(str, arguments))}")
    for note in described["notes"]:
        error.add_note(note)
    error.__cause__ = RemoteTraceback(described["traceback"])
    if described["place"] is not None:
        place_at(error, PayloadPlace(*described["place"]))
    return error


def bad_to_json(bad: BadSample) -> Message:
    """Describe a decision of the fault policy."""
    return {
        "planned": bad.planned,
        "item": bad.item,
        "error": error_to_json(bad.error),
        "action": bad.action,
        "epoch": bad.epoch,
        "step": bad.step,
        "replaced": bad.replaced,
    }


def bad_from_json(described: Message) -> BadSample:
    """Return the decision."""
    error = error_from_json(described["error"])
    return BadSample(**{**described, "error": error if isinstance(error, HeadwayError) else HeadwayError(str(error))})
