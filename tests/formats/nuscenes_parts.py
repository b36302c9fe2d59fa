"""Parts of nuScenes that the synthetic drives lack, added to one by hand: radar, point labels, Lyft's habits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.formats.adapters.nuscenes_files import RADAR_FIELDS
from headway.tools.synthetic import SYNTHETIC_VERSION, Detail

__all__ = ["SMALLEST", "Rows", "add_point_labels", "add_radar", "edit", "make_lyft", "radar_bytes", "rows_of"]

SMALLEST = Detail(image_size=(64, 36), rings=8, columns=90, ground_m=2.0)
Rows = list[dict[str, Any]]  # Any: rows as json.loads gives them
RADAR_DTYPE = np.dtype([(field.name, field.numpy_dtype) for field in RADAR_FIELDS])


def rows_of(root: Path, table: str) -> Rows:
    rows: Rows = json.loads((root / SYNTHETIC_VERSION / f"{table}.json").read_text())
    return rows


def edit(root: Path, table: str, change: Callable[[Rows], object]) -> None:
    path = root / SYNTHETIC_VERSION / f"{table}.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    change(rows)
    path.write_text(json.dumps(rows))


def radar_bytes(points: NDArray[Any], *, promised: int | None = None) -> bytes:
    """Return a radar file as nuScenes writes it."""
    kinds = {"f": "F", "i": "I"}
    header = [
        "# .PCD v0.7 - Point Cloud Data file format",
        "VERSION 0.7",
        "FIELDS " + " ".join(field.name for field in RADAR_FIELDS),
        "SIZE " + " ".join(str(field.width) for field in RADAR_FIELDS),
        "TYPE " + " ".join(kinds[field.numpy_dtype.kind] for field in RADAR_FIELDS),
        "COUNT " + " ".join(["1"] * len(RADAR_FIELDS)),
        f"WIDTH {len(points)}",
        "HEIGHT 1",
        "VIEWPOINT 0 0 0 1 0 0 0",
        f"POINTS {len(points) if promised is None else promised}",
        "DATA binary",
    ]
    return ("\n".join(header) + "\n").encode() + points.tobytes()


def add_radar(root: Path, files: list[bytes]) -> None:
    """Give the first key frames of a synthetic source one radar."""
    samples = rows_of(root, "sample")
    (root / "samples" / "RADAR_FRONT").mkdir(parents=True)
    edit(root, "sensor", lambda rows: rows.append({"token": "radar", "channel": "RADAR_FRONT", "modality": "radar"}))
    calibration = {"token": "radar", "sensor_token": "radar", "translation": [3.4, 0, 0.5], "rotation": [1.0, 0, 0, 0]}
    edit(root, "calibrated_sensor", lambda rows: rows.append({**calibration, "camera_intrinsic": []}))
    pose = rows_of(root, "ego_pose")[0]["token"]
    for number, data in enumerate(files):
        name = f"samples/RADAR_FRONT/{number}.pcd"
        (root / name).write_bytes(data)
        row = {
            "token": f"radar {number}",
            "sample_token": samples[number]["token"],
            "ego_pose_token": pose,
            "calibrated_sensor_token": "radar",
            "timestamp": samples[number]["timestamp"] - 12_345,
            "fileformat": "pcd",
            "is_key_frame": True,
            "height": 0,
            "width": 0,
            "filename": name,
            "prev": "",
            "next": "",
        }
        edit(root, "sample_data", lambda rows, row=row: rows.append(row))  # type: ignore[misc]  # mypy wants no defaults here


def add_point_labels(root: Path) -> list[NDArray[np.uint8]]:
    """Give every key sweep labels, one a point; return them in time order."""
    folder = root / "lidarseg" / SYNTHETIC_VERSION
    folder.mkdir(parents=True)
    made, rows = [], []
    keys = [row for row in rows_of(root, "sample_data") if row["is_key_frame"] and "LIDAR" in row["filename"]]
    for row in sorted(keys, key=lambda item: int(item["timestamp"])):
        count = (root / row["filename"]).stat().st_size // 20
        labels = (np.arange(count) % 3).astype(np.uint8)
        labels.tofile(folder / f"{row['token']}_lidarseg.bin")
        filename = f"lidarseg/{SYNTHETIC_VERSION}/{row['token']}_lidarseg.bin"
        rows.append({"token": row["token"], "sample_data_token": row["token"], "filename": filename})
        made.append(labels)
    edit(root, "lidarseg", lambda table: table.extend(rows))
    return made


def make_lyft(root: Path) -> None:
    """Rearrange a synthetic source as Lyft's: nested tables, other folders, float stamps, no sizes on LiDAR rows."""

    def change(rows: Rows) -> None:
        for row in rows:
            source = root / row["filename"]
            folder = "lidar" if source.suffix == ".bin" else "images"
            row["filename"] = f"{folder}/{source.name}"
            source.rename(root / row["filename"])
            row["timestamp"] = row["timestamp"] + 0.2
            if folder == "lidar":
                del row["width"], row["height"]

    (root / "images").mkdir()
    (root / "lidar").mkdir()
    edit(root, "sample_data", change)
    for table in ("sample", "ego_pose"):
        edit(root, table, lambda rows: [row.update(timestamp=row["timestamp"] + 0.2) for row in rows])
    edit(root, "sample_annotation", lambda rows: [row.update(visibility_token="", num_lidar_pts=-1) for row in rows])
    (root / "v1.01-train").mkdir()
    (root / SYNTHETIC_VERSION).rename(root / "v1.01-train" / "v1.01-train")
