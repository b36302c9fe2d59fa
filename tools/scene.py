"""One moment of a drive in one common frame: what a picture needs, wherever it came from.

A `Scene` holds images, points, boxes and paths with float64 geometry in the ego frame at the reference stamp. `set_scene`
builds it from a frame of a packed set, `batch_scene` from one sample of a batch; drawing is `picture`'s job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import Sensor
from ..formats.pose import rotation_matrix

__all__ = [
    "SECOND",
    "Boxes",
    "CameraImage",
    "Path",
    "Scene",
    "boxes_of",
    "chain",
    "in_ring_order",
    "is_radar",
    "move",
    "no_boxes",
]

Float = NDArray[np.float64]
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraImage:
    """One camera: its picture and how the common frame falls onto it."""

    name: str
    image: NDArray[np.uint8]
    """(H, W, 3) RGB."""
    intrinsics: Float
    """(3, 3); the centre of the top-left pixel is (0.5, 0.5)."""
    from_ego: Float
    """(4, 4): ego frame at the reference stamp → camera at its own stamp, through the world."""
    model: str = "pinhole"
    distortion: Float = field(default_factory=lambda: np.zeros(0))
    offset_ns: int = 0
    """Stamp of the image minus the reference stamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """3D boxes in the ego frame at the reference stamp."""

    centre: Float
    """(M, 3) metres."""
    size: Float
    """(M, 3) length, width, height."""
    rotation: Float
    """(M, 3, 3): columns are the box's forward, left and up."""
    velocity: Float
    """(M, 3) m/s; NaN where unknown."""
    names: Sequence[str]
    """Class of each box, as the source writes it."""

    def __len__(self) -> int:
        return len(self.centre)

    def corners(self) -> Float:
        """Return (M, 8, 3): bit 0 = rear, bit 1 = right, bit 2 = bottom."""
        signs = np.array([[1 - 2 * (i & 1), 1 - (i & 2), 1 - (i & 4) / 2] for i in range(8)]) / 2
        return np.asarray(self.centre[:, None] + np.einsum("mij,mkj->mki", self.rotation, signs * self.size[:, None]))

    def inside(self, points: Float) -> NDArray[np.int64]:
        """Return (N,): for each point the box that holds it, or −1."""
        found = np.full(len(points), -1, np.int64)
        for index in range(len(self)):
            local = (points - self.centre[index]) @ self.rotation[index]
            found[np.all(np.abs(local) <= self.size[index] / 2, -1)] = index
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Where the ego is, in its own frame at the reference stamp."""

    seconds: Float
    """(T,) relative to the reference stamp, ascending."""
    position: Float
    """(T, 3) metres."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything one picture shows."""

    title: str
    stamp_ns: int
    cameras: Sequence[CameraImage]
    points: Float
    """(N, 3) ego frame at the reference stamp, metres."""
    boxes: Boxes
    path: Path


def chain(frame: str, from_world: Float, to_world: Float, to_own_ego: Float) -> Float:
    """Return the matrix from a payload's declared frame to the ego at the reference stamp."""
    if frame == "world":
        return from_world
    return from_world @ to_world if frame == "ego" else from_world @ to_world @ to_own_ego


def boxes_of(sensor: Sensor, table: Mapping[str, Any], to_ego: Float) -> Boxes:  # Any: a column is an array or a list of str
    turn = to_ego[:3, :3]
    count = len(table["centre"])
    velocity = np.asarray(table["velocity"], np.float64) if "velocity" in table else np.full((count, 3), np.nan)
    names = [""] * count
    for item in sensor.fields:
        if item.name == "category" and item.dtype == "str":
            names = list(table["category"])
        elif item.name == "category" and item.categories:
            names = [item.categories[index] for index in np.asarray(table["category"])]
    return Boxes(
        centre=move(to_ego, np.asarray(table["centre"], np.float64).reshape(-1, 3)),
        size=np.asarray(table["size"], np.float64).reshape(-1, 3),
        rotation=turn @ rotation_matrix(np.asarray(table["rotation"], np.float64).reshape(-1, 4)),
        velocity=velocity.reshape(-1, 3) @ turn.T,
        names=names,
    )


def no_boxes() -> Boxes:
    none = np.zeros((0, 3))
    return Boxes(centre=none, size=none, rotation=np.zeros((0, 3, 3)), velocity=none, names=[])


def is_radar(sensor: Sensor) -> bool:
    return any(item.name in ("rcs", "vx_comp", "velocity") for item in sensor.fields)


def move(matrix: Float, points: Float) -> Float:
    return points @ matrix[:3, :3].T + matrix[:3, 3]


def in_ring_order(cameras: Sequence[CameraImage]) -> list[CameraImage]:
    """Order cameras as one looks around: upper row left to right facing forward, lower row left to right facing back."""

    def key(camera: CameraImage) -> tuple[int, float, str]:
        forward = camera.from_ego[2, :3]  # the camera's optical axis in the ego frame
        bearing = float(np.arctan2(forward[1], forward[0]))  # left is positive
        ahead = abs(bearing) < np.deg2rad(91)
        return (0, -bearing, camera.name) if ahead else (1, bearing % (2 * np.pi), camera.name)

    return sorted(cameras, key=key)
