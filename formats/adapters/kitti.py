"""KITTI as a source, in the three layouts it is downloaded in: object, raw and odometry.

    object     training/ and testing/ with image_2, velodyne, calib, label_2: a drive is one frame (kitti_object.py)
    raw        <date>/<date>_drive_NNNN_sync with image_0N, velodyne_points, oxts: a drive is a drive (kitti_raw.py)
    odometry   sequences/NN with image_N, velodyne, times.txt, and poses/NN.txt: a drive is a sequence (kitti_odometry.py)

Cameras are rectified; an intrinsic matrix is the left 3x3 of P2, and what P2's last column says of the camera's place is in
`sensor_to_ego`. Matrices are taken as they are: KITTI does not say where in a pixel its origin lies.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import SourceError, UsageError
from ..source import Source
from .kitti_object import KittiObject
from .kitti_odometry import KittiOdometry
from .kitti_raw import KittiRaw
from .registry import SourceSpec

__all__ = ["KittiOptions", "open_source"]

LICENCE = "KITTI: CC BY-NC-SA 3.0 (non-commercial; cite Geiger et al.)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KittiOptions:
    """How to read a KITTI source."""

    layout: Literal["auto", "object", "raw", "odometry"] = "auto"
    """Which of the three downloads this is."""
    split: str | None = None
    """object: "training" or "testing"; raw and odometry: the name of one drive. None takes all."""
    allow_missing: bool = False
    """raw and odometry: take drives whose stamps outnumber their files (KITTI's own velodyne gaps, or a part of a download);
    each sensor's gaps are listed as ignored. Otherwise they are refused."""
    without_calibration: bool = False
    """Pack without `sensor_to_ego` and intrinsics where the calibration files were not downloaded."""
    points_codec: Literal["points-lossless", "points-raw"] = "points-lossless"
    """How sweeps are stored; both give every bit back (--lidar-precision puts them on a grid)."""
    licence: str = LICENCE
    """What the manifest says about the licence."""

    def __post_init__(self) -> None:
        if self.layout not in ("auto", "object", "raw", "odometry"):
            raise UsageError(f"layout {self.layout!r} is none of auto, object, raw, odometry")
        if self.points_codec not in ("points-lossless", "points-raw"):
            raise UsageError(f"points_codec {self.points_codec!r} is none of points-lossless, points-raw")


def open_source(spec: SourceSpec) -> Source:
    """Return the KITTI source a spec names; options are the fields of `KittiOptions`."""
    known = {field.name for field in dataclasses.fields(KittiOptions)}
    for name in spec.options:
        if name not in known:
            raise UsageError(f"kitti has no option {name!r}; it has {', '.join(sorted(known))}")
    options = KittiOptions(**spec.options)  # type: ignore[arg-type]  # plain values from the command line, validated in __post_init__
    root = Path(spec.path)
    layout = _layout(root) if options.layout == "auto" else options.layout
    if layout == "object":
        return KittiObject(root, split=options.split, points_codec=options.points_codec, licence=options.licence)
    if layout == "odometry":
        return KittiOdometry(
            root,
            split=options.split,
            allow_missing=options.allow_missing,
            without_calibration=options.without_calibration,
            points_codec=options.points_codec,
            licence=options.licence,
        )
    return KittiRaw(
        root,
        split=options.split,
        allow_missing=options.allow_missing,
        without_calibration=options.without_calibration,
        points_codec=options.points_codec,
        licence=options.licence,
    )


def _layout(root: Path) -> str:
    if not root.is_dir():
        raise SourceError(f"cannot pack KITTI source {str(root)!r}: it is not a folder")
    if any((root / split / "calib").is_dir() for split in ("training", "testing")):
        return "object"
    if (root / "sequences").is_dir():
        return "odometry"
    if any(root.glob("*_sync")) or any(root.glob("*_extract")) or any(root.glob("*/*_sync")) or any(root.glob("*/*_extract")):
        return "raw"
    raise SourceError(
        f"cannot pack KITTI source {str(root)!r}: found neither training/calib (object), sequences/ (odometry) nor "
        "<date>/<date>_drive_NNNN_sync (raw); give the folder that holds them"
    )
