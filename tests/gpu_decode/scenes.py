"""A batch with every kind of geometry, made from a seed: cameras over two frames, LiDAR, radar, world boxes, poses, a path."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.formats.pose import to_matrix
from headway.loader.batch import Batch

__all__ = ["SIZE", "scene"]

SIZE = (48, 80)


def _poses(rng: np.random.Generator, *lead: int, spread: float) -> NDArray[np.float64]:
    pose = np.concatenate([rng.normal(scale=spread, size=(*lead, 3)), rng.normal(size=(*lead, 4))], -1)
    return to_matrix(pose)


def scene(seed: int = 0, *, samples: int = 2, epoch: int = 0) -> Batch:
    """Return B samples; the last sample's second camera of frame 0 is absent."""
    rng = np.random.default_rng(seed)
    length, cameras, rows = 2, 2, 4
    stamps = np.arange(samples * length, dtype=np.int64).reshape(samples, length) * 10**8 + 10**18
    reference = stamps[:, -1:]
    world = _poses(rng, samples, length, spread=1000)
    mask = np.ones((samples, length, cameras), np.bool_)
    mask[-1, 0, 1] = False
    camera_world = np.repeat(world[:, :, None], cameras, 2) * mask[..., None, None]
    intrinsics = (
        np.tile(np.array([[60.0, 0, 40], [0, 60, 24], [0, 0, 1]]), (samples, length, cameras, 1, 1)) * mask[..., None, None]
    )
    counts = rng.integers(5, 12, samples)
    boxes = rng.integers(1, rows + 1, (samples, 1))
    there = np.arange(rows) < boxes[..., None]
    quaternion = rng.normal(size=(samples, 1, rows, 4))
    quaternion /= np.linalg.norm(quaternion, axis=-1, keepdims=True)
    path = _poses(rng, samples, 3, spread=20)
    velocity = rng.normal(size=(samples, 1, rows, 3))
    entry: dict[str, dict[str, Any]] = {  # Any: arrays, lists and text, as a batch holds them
        "camera": {
            "image": rng.integers(0, 256, (samples, length, cameras, 3, *SIZE)).astype(np.uint8),
            "intrinsics": intrinsics,
            "sensor_to_ego": _poses(rng, samples, length, cameras, spread=1) * mask[..., None, None],
            "ego_to_world": camera_world,
            "stamp": np.repeat(stamps[..., None], cameras, 2),
            "mask": mask,
        },
        "LIDAR_TOP": {
            "points": rng.normal(scale=20, size=(counts.sum(), 4)).astype(np.float32),
            "offsets": np.concatenate([[0], counts.cumsum()]),
            "columns": ["x", "y", "z", "intensity"],
            "coordinates": "sensor",
            "sensor_to_ego": _poses(rng, samples, 1, spread=1),
            "ego_to_world": world[:, -1:],
            "stamp": reference,
            "mask": np.ones((samples, 1), np.bool_),
        },
        "RADAR": {
            "points": rng.normal(scale=20, size=(3 * samples, 5)).astype(np.float32),
            "offsets": np.arange(samples + 1) * 3,
            "columns": ["x", "y", "z", "vx", "vy"],
            "coordinates": "ego",
            "sensor_to_ego": _poses(rng, samples, 1, spread=1),
            "ego_to_world": world[:, -1:],
            "stamp": reference,
            "mask": np.ones((samples, 1), np.bool_),
        },
        "boxes": {
            "centre": (rng.normal(scale=20, size=(samples, 1, rows, 3)) + world[:, -1:, None, :3, 3]) * there[..., None],
            "size": rng.uniform(1, 5, (samples, 1, rows, 3)) * there[..., None],
            "rotation": quaternion * there[..., None],
            "velocity": velocity * there[..., None],
            "track_id": [[[f"{b}-{m}" for m in range(int(boxes[b, 0]))]] for b in range(samples)],
            "count": boxes.astype(np.int64),
            "coordinates": "world",
            "stamp": reference,
            "mask": np.ones((samples, 1), np.bool_),
        },
        "ego": {"ego_to_world": world, "stamp": stamps, "mask": np.ones((samples, length), np.bool_)},
        "trajectory": {
            "pose": path,
            "position": path[..., :3, 3].copy(),
            "yaw": np.arctan2(path[..., 1, 0], path[..., 0, 0]),
            "mask": np.array([[True, True, False]] * samples),
            "stamp": np.zeros((samples, 3), np.int64),
        },
    }
    ids = np.arange(samples, dtype=np.int64) + 10
    tensors = {
        name: {
            key: torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
            for key, value in fields.items()
        }
        for name, fields in entry.items()
    }
    return Batch(
        tensors,
        id=torch.from_numpy(ids),
        replaced=torch.full((samples,), -1),
        occurrence=torch.zeros(samples, dtype=torch.int64),
        epoch=torch.full((samples,), epoch),
        valid=torch.ones(samples, dtype=torch.bool),
        stamp=torch.from_numpy(reference[:, 0].copy()),
        state={"seed": 7},
    )
