"""The ledger: a set whose payloads say who they are, the history of a run over it, and one checker for what a run promises.

`ledger_spec()` names the source for the packer; `payload_of(item)` is what must come back for an item, so a payload can be
checked alone. A run records an `Entry` per batch (`History` keeps them as JSON lines, a file a process, so that killed
processes leave what they did); `check` proves exactly-once, order, hashes, masks and equal ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headway.formats import Attachment, DriveListing, Ignored, Schema, Sensor, SourceDrive, SourceTimeline
from headway.formats.adapters import SourceSpec
from headway.loader.plan import Plan

__all__ = ["Entry", "History", "LedgerSource", "check", "check_payload", "ledger_spec", "open_ledger", "payload_of"]

KIND = "tests.ledger:open_ledger"
SENSOR = "LEDGER"
START_NS = 1_600_000_000_000_000_000


def payload_of(item: int) -> str:
    """Return the payload of an item: its number, the length and xxh3-64 of its body, and the body."""
    body = "".join(chr(97 + (item * 7 + place * place) % 26) for place in range(item % 97))
    return f"{item}:{len(body)}:{xxhash.xxh3_64_hexdigest(body.encode())}:{body}"


def check_payload(payload: str) -> int:
    """Return the item a payload says it is, once length, hash and body agree."""
    number, length, digest, body = payload.split(":")
    assert len(body) == int(length), f"payload of item {number}: {len(body)} characters, it says {length}"
    assert xxhash.xxh3_64_hexdigest(body.encode()) == digest, f"payload of item {number}: its body has another hash"
    return int(number)


def ledger_spec(*, drives: int = 3, frames: int = 20) -> SourceSpec:
    """Name a ledger source: drive d has frames + d frames, items are numbered through in (drive, stamp) order."""
    return SourceSpec(kind=KIND, path="", options={"drives": drives, "frames": frames})


def open_ledger(spec: SourceSpec) -> LedgerSource:
    """Open the source a spec names."""
    drives, frames = spec.options["drives"], spec.options["frames"]
    assert isinstance(drives, int)
    assert isinstance(frames, int)
    return LedgerSource(drives=drives, frames=frames)


@dataclass(frozen=True, kw_only=True)
class LedgerSource:
    """The source; equal arguments give equal data."""

    drives: int
    frames: int
    kind: str = "ledger"
    licence: str = "CC0-1.0"
    ignored: Sequence[Ignored] = ()
    attachments: Sequence[Attachment] = ()

    @property
    def schema(self) -> Schema:
        return Schema(reference=SENSOR, sensors=(Sensor(name=SENSOR, kind="text", codec="text", frame=""),))

    @property
    def items(self) -> int:
        return sum(self.frames + drive for drive in range(self.drives))

    @property
    def listings(self) -> Sequence[DriveListing]:
        return [DriveListing(name=f"drive-{drive:04d}", source_bytes=100 * self.frames) for drive in range(self.drives)]

    def open_drive(self, name: str) -> SourceDrive:
        drive = int(name.removeprefix("drive-"))
        first = sum(self.frames + before for before in range(drive))
        stamps = START_NS + drive * 10**12 + np.arange(self.frames + drive, dtype=np.int64) * 500_000_000
        timeline = SourceTimeline(stamps=stamps, columns={}, read=lambda row: payload_of(first + row))
        return SourceDrive(timelines={SENSOR: timeline})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One batch as one rank received it."""

    rank: int
    epoch: int
    step: int
    micro: int = 0
    slots: tuple[int, ...]
    ids: tuple[int, ...]
    """Planned items; −1 is padding."""
    valid: tuple[bool, ...]
    replaced: tuple[int, ...]
    """The item delivered instead; −1: the planned one."""
    payloads: tuple[str, ...]
    """As delivered, "" where not valid."""
    faults: tuple[str, ...] = ()
    """What was injected, in words."""


