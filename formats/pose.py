"""Rigid poses: float64 (…, 7) rows of x y z (metres) and a unit quaternion w x y z; `a_to_b` maps frame a into frame b.

Quaternions are w first everywhere in headway. q and −q are the same rotation; interpolation takes the shorter way.
Formulas: Shoemake, "Animating rotation with quaternion curves", SIGGRAPH 1985 (slerp).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["compose", "from_matrix", "interpolate", "invert", "rotation_matrix", "slerp", "to_matrix"]

Float = NDArray[np.float64]


def rotation_matrix(quaternion: NDArray[Any]) -> Float:
    """Return (…, 3, 3) rotation matrices of (…, 4) quaternions w x y z, which are normalised first."""
    q = np.asarray(quaternion, np.float64)
    w, x, y, z = np.moveaxis(q / np.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def to_matrix(pose: NDArray[Any]) -> Float:
    """Return (…, 4, 4) homogeneous matrices of (…, 7) poses."""
    pose = np.asarray(pose, np.float64)
    matrix = np.zeros((*pose.shape[:-1], 4, 4))
    matrix[..., :3, :3] = rotation_matrix(pose[..., 3:])
    matrix[..., :3, 3] = pose[..., :3]
    matrix[..., 3, 3] = 1
    return matrix


def from_matrix(matrix: NDArray[Any]) -> Float:
    """Return (…, 7) poses of (…, 4, 4) rigid matrices, w ≥ 0; reflections are not poses and have no meaning here."""
    matrix = np.asarray(matrix, np.float64)
    r = matrix[..., :3, :3]
    # The four candidates (up to scale) of which the one with the largest component is numerically safe (Shepperd 1978).
    m00, m11, m22 = r[..., 0, 0], r[..., 1, 1], r[..., 2, 2]
    a, b, c = r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]
    d, e, f = r[..., 1, 0] + r[..., 0, 1], r[..., 0, 2] + r[..., 2, 0], r[..., 2, 1] + r[..., 1, 2]
    candidates = np.stack(
        [
            np.stack([1 + m00 + m11 + m22, a, b, c], -1),
            np.stack([a, 1 + m00 - m11 - m22, d, e], -1),
            np.stack([b, d, 1 - m00 + m11 - m22, f], -1),
            np.stack([c, e, f, 1 - m00 - m11 + m22], -1),
        ],
        -2,
    )
    best = np.argmax(np.einsum("...ii->...i", candidates), -1)
    q = np.take_along_axis(candidates, best[..., None, None], -2)[..., 0, :]
    q = q / np.linalg.norm(q, axis=-1, keepdims=True)
    q = np.where(q[..., :1] < 0, -q, q)
    return np.concatenate([matrix[..., :3, 3], q], -1)


def invert(pose: NDArray[Any]) -> Float:
    """Return b_to_a of a_to_b."""
    pose = np.asarray(pose, np.float64)
    conjugate = pose[..., 3:] * np.array([1.0, -1.0, -1.0, -1.0])
    shift = -np.einsum("...ij,...j->...i", rotation_matrix(conjugate), pose[..., :3])
    return np.concatenate([shift, conjugate], -1)


def compose(second: NDArray[Any], first: NDArray[Any]) -> Float:
    """Return a_to_c of (b_to_c, a_to_b): `first` is applied first."""
    second, first = np.asarray(second, np.float64), np.asarray(first, np.float64)
    shift = np.einsum("...ij,...j->...i", rotation_matrix(second[..., 3:]), first[..., :3]) + second[..., :3]
    w1, x1, y1, z1 = np.moveaxis(second[..., 3:], -1, 0)
    w2, x2, y2, z2 = np.moveaxis(first[..., 3:], -1, 0)
    quaternion = np.stack(
        [
            w1 * w2 - x1 * x2 - y1 * y2 - z1 * z2,
            w1 * x2 + x1 * w2 + y1 * z2 - z1 * y2,
            w1 * y2 - x1 * z2 + y1 * w2 + z1 * x2,
            w1 * z2 + x1 * y2 - y1 * x2 + z1 * w2,
        ],
        -1,
    )
    return np.concatenate([shift, quaternion], -1)


def slerp(start: NDArray[Any], end: NDArray[Any], fraction: NDArray[Any]) -> Float:
    """Return unit quaternions `fraction` (…,) of the shorter way from `start` to `end` (…, 4)."""
    start, end = np.asarray(start, np.float64), np.asarray(end, np.float64)
    start = start / np.linalg.norm(start, axis=-1, keepdims=True)
    end = end / np.linalg.norm(end, axis=-1, keepdims=True)
    cosine = np.sum(start * end, -1, keepdims=True)
    end, cosine = np.where(cosine < 0, -end, end), np.abs(cosine)
    angle = np.arccos(np.clip(cosine, -1, 1))
    t = np.asarray(fraction, np.float64)[..., None]
    near = angle < 1e-7  # sin(angle) underflows in the quotient; the chord is exact to double precision there
    sine = np.where(near, 1.0, np.sin(angle))
    a = np.where(near, 1 - t, np.sin((1 - t) * angle) / sine)
    b = np.where(near, t, np.sin(t * angle) / sine)
    mixed = a * start + b * end
    return np.asarray(mixed / np.linalg.norm(mixed, axis=-1, keepdims=True))


def interpolate(stamps: NDArray[np.int64], poses: NDArray[Any], at: NDArray[np.int64]) -> Float:
    """Return poses at stamps `at` (m,), ns: linear in translation, slerp in rotation, clamped to the ends.

    Stamps ascend strictly. Differences are taken in int64 before any float: epoch nanoseconds do not fit a double.
    """
    stamps, at, poses = np.asarray(stamps, np.int64), np.asarray(at, np.int64), np.asarray(poses, np.float64)
    if len(stamps) == 1:
        return np.broadcast_to(poses[0], (*at.shape, 7)).copy()
    at = np.clip(at, stamps[0], stamps[-1])
    right = np.clip(np.searchsorted(stamps, at, side="right"), 1, len(stamps) - 1)
    left = right - 1
    fraction = (at - stamps[left]) / (stamps[right] - stamps[left])
    shift = poses[left, :3] + fraction[..., None] * (poses[right, :3] - poses[left, :3])
    return np.concatenate([shift, slerp(poses[left, 3:], poses[right, 3:], fraction)], -1)
