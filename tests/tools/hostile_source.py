"""The tiny synthetic source under names that try to trick a terminal: bidi overrides and zero-width characters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headway.formats import Ignored, SourceDrive
from headway.formats.adapters import SourceSpec
from headway.formats.adapters.nuscenes import NuScenes

DRIVE = "drive-\u202egnp.exe\u200b"
DESCRIPTION = "first line\nerror: forged\x1b[2J"


@dataclass
class Hostile:
    """A source whose drive, description and ignored files have hostile names."""

    whole: NuScenes

    def __post_init__(self) -> None:
        self.kind, self.schema, self.licence = "hostile", self.whole.schema, "none\u2066"
        attributes: dict[str, Any] = {"description": DESCRIPTION}  # Any: as listings hold them
        self.listings = [replace(self.whole.listings[0], name=DRIVE, attributes=attributes)]
        self.ignored = [Ignored(path="a\x07b\u202e", reason="odd\nerror: forged")]

    def open_drive(self, name: str) -> SourceDrive:
        """Open the one drive."""
        assert name == DRIVE
        return self.whole.open_drive(self.whole.listings[0].name)


def open_source(spec: SourceSpec) -> Hostile:
    """Open the source at the spec's path."""
    return Hostile(NuScenes(spec.path))
