"""The flags every `pack-dataset` subcommand shares, as parameters that typer reads; an adapter's own come behind them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final

import typer

__all__ = ["COMMON", "SENSORS", "SPLIT"]


class _Format(StrEnum):
    ARROW = "arrow"
    TAR = "tar"


class _Engine(StrEnum):
    LOCAL = "local"
    RAY = "ray"


class _BadImages(StrEnum):
    FAIL = "fail"
    REJECT = "reject"
    KEEP = "keep"


class _CheckImages(StrEnum):
    MARKERS = "markers"
    DECODE = "decode"


class _Precision(StrEnum):
    MM1 = "1mm"
    MM5 = "5mm"


def _argument(name: str, kind: Any, metavar: str, text: str) -> Parameter:  # Any: a type, which annotations want at run time
    annotation = Annotated[kind, typer.Argument(metavar=metavar, help=text)]
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)


def _flag(
    flag: str, kind: Any, default: Any, text: str, *, name: str = "", metavar: str | None = None, least: int | None = None
) -> Parameter:  # Any: a type expression and a value of that type
    option = typer.Option(flag, help=text, metavar=metavar, min=least, show_default=default not in (None, False))
    name = name or flag.lstrip("-").replace("-", "_")
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


SENSORS: Final = _flag("--sensors", list[str] | None, None, "Sensors to pack, names or patterns such as 'CAM_*'; by default all.")
"""For adapters without a choice of sensors of their own."""

SPLIT: Final = _flag(
    "--split",
    str | None,
    None,
    "Divide the drives, such as train=0.8,val=0.2, by their names; becomes the drive attribute `split`, to filter on.",
    metavar="NAME=SHARE,…",
)
"""For adapters whose sources have no splits of their own; those of the others take both."""

_ALL: Final = (
    _argument("source", Path, "SRC", "Folder or file to pack."),
    _argument("destination", str, "DST", "Where the set goes: a new or empty folder, or a store's URL (s3://bucket/prefix)."),
    _flag("--format", _Format, _Format.ARROW, "arrow to train from; tar where tar tools or webdataset read along."),
    _flag("--shard-size", str, "256MB", "Aim for data files of this size, such as 64MB or 1GB.", metavar="SIZE"),
    _flag("--workers", int | None, None, "Worker processes; by default as many as pay. The bytes do not depend on it.", least=1),
    _flag(
        "--engine", _Engine, _Engine.LOCAL, "local: processes here; ray: tasks on a Ray cluster. The bytes do not depend on it."
    ),
    _flag(
        "--split-by",
        str,
        "drive",
        "With --split NAME=SHARE,…: drive, or a drive attribute whose equals stay together, such as location.",
        metavar="drive|ATTRIBUTE",
    ),
    _flag("--overwrite", bool, False, "Replace the set at DST; it stays readable until the new one stands."),
    _flag(
        "--resume",
        bool,
        False,
        "Go on with the finished shards of a run that was interrupted or killed; keep them if interrupted again.",
    ),
    _flag("--dry-run", bool, False, "Check the source, say what would be packed, write nothing."),
    _flag("--limit", int | None, None, "Pack only the first N drives.", metavar="N", least=1),
    _flag(
        "--bad-images",
        _BadImages,
        _BadImages.FAIL,
        "Images that are cut short or empty: fail the pack, reject (leave out, exit code 7) or keep.",
    ),
    _flag(
        "--check-images",
        _CheckImages,
        _CheckImages.MARKERS,
        "markers: walk each image to its end; decode: decode every one, which finds damage inside whole files.",
    ),
    _flag(
        "--camera-scale",
        float,
        1.0,
        "Store images this much smaller, such as 0.5; encodes anew. Intrinsics follow.",
        metavar="FACTOR",
    ),
    _flag(
        "--camera-crop",
        str | None,
        None,
        "Cut pixels off images before scaling, such as 140,0,0,0; encodes anew. Intrinsics follow.",
        metavar="TOP,BOTTOM,LEFT,RIGHT",
    ),
    _flag("--jpeg-quality", int | None, None, "Encode JPEGs anew with this quality, 1 to 100 (95 with scale or crop).", least=1),
    _flag(
        "--camera-sensors",
        list[str] | None,
        None,
        "Image sensors that scale, crop and quality are meant for, names or patterns; by default all.",
    ),
    _flag("--lidar-precision", _Precision | None, None, "Store points on a grid this fine: smaller, no longer bit-identical."),
    _flag("--drop-nan", bool, False, "With --lidar-precision: leave out points without a position."),
    _flag("--list-ignored", bool, False, "List every file of SRC that was deliberately not packed."),
    _flag("--json", bool, False, "End with the report as one JSON object on stdout.", name="json_report"),
)

COMMON: Final[Mapping[str, Parameter]] = {flag.name: flag for flag in _ALL}
"""Name → parameter, the two arguments first."""
