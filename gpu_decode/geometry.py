"""What one matrix a sample does to everything in a batch that has a place in space, and the chain from points to pixels.

The matrix M acts in the ego frame: x' = M x. Every pose chain goes on leading to the same world and the same pixels:
ego_to_world' = ego_to_world M⁻¹; cameras: sensor_to_ego' = M sensor_to_ego; points in a sensor's frame keep their sensor_to_ego
S, and move by S⁻¹ M S. Tables move by M itself. M is a similarity: rotation, mirror, one scale, translation. All of it is batched
tensor operations in float64 (points: float32), on whatever device the batch is; on the CPU numpy moves the points.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch

from ..formats import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, UsageError

__all__ = [
    "affine_inverse",
    "boxes_to_ego",
    "point_samples",
    "points_to_image",
    "reference_pose",
    "sensor_mount",
    "sum_of_products",
    "transform",
]

Entry = dict[str, Any]  # Any: one field of a batch, see loader.batch

_VELOCITIES: Final = (("vx", "vy", "vz"), ("vx_comp", "vy_comp", "vz_comp"))


def transform(batch: dict[str, Any], matrix: torch.Tensor) -> dict[str, Any]:  # Any: see loader.batch
    """Return the batch moved by `matrix` (B, 4, 4), float64; tensors that change are new, all others are shared.

    Tables in world coordinates come out in the ego frame, with a "yaw". A field that holds no geometry is left alone.
    """
    moved = dict(batch)
    inverse = affine_inverse(matrix)
    for name, entry in batch.items():
        if name == "state" or not isinstance(entry, dict):
            continue
        entry = dict(entry)
        if "points" in entry:
            _move_points(name, entry, matrix)
        elif "centre" in entry:
            entry = boxes_to_ego(batch, name)
            _move_boxes(entry, matrix)
        elif "pose" in entry and "position" in entry:
            _move_path(entry, matrix, inverse)
        if "image" in entry or entry.get("coordinates") == "ego":
            _follow(entry, SENSOR_TO_EGO, matrix, left=True)
        _follow(entry, EGO_TO_WORLD, inverse, left=False)
        moved[name] = entry
    return moved


def affine_inverse(matrix: torch.Tensor) -> torch.Tensor:
    """Return the inverses of (…, 4, 4) affine matrices; all-zero ones, which stand for what is absent, stay zero."""
    there = (matrix[..., 3, 3] != 0)[..., None, None]
    inverse: torch.Tensor = torch.linalg.inv(torch.where(there, matrix, torch.eye(4, dtype=matrix.dtype, device=matrix.device)))
    return inverse * there


def points_to_image(batch: dict[str, Any], *, points: str = "LIDAR_TOP", images: str = "camera") -> torch.Tensor:  # Any: as above
    """Return (B, T, N, 4, 4): coordinates of `points` at its reference sweep → u·depth, v·depth, depth, 1 of each image.

    It is the one chain through ego and world at both stamps, and holds before and after any augmentation alike. Rows of absent
    images are zero.

    >>> import torch; from headway.loader.batch import Batch
    >>> eye = torch.eye(4, dtype=torch.float64).reshape(1, 1, 4, 4)
    >>> cloud = {"points": torch.zeros(1, 3), "coordinates": "sensor", "sensor_to_ego": eye, "ego_to_world": eye}
    >>> camera = {"image": torch.zeros(1, 1, 1, 3, 2, 2), "sensor_to_ego": eye[:, :, None], "ego_to_world": eye[:, :, None]}
    >>> camera["intrinsics"] = 2 * torch.eye(3, dtype=torch.float64).reshape(1, 1, 1, 3, 3)
    >>> points_to_image(Batch(LIDAR_TOP=cloud, camera=camera))[0, 0, 0].diagonal().tolist()
    [2.0, 2.0, 2.0, 1.0]
    """
    cloud, group = batch[points], batch[images]
    place = _reference_place(batch, cloud)
    to_world = _at(cloud[EGO_TO_WORLD], place)
    if cloud["coordinates"] == "sensor":
        to_world = to_world @ _at(cloud[SENSOR_TO_EGO], place)
    elif cloud["coordinates"] == "world":
        to_world = torch.eye(4, dtype=to_world.dtype, device=to_world.device).expand_as(to_world)
    intrinsics = group[INTRINSICS]
    view = torch.zeros((*intrinsics.shape[:-2], 4, 4), dtype=intrinsics.dtype, device=intrinsics.device)
    view[..., :3, :3] = intrinsics
    view[..., 3, 3] = 1
    to_sensor = affine_inverse(group[SENSOR_TO_EGO]) @ affine_inverse(group[EGO_TO_WORLD])
    return view @ to_sensor @ to_world[:, None, None]


def reference_pose(batch: dict[str, Any]) -> torch.Tensor:  # Any: as above
    """Return ego_to_world (B, 4, 4) at the reference stamps, from whichever field of the batch has one for exactly that stamp.

    Samples that are not valid get the identity.
    """
    valid: torch.Tensor = batch["valid"]
    pose = torch.eye(4, dtype=torch.float64, device=valid.device).repeat(len(valid), 1, 1)
    missing = valid.clone()
    for name, entry in batch.items():
        if name == "state" or not isinstance(entry, dict) or EGO_TO_WORLD not in entry or "stamp" not in entry:
            continue
        poses, stamps = entry[EGO_TO_WORLD].flatten(1, -3), entry["stamp"].flatten(1)
        if poses.shape[1] != stamps.shape[1]:
            continue  # several sweeps as one cloud: the pose is the key sweep's, whose stamp others may share
        fits = (stamps == batch["stamp"][:, None]) & (poses[..., 3, 3] != 0) & missing[:, None]
        found = fits.any(1)
        first = fits.to(torch.int8).argmax(1)
        pose = torch.where(found[:, None, None], poses[torch.arange(len(poses), device=poses.device), first], pose)
        missing = missing & ~found
    if bool(missing.any()):
        raise UsageError(
            f"cannot tell where the ego was at the reference stamp of {int(missing.sum())} of {len(valid)} samples: no field of "
            "the batch has an ego_to_world for exactly that stamp; read the reference sensor or the timeline 'ego' as well"
        )
    return pose


def boxes_to_ego(batch: dict[str, Any], name: str = "boxes") -> Entry:
    """Return the table `name` in the ego frame at the reference stamp, with "yaw" (radians, counter-clockwise from x) added.

    A table in a sensor's frame needs that sensor's pose, which it does not carry, and is refused.
    """
    entry: Entry = dict(batch[name])
    coordinates = entry.get("coordinates")
    if coordinates == "world":
        _move_boxes(entry, affine_inverse(reference_pose(batch)))
        entry["coordinates"] = "ego"
    elif coordinates != "ego":
        raise UsageError(f"boxes {name!r} are in the frame {coordinates!r}; give them in 'ego' or 'world' coordinates")
    if "rotation" in entry and "yaw" not in entry:
        axis = _rotation_matrix(entry["rotation"])[..., :, 0]
        entry["yaw"] = torch.where(_there(entry), torch.atan2(axis[..., 1], axis[..., 0]), 0.0)
    return entry


def point_samples(entry: Entry, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which sweep (of B·T, in packed order) and which of B `samples` each point belongs to."""
    offsets: torch.Tensor = entry["offsets"]
    counts = offsets[1:] - offsets[:-1]
    sweep = torch.repeat_interleave(torch.arange(len(counts), device=offsets.device), counts, output_size=len(entry["points"]))
    return sweep, sweep // (len(counts) // samples)


