"""Argoverse 2 as a source: the sensor dataset (with scenario mining's logs) and motion forecasting.

    sensor     <split>/<log>/{city_SE3_egovehicle,annotations}.feather, calibration/, map/, sensors/: a drive is a log
    motion     <split>/<scenario>/scenario_<scenario>.parquet and its map: a drive is a scenario

Stamps are the dataset's: ns of a clock that starts near 1980, not comparable across logs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import SourceError, UsageError
from ..source import Source
from .argoverse2_motion import Argoverse2Motion
from .argoverse2_sensor import Argoverse2Sensor
from .registry import SourceSpec

__all__ = ["Argoverse2Options", "open_source"]

LICENCE = "Argoverse 2: CC BY-NC-SA 4.0 (non-commercial)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Argoverse2Options:
    """How to read an Argoverse 2 source."""

    layout: Literal["auto", "sensor", "motion"] = "auto"
    """Which of the downloads this is."""
    split: str | None = None
    """"train", "val", "test", or one log's or scenario's name; None takes all."""
    points_codec: Literal["points-lossless", "points-raw"] = "points-lossless"
    """How sweeps are stored; both give every bit back."""
    bad_images: Literal["fail", "reject", "keep"] = "fail"
    """As in `PackOptions`: with "reject" or "keep", empty images are no reason to refuse the source; the packer lists them."""
    licence: str = LICENCE
    """What the manifest says about the licence."""

    def __post_init__(self) -> None:
        if self.layout not in ("auto", "sensor", "motion"):
            raise UsageError(f"layout {self.layout!r} is none of auto, sensor, motion")
        if self.points_codec not in ("points-lossless", "points-raw"):
            raise UsageError(f"points_codec {self.points_codec!r} is none of points-lossless, points-raw")


def open_source(spec: SourceSpec) -> Source:
    """Return the Argoverse 2 source a spec names; options are the fields of `Argoverse2Options`."""
    known = {field.name for field in dataclasses.fields(Argoverse2Options)}
    for name in spec.options:
        if name not in known:
            raise UsageError(f"argoverse2 has no option {name!r}; it has {', '.join(sorted(known))}")
    options = Argoverse2Options(**spec.options)  # type: ignore[arg-type]  # plain values from the command line, validated in __post_init__
    root = Path(spec.path)
    if not root.is_dir():
        raise SourceError(f"cannot pack Argoverse 2 source {str(root)!r}: it is not a folder")
    logs = find(root, "city_SE3_egovehicle.feather", options.split) if options.layout != "motion" else {}
    scenarios = find(root, "scenario_*.parquet", options.split) if options.layout != "sensor" else {}
    if logs and scenarios:
        raise SourceError(
            f"cannot pack Argoverse 2 source {str(root)!r}: {len(logs)} sensor logs and {len(scenarios)} forecasting scenarios "
            "do not belong in one set; give one of the folders, or choose with --layout"
        )
    if not logs and not scenarios:
        raise SourceError(
            f"cannot pack Argoverse 2 source {str(root)!r}: no <split>/<log>/city_SE3_egovehicle.feather and no "
            f"<split>/<scenario>/scenario_*.parquet{f' for split {options.split!r}' if options.split else ''}; give the folder "
            "that holds the splits"
        )
    if scenarios:
        return Argoverse2Motion(root, scenarios, licence=options.licence)
    return Argoverse2Sensor(
        root,
        logs,
        points_codec=options.points_codec,
        licence=options.licence,
        allow_empty_images=options.bad_images != "fail",
    )


def find(root: Path, pattern: str, split: str | None) -> dict[str, Path]:
    """Return folders by name that hold a file of `pattern`: the root, its folders or theirs; duplicates are refused."""
    found: dict[str, Path] = {}
    for depth in ("", "*/", "*/*/", "*/*/*/"):
        for file in sorted(root.glob(depth + pattern)):
            folder = file.parent
            if split not in (None, folder.parent.name, folder.name):
                continue
            if found.get(folder.name, folder) != folder:
                raise SourceError(
                    f"cannot pack Argoverse 2 source {str(root)!r}: {folder.name!r} is in "
                    f"{found[folder.name].parent.name!r} and in {folder.parent.name!r}; pack one split (--split)"
                )
            found[folder.name] = folder
    return dict(sorted(found.items()))
