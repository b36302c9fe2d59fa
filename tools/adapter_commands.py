"""One row per adapter; a row becomes a `pack-dataset` subcommand.

The adapter's options dataclass is the only description of its options: each field becomes a `--flag`, its default the
flag's default, and the text under the field the help. Adapters are imported when their own subcommand is asked for, so a
missing optional library never stands in the way of the others.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer

from ..formats import UsageError
from ..formats.adapters import KINDS
from ._adapter_options import FolderOptions, LeRobotOptions, WebDatasetOptions

__all__ = ["ADAPTERS", "AdapterRow", "field_texts", "flags_of", "option_values", "options_class", "with_flags"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRow:
    """What the command line knows of an adapter without importing it."""

    kind: str
    """Name of the subcommand and of the adapter (`formats.adapters.KINDS`)."""
    help: str
    """One sentence: what it reads."""
    options: str | type[Any]  # Any: each adapter's own dataclass
    """The options dataclass, or its name in the adapter's module."""
    example: str
    """A command that works, without `pack-dataset KIND`."""
    marks: tuple[str, ...]
    """Glob patterns under a source by which `inspect` knows it."""


ADAPTERS: Final[tuple[AdapterRow, ...]] = (
    AdapterRow(
        kind="nuscenes",
        help="nuScenes and Lyft Level 5: cameras, LiDAR, radar, boxes, poses; key frames and sweeps.",
        options="NuScenesOptions",
        example="data/nuscenes sets/mini --version v1.0-mini --sensors 'CAM_*,LIDAR_TOP,boxes,ego'",
        marks=("v1.0*/sample_data.json", "sample_data.json", "*/v1.0*/sample_data.json"),
    ),
    AdapterRow(
        kind="argoverse2",
        help="Argoverse 2: sensor logs with maps and boxes, or motion forecasting scenarios.",
        options="Argoverse2Options",
        example="data/av2/sensor sets/av2 --split val",
        marks=("*/*/city_SE3_egovehicle.feather", "*/city_SE3_egovehicle.feather", "*/*/scenario_*.parquet"),
    ),
    AdapterRow(
        kind="kitti",
        help="KITTI in its three downloads: object, raw, odometry.",
        options="KittiOptions",
        example="data/kitti_raw sets/kitti --layout raw",
        marks=("training/calib", "testing/calib", "sequences", "*_sync", "*_extract", "*/*_sync", "*/*_extract"),
    ),
    AdapterRow(
        kind="mcap",
        help="MCAP recordings of ROS 2: cameras, point clouds, IMU, poses from TF.",
        options="BagOptions",
        example="logs/drive.mcap sets/drive --topics front=/camera/front/image,lidar=/points --reference lidar",
        marks=("*.mcap",),
    ),
    AdapterRow(
        kind="rosbag",
        help="rosbag2 (SQLite) folders and ROS 1 bags, one or many.",
        options="BagOptions",
        example="bags/monday sets/monday --base-frame base_link",
        marks=("*.bag", "*.db3", "*/*.db3"),
    ),
    AdapterRow(
        kind="lerobot",
        help="LeRobot v2.0 to v3.0: an episode becomes a drive, with state, action, task and video frames.",
        options=LeRobotOptions,
        example="data/lerobot sets/robot --episodes 0:50",
        marks=("meta/info.json",),
    ),
    AdapterRow(
        kind="folder",
        help="A plain folder described by a small YAML file, for logs that no adapter knows.",
        options=FolderOptions,
        example="logs/town sets/town",
        marks=("headway.yaml",),
    ),
    AdapterRow(
        kind="webdataset",
        help="Foreign WebDataset tars: a tar becomes a drive, a key a frame, an extension a sensor.",
        options=WebDatasetOptions,
        example="tars sets/pictures --rate-hz 10",
        marks=("*.tar",),
    ),
)


def options_class(row: AdapterRow) -> type[Any]:
    """Return an adapter's options dataclass, importing the adapter if it is there."""
    if not isinstance(row.options, str):
        return row.options
    module = importlib.import_module(f"..formats.adapters{KINDS[row.kind]}", __package__)
    found: type[Any] = getattr(module, row.options)
    return found


def flags_of(options: type[Any]) -> list[inspect.Parameter]:
    """Return one keyword parameter per field of an options dataclass, annotated as typer wants it."""
    texts, hints = field_texts(options), typing.get_type_hints(options)
    parameters = []
    for field in dataclasses.fields(options):
        kind, default = _flag_type(field.name, hints[field.name], _default(field))
        flag = typer.Option("--" + field.name.replace("_", "-"), help=texts.get(field.name, ""), show_default=default is not None)
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, flag])
        )
    return parameters


def option_values(options: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn parsed flags into field values, leaving out those that were not given."""
    values = {}
    for field in dataclasses.fields(options):
        value = given[field.name]
        if isinstance(value, enum.Enum):
            value = value.value
        if isinstance(value, list):
            value = tuple(part.strip() for item in value for part in item.split(",") if part.strip())
        if value is not None and value != () and value != _default(field):
            values[field.name] = value
    return values


def with_flags(function: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """Give `function` (which takes the flags as **given) a signature that typer can read."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions have it at run time
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def field_texts(options: type[Any]) -> dict[str, str]:
    """Return the text under each field of a dataclass, on one line."""
    (body,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(options))).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts


def _default(field: dataclasses.Field[Any]) -> Any:  # Any: as the field is declared
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _flag_type(name: str, hint: Any, default: Any) -> tuple[Any, Any]:  # Any: type expressions
    """Return what typer parses a field of type `hint` as, and the default to show."""
    optional = get_origin(hint) in (typing.Union, types.UnionType)
    inner = [part for part in get_args(hint) if part is not type(None)] if optional else [hint]
    if len(inner) != 1:
        raise UsageError(f"option {name!r} of type {hint} has no command-line form; give it one type, or one type or None")
    kind = inner[0]
    if get_origin(kind) is tuple:
        return list[str] | None, None
    if get_origin(kind) is Literal:
        # Enums, because typer before 0.19 knows no Literal.
        choices = enum.Enum(f"{name.title().replace('_', '')}Choice", {str(value): value for value in get_args(kind)})  # type: ignore[misc]  # built from the field
        return (choices | None if default is None else choices), None if default is None else choices(default)
    return (kind | None if default is None else kind), default