def sensor_mount(batch: dict[str, Any], name: str) -> torch.Tensor:  # Any: as above
    """Return sensor_to_ego (B, 4, 4) of a points field at the reference stamp; the identity for samples without it."""
    entry = batch[name]
    mount = _at(entry[SENSOR_TO_EGO], _reference_place(batch, entry))
    identity = torch.eye(4, dtype=mount.dtype, device=mount.device)
    return torch.where((mount[:, 3, 3] != 0)[:, None, None], mount, identity)


def _move_points(name: str, entry: Entry, matrix: torch.Tensor) -> None:
    coordinates = entry.get("coordinates")
    if coordinates == "world":
        return  # the world stays where it is; the ego moves in it
    sweeps = len(entry["offsets"]) - 1
    per_sweep = matrix.repeat_interleave(sweeps // len(matrix), 0)
    if coordinates == "sensor":
        if SENSOR_TO_EGO not in entry:
            raise UsageError(f"points {name!r} are in their sensor's frame, and the batch has no {SENSOR_TO_EGO!r} for them")
        mount = entry[SENSOR_TO_EGO].reshape(-1, 4, 4)
        per_sweep = affine_inverse(mount) @ per_sweep @ mount
    elif coordinates != "ego":
        raise UsageError(f"points {name!r} say no frame of their coordinates (found {coordinates!r}); expected 'sensor' or 'ego'")
    columns: list[str] = entry["columns"]
    if not {"x", "y", "z"} <= set(columns):
        raise UsageError(f"points {name!r} have no columns x, y and z to move, only {', '.join(columns)}; leave that sensor out")
    points = entry["points"].clone()
    linear, shift = per_sweep[:, :3, :3].to(points.dtype), per_sweep[:, :3, 3].to(points.dtype)
    places = [columns.index(axis) for axis in "xyz"]
    # As a view where they lie side by side, as they do nearly everywhere: gathering columns costs more than the arithmetic.
    at_xyz = slice(places[0], places[0] + 3) if places == list(range(places[0], places[0] + 3)) else places
    _move_rows(points, at_xyz, linear, shift, entry)
    for names in _VELOCITIES:
        present = [axis for axis, each in enumerate(names) if each in columns]
        if len(present) >= 2:
            at = [columns.index(names[axis]) for axis in present]
            _move_rows(points, at, linear[:, present][:, :, present], torch.zeros_like(shift[:, present]), entry)
    entry["points"] = points


def _move_rows(points: torch.Tensor, at: slice | list[int], linear: torch.Tensor, shift: torch.Tensor, entry: Entry) -> None:
    """Replace columns `at` of packed points by linear · row + shift, (sweeps, k, k) and (sweeps, k).

    By products and sums of whole columns: a matrix product may round by where the points lie, and a sample would then depend on
    the batch that it came in.
    """
    if points.device.type == "cpu":
        # Sweep by sweep, because a matrix a point is more memory than the points. In numpy, which writes where it is told: new
        # arrays cost torch a third of the time. On a GPU the offsets are not at hand.
        rows, factors, summands = points.numpy(), linear.numpy(), shift.numpy()
        places = list(range(rows.shape[1]))[at] if isinstance(at, slice) else at
        for sweep, (begin, end) in enumerate(pairwise(entry["offsets"].tolist())):
            given = rows[begin:end, at].T.copy()  # always: one point alone would be a view of what is written below
            total, product = np.empty((2, end - begin), rows.dtype)
            for axis, place in enumerate(places):
                np.multiply(given[0], factors[sweep, axis, 0], out=total)
                for column in range(1, len(given)):
                    np.multiply(given[column], factors[sweep, axis, column], out=product)
                    total += product
                total += summands[sweep, axis]
                rows[begin:end, place] = total
    else:
        sweeps, _ = point_samples(entry, len(linear))
        points[:, at] = sum_of_products(linear[sweeps].permute(1, 2, 0), points[:, at].T, shift[sweeps].T).T


def sum_of_products(linear: torch.Tensor, rows: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return linear (k, k, 1 or n) · rows (k, n) + shift (k, 1 or n)."""
    total = linear[:, 0] * rows[0]
    for column in range(1, len(rows)):
        total += linear[:, column] * rows[column]
    return total.add_(shift)


def _move_boxes(entry: Entry, matrix: torch.Tensor) -> None:
    there = _there(entry)
    move = matrix[:, None, None]  # over T and M
    linear = move[..., :3, :3]
    scale = torch.linalg.det(linear).abs() ** (1 / 3)
    centre = (linear @ entry["centre"][..., None])[..., 0] + move[..., :3, 3]
    entry["centre"] = torch.where(there[..., None], centre, 0.0)
    if "size" in entry:
        entry["size"] = entry["size"] * scale[..., None]
    if "velocity" in entry:
        entry["velocity"] = _turned(linear, entry["velocity"])
    if "rotation" in entry:
        turned = linear / scale[..., None, None] @ _rotation_matrix(entry["rotation"])
        # A mirrored box is a box whose left and right changed places: heading and up follow the mirror, left stays their product.
        turned[..., :, 1] *= torch.sign(torch.linalg.det(linear))[..., None]
        quaternion = _quaternion(turned)
        entry["rotation"] = torch.where(there[..., None], quaternion, entry["rotation"])
        entry["yaw"] = torch.where(there, torch.atan2(turned[..., 1, 0], turned[..., 0, 0]), 0.0)


def _move_path(entry: Entry, matrix: torch.Tensor, inverse: torch.Tensor) -> None:
    there: torch.Tensor = entry["mask"]
    move = matrix[:, None]
    linear = move[..., :3, :3]
    position = (linear @ entry["position"][..., None])[..., 0] + move[..., :3, 3]
    entry["position"] = torch.where(there[..., None], position, entry["position"])
    entry["pose"] = torch.where(there[..., None, None], move @ entry["pose"] @ inverse[:, None], entry["pose"])
    if "yaw" in entry:
        yaw = entry["yaw"]
        ahead = torch.stack([torch.cos(yaw), torch.sin(yaw), torch.zeros_like(yaw)], -1)
        turned = (linear @ ahead[..., None])[..., 0]
        entry["yaw"] = torch.where(there, torch.atan2(turned[..., 1], turned[..., 0]), yaw)


def _follow(entry: Entry, column: str, matrix: torch.Tensor, *, left: bool) -> None:
    if column in entry:
        poses: torch.Tensor = entry[column]
        each = matrix.reshape(len(matrix), *(1,) * (poses.dim() - 3), 4, 4)
        entry[column] = each @ poses if left else poses @ each


def _turned(linear: torch.Tensor, velocity: torch.Tensor) -> torch.Tensor:
    """Return `linear` · velocity; a component is unknown (NaN) where an unknown one has a part in it, and only there."""
    unknown = torch.isnan(velocity)
    turned = (linear @ torch.where(unknown, 0.0, velocity)[..., None])[..., 0]
    mixed = ((linear != 0).to(velocity.dtype) @ unknown.to(velocity.dtype)[..., None])[..., 0] > 0
    return torch.where(mixed, torch.nan, turned)


def _there(entry: Entry) -> torch.Tensor:
    """Return (B, T, M): which rows of a padded table are rows."""
    centre: torch.Tensor = entry["centre"]
    count: torch.Tensor = entry["count"]
    return torch.arange(centre.shape[2], device=centre.device) < count[..., None]


def _reference_place(batch: dict[str, Any], entry: Entry) -> torch.Tensor:  # Any: as above
    poses = entry[EGO_TO_WORLD if EGO_TO_WORLD in entry else SENSOR_TO_EGO]
    if poses.shape[1] == 1 or "stamp" not in batch:
        return torch.zeros(len(poses), dtype=torch.int64, device=poses.device)
    distance = (entry["stamp"] - batch["stamp"][:, None]).abs()
    return torch.where(entry["mask"], distance, torch.iinfo(torch.int64).max).argmin(1)


def _at(values: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return values[torch.arange(len(values), device=values.device), place]


def _rotation_matrix(quaternion: torch.Tensor) -> torch.Tensor:
    """Return (…, 3, 3) of (…, 4) quaternions w x y z; padding (zeros) gives the identity."""
    norm = quaternion.norm(dim=-1, keepdim=True)
    identity = torch.tensor([1.0, 0, 0, 0], dtype=quaternion.dtype, device=quaternion.device)
    w, x, y, z = torch.where(norm > 0, quaternion / norm.clamp_min(1e-300), identity).unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _quaternion(rotation: torch.Tensor) -> torch.Tensor:
    """Return (…, 4) quaternions w x y z, w ≥ 0, of proper rotations: the best conditioned of the four forms (Shepperd 1978)."""
    m = [[rotation[..., i, j] for j in range(3)] for i in range(3)]
    a, b, c = m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1]
    d, e, f = m[1][0] + m[0][1], m[0][2] + m[2][0], m[2][1] + m[1][2]
    forms = torch.stack(
        [
            torch.stack([1 + m[0][0] + m[1][1] + m[2][2], a, b, c], -1),
            torch.stack([a, 1 + m[0][0] - m[1][1] - m[2][2], d, e], -1),
            torch.stack([b, d, 1 - m[0][0] + m[1][1] - m[2][2], f], -1),
            torch.stack([c, e, f, 1 - m[0][0] - m[1][1] + m[2][2]], -1),
        ],
        -2,
    )
    best = forms.diagonal(dim1=-2, dim2=-1).argmax(-1)
    chosen = torch.take_along_dim(forms, best[..., None, None], -2)[..., 0, :]
    chosen = chosen / chosen.norm(dim=-1, keepdim=True)
    return torch.where(chosen[..., :1] < 0, -chosen, chosen)
