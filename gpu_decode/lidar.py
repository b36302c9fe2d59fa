"""LiDAR on the device as batched torch operations: sweeps merged into one frame, de-skewed, filtered, and sorted into voxels.

The loader's float64 numpy (`loader.sweeps`) is the reference: the same result to float32 rounding, on any device. Voxels come out
in one order whatever the device does, because sorting decides and no atomic addition does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..formats import UsageError

__all__ = ["Voxels", "deskew_points", "merge_sweeps", "pose_matrices", "voxelise"]


def merge_sweeps(
    points: torch.Tensor, offsets: torch.Tensor, motion: torch.Tensor, lag_s: torch.Tensor, *, drop_self_m: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points (ΣN, C + 1) moved to their samples' key frames, with the time lag as last column, and offsets (B + 1,).

    Args:
        points: float32 (ΣN, C), x y z first, all sweeps end to end; sample b's sweeps follow each other, the key sweep first.
        offsets: int64 (B · S + 1,).
        motion: float64 (B, S, 4, 4), sweep frame → key frame; all zeros for a sweep that is not there.
        lag_s: float (B, S), seconds from the sweep to the key sweep.
        drop_self_m: leave out points of all but the key sweeps with |x| and |y| below this, in the sweep's own frame.
    """
    samples, length = motion.shape[:2]
    if len(offsets) != samples * length + 1:
        raise UsageError(f"merge_sweeps: {samples} × {length} sweeps need {samples * length + 1} offsets, found {len(offsets)}")
    sweep = _owner(offsets, len(points))
    keep = (motion[..., 3, 3].reshape(-1) != 0)[sweep]
    if drop_self_m > 0:
        near = (points[:, :2].abs() < drop_self_m).all(1)
        keep = keep & ~(near & (sweep % length != 0))
    points, sweep = points[keep], sweep[keep]
    flat = motion.reshape(-1, 4, 4)[sweep]
    # In float64: a sweep half a second away has moved tens of metres, and one rounding at the end is enough.
    xyz = torch.einsum("nij,nj->ni", flat[:, :3, :3], points[:, :3].double()) + flat[:, :3, 3]
    lag = lag_s.reshape(-1)[sweep].to(points.dtype)
    merged = torch.cat([xyz.to(points.dtype), points[:, 3:], lag[:, None]], 1)
    counts = torch.bincount(sweep // length, minlength=samples)
    return merged, torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def deskew_points(
    xyz: torch.Tensor,
    times_ns: torch.Tensor,
    *,
    ego_stamps: torch.Tensor,
    ego_poses: torch.Tensor,
    stamp_ns: int,
    sensor_to_ego: torch.Tensor,
) -> torch.Tensor:
    """Return points (N, 3) as seen from where the sensor was at `stamp_ns`; each was seen at stamp + `times_ns`.

    Args:
        xyz: float (N, 3), sensor frame.
        times_ns: int64 (N,), from the sweep's stamp.
        ego_stamps: int64 (m,), ascending, of the drive's ego poses; outside them the pose is that of the nearer end.
        ego_poses: float64 (m, 7), ego → world, x y z w x y z.
        stamp_ns: of the sweep.
        sensor_to_ego: float64 (4, 4).
    """
    then = pose_matrices(ego_stamps, ego_poses, times_ns + stamp_ns)
    now = pose_matrices(ego_stamps, ego_poses, torch.full((1,), stamp_ns, dtype=torch.int64, device=xyz.device))
    motion = torch.linalg.inv(now @ sensor_to_ego) @ then @ sensor_to_ego
    seen: torch.Tensor = torch.einsum("nij,nj->ni", motion[:, :3, :3], xyz.double()) + motion[:, :3, 3]
    return seen.to(xyz.dtype)


def pose_matrices(stamps: torch.Tensor, poses: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return (n, 4, 4), float64, of poses (m, 7) interpolated at stamps `at` (n,): linear, and slerp the shorter way."""
    at = at.clamp(int(stamps[0]), int(stamps[-1]))
    right = torch.searchsorted(stamps, at, right=True).clamp(1, max(len(stamps) - 1, 1)).clamp(max=len(stamps) - 1)
    left = (right - 1).clamp_min(0)
    # Differences in integers: nanoseconds since 1970 do not fit a double.
    span = (stamps[right] - stamps[left]).clamp_min(1)
    share = ((at - stamps[left]).double() / span.double())[:, None]
    shift = poses[left, :3] + share * (poses[right, :3] - poses[left, :3])
    start, end = (torch.nn.functional.normalize(poses[side, 3:], dim=-1) for side in (left, right))
    cosine = (start * end).sum(-1, keepdim=True)
    end, angle = torch.where(cosine < 0, -end, end), torch.acos(cosine.abs().clamp(max=1.0))
    near = angle < 1e-7
    sine = torch.where(near, 1.0, torch.sin(angle))
    first = torch.where(near, 1 - share, torch.sin((1 - share) * angle) / sine)
    second = torch.where(near, share, torch.sin(share * angle) / sine)
    w, x, y, z = torch.nn.functional.normalize(first * start + second * end, dim=-1).unbind(-1)
    matrix = torch.zeros((len(at), 4, 4), dtype=torch.float64, device=at.device)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    matrix[:, :3, :3] = torch.stack([torch.stack(row, -1) for row in rows], -2)
    matrix[:, :3, 3] = shift
    matrix[:, 3, 3] = 1
    return matrix


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Voxels:
    """Points sorted into cells, dynamically: every point inside the range has its cell, none is dropped for room."""

    cells: torch.Tensor
    """int64 (V, 4): sample, z, y, x of each occupied cell, ascending in that order."""
    counts: torch.Tensor
    """int64 (V,): points in each."""
    points: torch.Tensor
    """(P, C): the points inside, cell by cell, in their own order within a cell."""
    cell_of: torch.Tensor
    """int64 (P,): which of the V cells each point is in."""
    source: torch.Tensor
    """int64 (P,): which row each point was."""

    def means(self) -> torch.Tensor:
        """Return (V, C): the mean of each cell's points; summed in their order, so the same on every run."""
        ends = self.counts.cumsum(0)
        # Prefix sums in float64 instead of scattered additions, whose order differs from run to run on a GPU.
        total = torch.cat([self.points.new_zeros((1, self.points.shape[1]), dtype=torch.float64), self.points.double().cumsum(0)])
        sums = total[ends] - total[ends - self.counts]
        return (sums / self.counts[:, None]).to(self.points.dtype)

    def padded(self, most: int) -> torch.Tensor:
        """Return (V, most, C): the first points of each cell, zeros behind; what hard voxelisation gives."""
        begins = self.counts.cumsum(0) - self.counts
        place = torch.arange(len(self.cell_of), device=self.points.device) - begins[self.cell_of]
        fits = place < most
        out = self.points.new_zeros((len(self.counts), most, self.points.shape[1]))
        out[self.cell_of[fits], place[fits]] = self.points[fits]
        return out


def voxelise(
    points: torch.Tensor,
    offsets: torch.Tensor,
    *,
    low: tuple[float, float, float],
    high: tuple[float, float, float],
    size: tuple[float, float, float],
) -> Voxels:
    """Return the cells of all samples' points (ΣN, C), x y z first; a pillar is a cell as high as the range.

    >>> cloud = torch.tensor([[0.1, 0.1, 0.0], [0.2, 0.3, 0.5], [1.5, 0.1, 0.0], [9.0, 0.0, 0.0]])
    >>> found = voxelise(cloud, torch.tensor([0, 4]), low=(0, 0, -1), high=(2, 2, 1), size=(1, 1, 2))
    >>> found.cells.tolist(), found.counts.tolist()
    ([[0, 0, 0, 0], [0, 0, 0, 1]], [2, 1])
    """
    if not all(begin < end and step > 0 for begin, end, step in zip(low, high, size, strict=True)):
        raise UsageError(f"voxelise: need low < high and sizes above 0, found {low}, {high}, {size}")
    shape = [max(1, round((end - begin) / step)) for begin, end, step in zip(low, high, size, strict=True)]
    if len(offsets) * shape[0] * shape[1] * shape[2] >= 1 << 62:
        raise UsageError(f"voxelise: {shape} cells a sample are more than 64-bit numbers can name; take larger cells")
    begin, end, step = (torch.tensor(side, dtype=points.dtype, device=points.device) for side in (low, high, size))
    xyz = points[:, :3]
    inside = torch.nonzero(((xyz >= begin) & (xyz < end)).all(1))[:, 0]
    cell = torch.floor((xyz[inside] - begin) / step).long()
    # A point a rounding below the upper end is in the last cell, not in one beyond it.
    cell = torch.minimum(cell, torch.tensor(shape, device=points.device) - 1)
    sample = _owner(offsets, len(points))[inside]
    number = ((sample * shape[2] + cell[:, 2]) * shape[1] + cell[:, 1]) * shape[0] + cell[:, 0]
    number, order = torch.sort(number, stable=True)
    names, cell_of, counts = torch.unique_consecutive(number, return_inverse=True, return_counts=True)
    x, rest = names % shape[0], names // shape[0]
    y, rest = rest % shape[1], rest // shape[1]
    cells = torch.stack([rest // shape[2], rest % shape[2], y, x], 1)
    source = inside[order]
    return Voxels(cells=cells, counts=counts, points=points[source], cell_of=cell_of, source=source)


def _owner(offsets: torch.Tensor, total: int) -> torch.Tensor:
    """Return (ΣN,): which of the runs between offsets each row is in."""
    runs = torch.arange(len(offsets) - 1, device=offsets.device)
    return torch.repeat_interleave(runs, offsets.diff(), output_size=total)
