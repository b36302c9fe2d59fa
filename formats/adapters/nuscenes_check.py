"""Preflight of a nuScenes source: which folder, which scenes, which rows, and whether every file they name can be right.

Nothing stops at the first finding. What is held but not taken comes out as `Ignored`: files in no table, files of scenes or
sensors that were not asked for, and, only where missing files are allowed, rows without their file.
"""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..errors import Problem, SourceError, UsageError
from ..source import Ignored
from .nuscenes_files import Folder, Layout, is_inside, layout_fault_of_file
from .nuscenes_links import Tables
from .nuscenes_tables import Findings

__all__ = ["Chosen", "check_files", "check_rows", "choose", "find_tables"]

_MINI_SPLITS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "mini_train": tuple(f"scene-{n:04}" for n in (61, 553, 655, 757, 796, 1077, 1094, 1100)),
        "mini_val": ("scene-0103", "scene-0916"),
    }
)
_OFFICIAL: Final = ("train", "val", "test", "train_detect", "train_track")
_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"camera": (".jpg", ".jpeg", ".png"), "lidar": (".bin",), "radar": (".pcd",)}
)
_FETCH: Final = "download its archive, or leave such files out with --allow-missing"
_STRAY: Final = "in no table"
_LISTED: Final = 200
"""Stray files of one directory that are listed by name; the rest are counted."""
_SPLIT_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which scenes and channels are packed, and which of the tables' rows that makes."""

    scenes: Sequence[int]
    """By name."""
    channels: Sequence[int]
    sizes: NDArray[np.int64]
    """(rows,): bytes of the row's file; −1 where it is not packed."""
    label_files: Mapping[int, str]
    """Row of a key sweep → its label file."""