@dataclass
class History:
    """What a run did, in the order it did it."""

    entries: list[Entry] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Append all entries to a file."""
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(entry)) + "\n" for entry in self.entries)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> History:
        """Return the entries of several processes; a line cut short by a kill was not received and is left out."""
        entries = []
        for path in paths:
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n"):
                    found = json.loads(line)
                    values: dict[str, Any] = {  # Any: one type a field
                        key: tuple(value) if isinstance(value, list) else value for key, value in found.items()
                    }
                    entries.append(Entry(**values))
        return cls(entries)


def check(history: History, plans: Mapping[int, Plan], *, complete: bool = True, repeats: bool = False) -> None:
    """Prove that a history is a run of `plans` (epoch → plan), or raise AssertionError naming the entry.

    Args:
        complete: every step of every plan was received by all ranks.
        repeats: batches may have been received twice (a resume from an older state); the copies must then be equal.
    """
    received: dict[tuple[int, int, int], tuple[int, bool, int, str]] = {}
    for entry in history.entries:
        plan = plans[entry.epoch]
        where = f"epoch {entry.epoch}, step {entry.step}, micro-batch {entry.micro}, rank {entry.rank}"
        lengths = {len(values) for values in (entry.slots, entry.ids, entry.valid, entry.replaced, entry.payloads)}
        assert len(lengths) == 1, f"{where}: fields of lengths {sorted(lengths)}"
        planned = plan.step(entry.step, min(entry.slots), max(entry.slots) + 1).items[np.array(entry.slots) - min(entry.slots)]
        assert list(entry.ids) == planned.tolist(), f"{where}: items {entry.ids}, the plan says {planned.tolist()}"
        for slot, item, valid, replaced, payload in zip(
            entry.slots, entry.ids, entry.valid, entry.replaced, entry.payloads, strict=True
        ):
            _check_delivery(f"{where}, slot {slot}", item, valid, replaced, payload)
            key, value = (entry.epoch, entry.step, slot), (item, valid, replaced, payload)
            assert repeats or key not in received, f"{where}: slot {slot} was received twice"
            assert received.setdefault(key, value) == value, f"{where}: slot {slot} was received twice and differs"
    _check_ranks(history, repeats=repeats)
    if complete:
        for epoch, plan in plans.items():
            # A plan of several segments is complete from its last one on; earlier ones have their own histories.
            expected = {(epoch, step, slot) for step in range(plan.first_step, plan.steps) for slot in range(plan.batch_size)}
            missing = expected - received.keys()
            assert not missing, f"epoch {epoch}: {len(missing)} places were never received, first {min(missing)}"


def _check_delivery(where: str, item: int, valid: bool, replaced: int, payload: str) -> None:
    if item < 0:
        assert not valid, f"{where}: padding is marked valid"
    if not valid:
        assert replaced < 0, f"{where}: a masked item cannot be replaced, too"
        assert not payload, f"{where}: not valid, but a payload came"
        return
    delivered = check_payload(payload)
    expected = item if replaced < 0 else replaced
    assert delivered == expected, f"{where}: the payload is item {delivered}'s, it should be item {expected}'s"


def _check_ranks(history: History, *, repeats: bool) -> None:
    """Equal ranks: in an epoch, every rank received the same steps and micro-batches, in ascending order."""
    by_rank: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for entry in history.entries:
        by_rank.setdefault((entry.epoch, entry.rank), []).append((entry.step, entry.micro))
    by_epoch: dict[int, set[tuple[tuple[int, int], ...]]] = {}
    for (epoch, rank), steps in by_rank.items():
        assert repeats or steps == sorted(steps), f"epoch {epoch}, rank {rank}: batches out of order"
        by_epoch.setdefault(epoch, set()).add(tuple(sorted(set(steps))))
    for epoch, walks in by_epoch.items():
        assert len(walks) == 1, f"epoch {epoch}: ranks received different steps ({[len(walk) for walk in walks]} batches)"
