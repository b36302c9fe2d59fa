"""Which files make up a set, by its manifest, and what names they have: how strangers' files are told from ours."""

from __future__ import annotations

import re
from typing import Final

from .manifest import Manifest

__all__ = ["ATTACHED_FILE", "SHARD_FILE", "STAGING_NAME", "set_files"]

STAGING_NAME: Final = ".packing"
"""Directory (or name prefix, in a store) of what is not published yet."""
SHARD_FILE: Final = re.compile(r"shard-\d{5,}-\d{3,}-[0-9a-f]{8}\.(arrow|tar|sums)")
ATTACHED_FILE: Final = re.compile(r"[0-9a-f]{64}")


def set_files(manifest: Manifest) -> set[str]:
    """Return every file of a set but the manifest, as paths inside it."""
    files = {name for shard in manifest.shards for name in shard.file_names()}
    return files | {file.path for drive in manifest.drives for file in drive.attachments}
