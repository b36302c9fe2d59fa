"""Where the ego was and will be: its path at a fixed rate, in the ego frame at the frame's reference stamp.

Way-points are interpolated from a timeline of poses (linear, slerp). Those off the ends of the drive are masked; no item is
dropped for them. The same poses give the ego motion from one frame to the next, which recurrent models need.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import EGO_TO_WORLD, UsageError
from ..formats.pose import compose, invert, slerp, to_matrix
from .read_set import Resolved
from .sync import StampedRows, match
from .window import Window, duration_ns

__all__ = ["EgoPath", "Trajectory", "ego_motion", "ego_path", "interpolated_poses", "poses_at"]

Float = NDArray[np.float64]
Int64 = NDArray[np.int64]

_IDENTITY: Final = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The ego's path around each item's frame, as way-points at a fixed rate.

    T = past·rate + 1 + future·rate way-points in time order; the one at the reference stamp is the identity.

    >>> Trajectory(past="2s", future="3s", rate_hz=2).steps
    (-4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6)
    """

    sensor: str = "ego"
    """A timeline with a column `ego_to_world`."""
    _: KW_ONLY
    past: str = "2s"
    """How far back; "0s" for none."""
    future: str = "6s"
    """How far ahead; "0s" for none."""
    rate_hz: float = 2.0
    """Way-points a second."""
    name: str = "trajectory"
    """Name of the batch field."""

    def __post_init__(self) -> None:
        rate_is_number = isinstance(self.rate_hz, int | float) and not isinstance(self.rate_hz, bool)
        if not rate_is_number or not 0.001 <= self.rate_hz <= 10_000:
            raise UsageError(f"trajectory {self.name!r}: rate_hz={self.rate_hz!r} must lie between 0.001 and 10000")
        for side in (self.past, self.future):
            duration_ns(side, f"trajectory {self.name!r}: past and future")
        _ = self.window  # checks the count of way-points

    @property
    def window(self) -> Window:
        """The window that reads the poses: interpolated at the way-points' stamps, masked off the drive's ends."""
        step = 1 / Fraction(str(self.rate_hz)).limit_denominator(10**6)
        return Window(
            self.sensor,
            past=self.past,
            future=self.future,
            stride=f"{step.numerator}/{step.denominator}s",
            sync="interpolate",
            name=self.name,
        )

    @property
    def steps(self) -> tuple[int, ...]:
        """The way-points' numbers; 0 is the reference stamp."""
        return self.window.steps

    def to_json(self) -> dict[str, Any]:
        """Return the trajectory as plain data, for the view id."""
        return {"kind": "trajectory", **{field: getattr(self, field) for field in self.__dataclass_fields__ if field != "_"}}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EgoPath:
    """Way-points of n items, in the ego frame at each item's reference stamp. Masked ones hold the identity."""

    pose: Float
    """(n, T, 4, 4): takes coordinates in the ego frame at the way-point's stamp to the ego frame at the reference stamp."""
    position: Float
    """(n, T, 3), metres."""
    yaw: Float
    """(n, T), radians in (−π, π], counter-clockwise from x forward: heading of the way-point's x axis."""
    stamp: Int64
    """(n, T), ns; 0 where masked."""
    mask: NDArray[np.bool_]
    """(n, T): False off the ends of the drive; all False where there is no pose at the reference stamp."""


def ego_path(timeline: StampedRows, resolved: Resolved) -> EgoPath:
    """Return the way-points that a resolved `Trajectory` means."""
    assert resolved.fraction is not None
    assert resolved.right is not None
    valid = resolved.valid[..., 0]
    anchor = int(np.flatnonzero(resolved.steps[0] == 0)[0]) if len(valid) else 0
    mask = valid & valid[:, anchor : anchor + 1]
    left, right, fraction = resolved.rows[..., 0], resolved.right[..., 0], resolved.fraction[..., 0]
    poses = interpolated_poses(timeline, np.where(mask, left, -1), right, fraction=fraction)
    relative = compose(invert(poses[:, anchor : anchor + 1]), poses)
    relative = np.where(mask[..., None], relative, _IDENTITY)
    # Exactly, not to rounding: who divides by the distance to the origin must find zero there.
    relative[:, anchor] = _IDENTITY
    matrix = to_matrix(relative)
    yaw = np.arctan2(matrix[..., 1, 0], matrix[..., 0, 0])
    stamps = np.where(mask, resolved.stamps[..., 0], 0)
    return EgoPath(pose=matrix, position=matrix[..., :3, 3].copy(), yaw=yaw, stamp=stamps, mask=mask)


def interpolated_poses(timeline: StampedRows, left: Int64, right: Int64, *, fraction: Float) -> Float:
    """Return poses (…, 7) `fraction` of the way between rows; the identity where `left` is −1."""
    poses = np.broadcast_to(_IDENTITY, (*left.shape, 7)).copy()
    there = left >= 0
    if not there.any():
        return poses
    a = np.asarray(timeline.take(EGO_TO_WORLD, left[there]), np.float64)
    b = np.asarray(timeline.take(EGO_TO_WORLD, right[there]), np.float64)
    t = fraction[there]
    # One product per axis keeps the end points exact, which a + t(b − a) does not at t = 1.
    shift = (1 - t)[:, None] * a[:, :3] + t[:, None] * b[:, :3]
    poses[there] = np.concatenate([shift, slerp(a[:, 3:], b[:, 3:], t)], -1)
    return poses


def poses_at(timeline: StampedRows, drives: Int64, stamps: Int64) -> tuple[Float, NDArray[np.bool_]]:
    """Return ego_to_world (…, 7) at `stamps` (n, …) in `drives` (n,), and where the timeline covers them."""
    found = match(timeline, drives, asked=stamps, sync="interpolate", tolerance_ns=None)
    assert found.fraction is not None
    assert found.right is not None
    poses = interpolated_poses(timeline, found.rows, found.right, fraction=found.fraction)
    return poses, found.rows >= 0


def ego_motion(
    timeline: StampedRows, drives: Int64, *, before: Int64, after: Int64
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return matrices (n, 4, 4) from the ego frame at stamps `before` to that at `after`, and where both are covered."""
    poses, there = poses_at(timeline, drives, np.stack([before, after], -1))
    there_both = np.asarray(there.all(-1), np.bool_)
    motion = compose(invert(poses[:, 1]), poses[:, 0])
    return to_matrix(np.where(there_both[:, None], motion, _IDENTITY)), there_both
