"""An index that was made to hurt, hashes and all, gives typed errors or plain values: never a signal, never a stray read."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headway.formats import HeadwayError, Manifest, PackedSet, PackOptions, ShardKind, open_set, pack
from headway.formats.integrity import chunk_sums, payload_hash
from headway.formats.manifest import FileEntry
from tests.formats.ramp import ramp_spec
from tests.laws.test_sets import read_all

Mutation = Callable[[random.Random, bytearray], None]


def flip(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def giant(rng: random.Random, data: bytearray) -> None:
    """Put an extreme number where a length, an offset or a count may be."""
    value = rng.choice([0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63)])
    at = rng.randrange(0, len(data) - 8, 4)
    data[at : at + 8] = struct.pack("<q", value) if value < 2**63 else b"\xff" * 8


def shuffle(rng: random.Random, data: bytearray) -> None:
    """Copy a run of bytes over another."""
    size = rng.randrange(1, 64)
    source, target = rng.randrange(len(data) - size), rng.randrange(len(data) - size)
    data[target : target + size] = data[source : source + size]


def vouch_for(location: Path, manifest: Manifest, index: bytes) -> Manifest:
    """Write an index in place of the first shard's, and a manifest that gives it the right hashes."""
    shard = manifest.shards[0]
    (location / shard.index_name).write_bytes(index)
    sums = chunk_sums(index)
    (location / shard.sums_name).write_bytes(sums)
    entry = FileEntry(bytes=len(index), sha256="0" * 64)
    changed = replace(shard, sums_xxh3=f"{payload_hash(sums):016x}")
    changed = replace(changed, index=entry) if shard.index is not None else replace(changed, data=entry)
    return replace(manifest, shards=(changed,))


def attack(location: Path, seed: int, count: int) -> int:
    """Read many mutants in a child process; return its status."""
    manifest = open_set(location).manifest
    original = (location / manifest.shards[0].index_name).read_bytes()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    try:
        rng = random.Random(seed)
        for _ in range(count):
            data = bytearray(original)
            for _ in range(rng.randrange(1, 4)):
                mutation: Mutation = rng.choice([flip, giant, shuffle])
                mutation(rng, data)
            try:
                with PackedSet(location, vouch_for(location, manifest, bytes(data))) as packed:
                    read_all(packed)
            except HeadwayError:
                continue
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        raise
    finally:
        os._exit(code)


@pytest.fixture(params=["arrow", "tar"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small set to attack."""
    kind: ShardKind = request.param
    options = PackOptions(format=kind, workers=1, sensors=("KEY", "BOX", "ego"))
    pack(ramp_spec(drives=1, frames=2, image_bytes=40), tmp_path / "set", options)
    return tmp_path / "set"


@pytest.mark.slow
def test_mutants_give_typed_errors_or_values(target: Path) -> None:
    assert attack(target, 1, 250) == 0


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_very_many_mutants_give_typed_errors_or_values(target: Path) -> None:
    assert attack(target, 2, 50_000) == 0