def find_tables(source: Path, version: str | None) -> Path:
    """Return the folder of the tables: SRC/VERSION, or Lyft's SRC/VERSION/VERSION."""
    if not source.is_dir():
        problem = Problem(path=str(source), reason="no such folder; give the one that holds samples/ and v1.0-…/", code="missing")
        raise SourceError("cannot open a nuScenes source", [problem])
    if version is not None:
        candidates = [source / version, source / version / version]
    else:
        candidates = [source, *(item for item in sorted(source.glob("*")) if item.is_dir())]
        candidates += [item / item.name for item in candidates[1:]]
    found = [folder for folder in candidates if (folder / "scene.json").is_file() or (folder / "sample_data.json").is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(folder.name for folder in found)
        raise UsageError(f"cannot choose a version in {source}: found {names}; choose one with --version")
    where = f"{version}/" if version else "v1.0-…/"
    problem = Problem(
        path=f"{where}scene.json",
        reason=f"no tables in {source}; download the metadata archive, or check --version",
        code="missing",
    )
    raise SourceError("cannot open a nuScenes source", [problem])


def choose(
    tables: Tables, split: str | None, patterns: Sequence[str], extra: Sequence[str], findings: Findings
) -> tuple[list[int], list[int], frozenset[str]]:
    """Return the scenes of a split, the channels and the other sensors (of `extra`) that the patterns take."""
    names = {scene.name: number for number, scene in enumerate(tables.scenes)}
    wanted = list(names) if split is None else _split_names(split, names)
    for name in wanted:
        if name not in names:
            findings.add("absent", name, f"split {split!r} names this scene, the tables do not; check --version and --split")
    scenes = sorted({name for name in wanted if name in names})
    used = np.unique(tables.row_channel[np.isin(tables.sample_scene[tables.row_sample], [names[name] for name in scenes])])
    offered = [tables.channels[channel][0] for channel in used] + list(extra)
    for pattern in patterns:
        if not fnmatch.filter(offered, pattern):
            findings.add(
                "absent",
                pattern,
                f"no sensor has this name; the source has {', '.join(offered)}; check --sensors",
                sensor=pattern,
            )
    taken = [name for name in offered if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    channels = [int(channel) for channel in used if tables.channels[channel][0] in taken]
    return [names[name] for name in scenes], channels, frozenset(set(taken) & set(extra))


def check_files(
    tables: Tables,
    scenes: Sequence[int],
    channels: Sequence[int],
    *,
    folder: Folder,
    tables_folder: Path,
    shown: str,
    layout: Layout,
    labels: bool,
    allow_missing: bool,
    allow_empty_images: bool,
    findings: Findings,
) -> tuple[Chosen, list[Ignored]]:
    """Check every file the chosen rows name, and list what is there besides."""
    wanted = np.isin(tables.sample_scene[tables.row_sample], scenes) & np.isin(tables.row_channel, channels)
    is_wanted, channel_of = wanted.tolist(), tables.row_channel.tolist()
    sizes = np.full(len(wanted), -1, np.int64)
    ignored: list[Ignored] = []
    lost: Counter[str] = Counter()
    visited: set[Path] = set()
    for directory, names, rows in _by_directory(tables.row_file):
        prefix = f"{directory}/" if directory else ""
        inside = is_inside(f"{prefix}-")
        path = folder.path(f"{prefix}-").parent
        have = folder.sizes(path) if inside else {}
        for name, row in zip(names, rows, strict=True):
            if not is_wanted[row]:
                continue
            channel, modality = tables.channels[channel_of[row]]
            size = have.get(name, -1)
            code, fault = "missing", ""
            if not inside:
                fault = f"this path leaves the source folder; {shown}/sample_data.json is not to be trusted"
            elif size < 0 and allow_missing:
                lost[channel] += 1
                if lost[channel] <= _LISTED:
                    what = f"missing; {channel!r} has no payload at {tables.row_stamp[row]} (missing allowed)"
                    ignored.append(Ignored(path=prefix + name, reason=what))
                continue
            elif size < 0:
                fault = f"not on disk, but {shown}/sample_data.json names it; {_FETCH}"
            elif size or modality != "camera" or not allow_empty_images:
                code, fault = _content_fault(path, name, size, modality, layout)
            if fault:
                findings.add(code, prefix + name, fault, sensor=channel, stamp_ns=int(tables.row_stamp[row]))
            else:
                sizes[row] = size
        visited.add(path)
        ignored += _strays(directory, sorted(have.keys() - set(names)), _STRAY)
    for channel, count in lost.items():
        if count > _LISTED:
            ignored.append(Ignored(path=f"{channel}: {count - _LISTED} more files", reason="missing (missing allowed)"))
    outside = int(len(wanted) - wanted.sum())
    if outside:
        ignored.append(Ignored(path=f"{shown}/sample_data.json: {outside} rows", reason="scene or sensor not asked for"))
    label_files = _check_labels(tables, sizes, folder, layout, findings) if labels else {}
    ignored += _strays_elsewhere(tables, folder, tables_folder, visited, label_files)
    return Chosen(scenes=scenes, channels=channels, sizes=sizes, label_files=label_files), ignored


def check_rows(tables: Tables, chosen: NDArray[np.bool_], shown: str, findings: Findings) -> None:
    """Report rows of one sensor that share a stamp, key frames a sample has twice, and cameras without intrinsics."""
    name = f"{shown}/sample_data.json"
    rows = np.flatnonzero(chosen)
    scene, channel, stamp = tables.sample_scene[tables.row_sample[rows]], tables.row_channel[rows], tables.row_stamp[rows]
    for at in np.flatnonzero((np.diff(scene) == 0) & (np.diff(channel) == 0) & (np.diff(stamp) == 0)):
        row = rows[at + 1]
        reason = f"two rows of this sensor have this stamp ({tables.row_file[rows[at]].decode()} is the other); remove one"
        findings.add(
            "duplicate", tables.row_file[row].decode(), reason, sensor=tables.channels[channel[at]][0], stamp_ns=int(stamp[at])
        )
    keys = rows[tables.row_key[rows]]
    pair = tables.row_sample[keys].astype(np.int64) * len(tables.channels) + tables.row_channel[keys]
    order = np.argsort(pair, kind="stable")
    for at in np.flatnonzero(np.diff(pair[order]) == 0):
        row = keys[order[at + 1]]
        reason = (
            f"{name}: its sample has a second key frame of this sensor ({tables.row_file[keys[order[at]]].decode()}); remove one"
        )
        findings.add(
            "duplicate",
            tables.row_file[row].decode(),
            reason,
            sensor=tables.channels[tables.row_channel[row]][0],
            stamp_ns=int(tables.row_stamp[row]),
        )
    used = np.unique(tables.row_calibration[rows])
    lacking = used[~np.isfinite(tables.intrinsics[used]).all((1, 2))]
    for calibration in lacking:
        row = rows[np.argmax(tables.row_calibration[rows] == calibration)]
        channel_name, modality = tables.channels[tables.row_channel[row]]
        if modality == "camera":
            reason = f"row {calibration} has no camera_intrinsic, expected a 3 × 3 matrix; download the metadata again"
            findings.add("json", f"{shown}/calibrated_sensor.json", reason, sensor=channel_name)


def _split_names(split: str, known: Mapping[str, int]) -> Sequence[str]:
    if split in _MINI_SPLITS:
        return _MINI_SPLITS[split]
    if split in known:
        return (split,)
    path = Path(split)
    if not path.is_file():
        official = "the official lists are code in nuscenes-devkit, not data: " if split in _OFFICIAL else ""
        raise UsageError(
            f"cannot use split {split!r}: {official}give a file with one scene name a line, or one of {', '.join(_MINI_SPLITS)}"
        )
    if path.stat().st_size > _SPLIT_BYTES:
        raise UsageError(f"cannot use split {split!r}: {path.stat().st_size} bytes, expected a list of scene names")
    try:
        text = path.read_text("utf-8")
        names = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"cannot use split {split!r}: {error}; expected scene names, one a line, or a JSON list of them"
        ) from error
    if names is not None:
        if not all(isinstance(name, str) for name in names):
            raise UsageError(f"cannot use split {split!r}: expected a JSON list of scene names")
    else:
        names = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return list(names)


def _by_directory(files: NDArray[np.bytes_]) -> Iterator[tuple[str, list[str], list[int]]]:
    """Yield (directory, names, rows), each directory once, in name order."""
    numbers: dict[bytes, int] = {}
    of_row = np.empty(len(files), np.int32)
    for row, filename in enumerate(files):
        of_row[row] = numbers.setdefault(filename.rpartition(b"/")[0], len(numbers))
    order = np.argsort(of_row, kind="stable")
    ends = np.searchsorted(of_row[order], np.arange(len(numbers) + 1))
    for directory, number in sorted(numbers.items()):
        rows = order[ends[number] : ends[number + 1]].tolist()
        yield directory.decode("utf-8"), [files[row].rpartition(b"/")[2].decode("utf-8") for row in rows], rows


def _content_fault(directory: Path, name: str, size: int, modality: str, layout: Layout) -> tuple[str, str]:
    if size == 0:
        return "truncated", "0 bytes; download the file again" + ", or pass --bad-images reject" * (modality == "camera")
    if not name.lower().endswith(_SUFFIXES[modality]):
        expected = " or ".join(_SUFFIXES[modality])
        return "layout", f"a {modality} file whose name does not end in {expected}; leave this sensor out with --sensors"
    if modality == "lidar":
        return "layout", layout_fault_of_file(directory / name, size, layout)
    return "", ""


def _check_labels(tables: Tables, sizes: NDArray[np.int64], folder: Folder, layout: Layout, findings: Findings) -> dict[int, str]:
    point = {"xyzir": 20, "xyzi": 16}[layout]
    listings: dict[str, dict[str, int]] = {}
    found: dict[int, str] = {}
    for label in tables.labels:
        if sizes[label.row] < 0:
            continue
        directory, _, name = label.filename.rpartition("/")
        if directory not in listings:
            path = folder.path(label.filename).parent
            listings[directory] = folder.sizes(path) if is_inside(label.filename) else {}
        size, expected = listings[directory].get(name, -1), int(sizes[label.row]) // point
        channel, stamp = tables.channels[tables.row_channel[label.row]][0], int(tables.row_stamp[label.row])
        if size < 0:
            reason = "lidarseg.json names it, but it is not on disk; download nuScenes-lidarseg"
            findings.add("missing", label.filename, reason, sensor=channel, stamp_ns=stamp)
        elif size != expected:
            reason = f"{size} labels for {expected} points; download nuScenes-lidarseg again"
            findings.add("layout", label.filename, reason, sensor=channel, stamp_ns=stamp)
        else:
            found[label.row] = label.filename
    return found


def _strays(directory: str, names: Sequence[str], reason: str) -> list[Ignored]:
    prefix = f"{directory}/" if directory not in ("", ".") else ""
    listed = [Ignored(path=f"{prefix}{name}", reason=reason) for name in names[:_LISTED]]
    if len(names) > _LISTED:
        listed.append(Ignored(path=f"{prefix}*: {len(names) - _LISTED} more files", reason=reason))
    return listed


def _strays_elsewhere(
    tables: Tables, folder: Folder, tables_folder: Path, visited: set[Path], labels: Mapping[int, str]
) -> Iterator[Ignored]:
    used = {item.filename for item in tables.maps} | set(labels.values())
    top = folder.roots[-1]
    for item in tables.maps:
        if not is_inside(item.filename) or not folder.path(item.filename).is_file():
            yield Ignored(path=item.filename, reason="named in map.json but not on disk; its drives come without this map")
    for directory, names in folder.walk():
        path = top / directory
        if path in visited or path == tables_folder:
            continue
        relative = [path.relative_to(root).as_posix() for root in folder.roots if path.is_relative_to(root)]
        if any(
            name.split("/")[0] in ("can_bus",) or name in ("maps/expansion", "maps/basemap", "maps/prediction")
            for name in relative
        ):
            continue
        rest = [name for name in names if not any(f"{base}/{name}" in used for base in relative)]
        yield from _strays(directory, rest, _STRAY)
