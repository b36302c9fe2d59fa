"""A source cut to its first drives: what `pack-dataset … --limit` opens, in every pack worker alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..formats.adapters import SourceSpec
from ..formats.adapters import open_source as open_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..formats import DriveListing, Ignored, Schema, Source, SourceDrive

__all__ = ["limited", "open_source"]

_KIND, _LIMIT = "limited_kind", "limited_to"


def limited(spec: SourceSpec, drives: int) -> SourceSpec:
    """Return a spec of the same source with its first `drives` drives, by name."""
    return replace(spec, kind=f"{__name__}:open_source", options={**spec.options, _KIND: spec.kind, _LIMIT: drives})


def open_source(spec: SourceSpec) -> Source:
    """Open the source inside a spec made by `limited`."""
    options = dict(spec.options)
    kind, drives = str(options.pop(_KIND)), int(str(options.pop(_LIMIT)))
    return _Limited(open_whole(SourceSpec(kind=kind, path=spec.path, options=options)), drives)


@dataclass
class _Limited:
    whole: Source
    drives: int

    def __post_init__(self) -> None:
        self.kind = self.whole.kind
        self.schema: Schema = self.whole.schema
        self.licence = self.whole.licence
        self.listings: Sequence[DriveListing] = self.whole.listings[: self.drives]
        self.ignored: Sequence[Ignored] = self.whole.ignored

    def open_drive(self, name: str) -> SourceDrive:
        return self.whole.open_drive(name)

    def portion(self, drives: Sequence[str]) -> Source | None:
        """Return the part that has these drives, where the whole can be cut."""
        cut = getattr(self.whole, "portion", None)
        return None if cut is None else cut(drives)
