"""Which adapter reads which kind of source; an adapter is imported only when its kind is asked for.

An adapter is a module with `open_source(spec: SourceSpec) -> Source`. Its kind is a name of `KINDS`, or, for adapters that
live elsewhere, "package.module:function" of the user's own code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, cast

from ..errors import UsageError
from ..source import Source

__all__ = ["KINDS", "SourceSpec", "open_source"]

Option = str | int | float | bool | None | tuple[str, ...]

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "argoverse2": ".argoverse2",
        "folder": ".folder",
        "kitti": ".kitti",
        "lerobot": ".lerobot",
        "mcap": ".rosbag",
        "nuscenes": ".nuscenes",
        "rosbag": ".rosbag",
        "webdataset": ".webdataset",
    }
)
"""Kind, as on the command line → module beside this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """Where a source is and how to read it; small and picklable, so that every pack worker opens it anew."""

    kind: str
    """A name of `KINDS`, or "package.module:function"."""
    path: str
    """Directory or file of the source."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """What the adapter documents; plain values only."""


def open_source(spec: SourceSpec) -> Source:
    """List and check the source a spec names.

    Raises:
        SourceError: with every problem found; nothing has been written then.
        UsageError: the kind is unknown.
    """
    module_name, _, function = spec.kind.partition(":")
    try:
        if function:
            opener = getattr(importlib.import_module(module_name), function)
        elif spec.kind in KINDS:
            opener = importlib.import_module(KINDS[spec.kind], __package__).open_source
        else:
            known = ", ".join(sorted(KINDS))
            raise UsageError(f"cannot open a source of kind {spec.kind!r}: known kinds are {known}, or 'package.module:function'")
    except (ModuleNotFoundError, AttributeError) as error:
        raise UsageError(f"cannot open a source of kind {spec.kind!r}: {error}; check the spelling") from error
    return cast(Callable[[SourceSpec], Source], opener)(spec)
