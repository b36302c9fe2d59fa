"""Which frames go into which shard: a pure function of the preflight listing, so that pack workers never talk.

Drives are laid end to end in name order by their source bytes. One that does not fit the shard begun is cut into equal runs
of frames; how many frames that is, is known to whoever opens the drive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .source import DriveListing

__all__ = ["Piece", "plan_shards"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Piece number `index` of `of` equal pieces of a drive."""

    drive: str
    index: int
    of: int

    def frames(self, count: int) -> range:
        """Return the frames of this piece in a drive of `count` frames."""
        return range(self.index * count // self.of, (self.index + 1) * count // self.of)


def plan_shards(listings: Sequence[DriveListing], shard_bytes: int) -> tuple[tuple[Piece, ...], ...]:
    """Return the pieces of each shard, in order, none estimated above `shard_bytes`."""
    shards: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    filled = 0
    for listing in listings:
        count = max(1, -(-listing.source_bytes // shard_bytes))
        size = listing.source_bytes // count
        for index in range(count):
            if current and filled + size > shard_bytes:
                shards.append(tuple(current))
                current, filled = [], 0
            current.append(Piece(drive=listing.name, index=index, of=count))
            filled += size
    if current:
        shards.append(tuple(current))
    return tuple(shards)
