"""How big things may be before they are refused: every size that data declares is compared with one of these first.

The defaults suit ordinary sets. Raise one explicitly when a set is bigger on purpose; no data can raise them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from .errors import UsageError

__all__ = ["DEFAULT_LIMITS", "Limits"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds on declared sizes, in bytes unless the name says otherwise."""

    shard_bytes: int = 1 << 30
    """One data file."""
    manifest_bytes: int = 256 * _MIB
    """manifest.json, and any other JSON file read."""
    json_depth: int = 32
    """Nesting of JSON values."""
    attachment_bytes: int = 256 * _MIB
    """One per-drive attachment."""
    payload_bytes: int = 256 * _MIB
    """One payload, encoded or decoded."""
    expansion: int = 1000
    """Decoded ÷ encoded bytes of a compressed payload; outputs up to 1 MiB pass regardless."""
    zstd_window: int = 1 << 27
    """Window of a zstd frame."""
    image_pixels: int = 64_000_000
    """Width × height of one image."""
    image_side: int = 32_768
    """Width or height of one image, in pixels."""
    points: int = 10_000_000
    """Points of one sweep."""
    tar_members: int = 10_000_000
    """Members of one foreign tar."""
    name_bytes: int = 1024
    """A member or file name."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"limit {item.name!r} must be a whole number of at least 1, found {value!r}")


DEFAULT_LIMITS = Limits()
