"""Sizes at the borders of 32 bits: batches of 2 GiB and more read back equal once the limits are raised explicitly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.formats import Column, LimitExceeded, Limits, Manifest, PackedSet, Part, Schema, Sensor, SensorStats
from headway.formats.manifest import Drive
from headway.formats.shard import DriveShare, PartRows, ShardBuilder, ShardKind, SourceFacts

SCHEMA = Schema(
    reference="BLOB",
    sensors=(Sensor(name="BLOB", kind="array", codec="array", fields=(Column(name="value", dtype="uint8"),)),),
)
PIECE = 1 << 26


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["arrow", "tar"])
def test_a_batch_above_two_gibibytes_reads_back(kind: ShardKind, tmp_path: Path) -> None:
    """apache/arrow#2485, apache/arrow#44164, ray-project/ray#29492: 32-bit offsets end at 2^31 - 1, whatever order is read."""
    sizes = [PIECE] * 31 + [PIECE - 2, 1, 1, 9]  # crosses 2^31 - 2, 2^31 - 1, 2^31 and goes on
    builder = ShardBuilder(tmp_path, "shard-00000-000", schema=SCHEMA, kind=kind, facts=SourceFacts(source="", licence=""))
    builder.begin(DriveShare(name="d", first=0, frames=len(sizes), attributes={}, attachments=()))
    for at, size in enumerate(sizes):
        builder.add(0, bytes([at]) * size, frame=at, stamp_ns=at, own=True)
    stamps = np.arange(len(sizes))
    counts, own = np.ones(len(sizes), np.int64), np.zeros(len(sizes), np.int32)
    builder.end(stamps, [PartRows(counts=counts, own=own, stamps=stamps, columns={})])
    done = builder.finish()
    manifest = Manifest(
        schema=SCHEMA,
        drives=(Drive(name="d", attributes={}, attachments=(), parts=(Part(shard=0, frames=len(sizes), rows=(len(sizes),)),)),),
        shards=(done.shard,),
        set_id="0" * 64,
        source="",
        licence="",
        sensors={"BLOB": SensorStats(rows=len(sizes), payloads=len(sizes), bytes=sum(sizes))},
        rejected=0,
    )
    del builder
    with pytest.raises(LimitExceeded, match=r"Limits\.shard_bytes"), PackedSet(tmp_path, manifest) as packed:
        packed.timeline("BLOB").payload(0)
    with PackedSet(tmp_path, manifest, limits=Limits(shard_bytes=1 << 33)) as packed:
        timeline = packed.timeline("BLOB")
        for at in np.random.default_rng(0).permutation(len(sizes)).tolist():
            payload = timeline.payload(at)
            assert len(payload) == sizes[at]
            assert payload[0] == payload[-1] == at
