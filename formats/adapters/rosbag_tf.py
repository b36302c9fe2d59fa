"""The transform tree of a bag: who hangs below whom, and the pose along a path at any stamp.

ROS names: a transform of child c in parent p maps c's coordinates into p's, so it is `c_to_p`. Static transforms hold for the
whole bag, whenever they were published. Quaternions arrive as x y z w and leave as w x y z.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError
from ..pose import compose, interpolate, invert

__all__ = ["TransformTree", "pose_of"]

Poses = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Edge:
    parent: str
    stamps: NDArray[np.int64]
    """(n,), ns, ascending; empty for a static transform."""
    poses: Poses
    """(n, 7) child_to_parent; (1, 7) for a static one."""


class TransformTree:
    """Every transform a bag published, by child frame."""

    def __init__(self, transforms: Iterable[tuple[bool, str, str, int, list[float]]]) -> None:
        """Take (static, parent, child, stamp, child_to_parent) in any order; the last of equal stamps wins."""
        parents: dict[str, str] = {}
        static: dict[str, list[float]] = {}
        moving: dict[str, dict[int, list[float]]] = {}
        for is_static, parent, child, stamp, pose in transforms:
            if parents.setdefault(child, parent) != parent:
                raise SourceError(
                    f"cannot read the transforms of a bag: frame {child!r} has two parents, {parents[child]!r} and {parent!r}; "
                    "choose the TF topics to use with the option tf_topics"
                )
            if is_static:
                static[child] = pose
            else:
                moving.setdefault(child, {})[stamp] = pose
        self._edges: dict[str, _Edge] = {}
        for child, parent in parents.items():
            if child in moving:
                stamps = sorted(moving[child])
                poses = np.array([moving[child][stamp] for stamp in stamps])
                self._edges[child] = _Edge(parent, np.array(stamps, np.int64), poses)
            else:
                self._edges[child] = _Edge(parent, np.empty(0, np.int64), np.array([static[child]]))

    @property
    def frames(self) -> set[str]:
        """Every frame that has, or is, a parent."""
        return set(self._edges) | {edge.parent for edge in self._edges.values()}

    def root(self, frame: str) -> str:
        """Return the frame at the top of the tree that `frame` hangs in."""
        return self._chain(frame)[-1]

    def connected(self, source: str, target: str) -> bool:
        """Say whether a path leads from one frame to the other."""
        return self.root(source) == self.root(target)

    def moving_stamps(self, source: str, target: str) -> NDArray[np.int64]:
        """Return the stamps of the most often published edge between two frames, where every edge between them is known."""
        edges = [edge for edge in self._between(source, target) if len(edge.stamps)]
        if not edges:
            return np.empty(0, np.int64)
        first, last = max(edge.stamps[0] for edge in edges), min(edge.stamps[-1] for edge in edges)
        busiest = max(edges, key=lambda edge: len(edge.stamps)).stamps
        known: NDArray[np.int64] = busiest[(busiest >= first) & (busiest <= last)]
        return known

    def gap(self, source: str, target: str, stamps: NDArray[np.int64]) -> int:
        """Return by how many ns the worst of `stamps` lies outside of what was published between two frames."""
        worst = 0
        for edge in self._between(source, target):
            if len(edge.stamps) and len(stamps):
                worst = max(worst, int(edge.stamps[0] - stamps.min()), int(stamps.max() - edge.stamps[-1]))
        return worst

    def lookup(self, source: str, target: str, stamps: NDArray[np.int64]) -> Poses:
        """Return source_to_target (n, 7) at `stamps`; ends are held, so ask `gap` how far they are stretched."""
        up, down = self._chain(source), self._chain(target)
        shared = next(frame for frame in up if frame in set(down))
        to_shared = self._climb(up[: up.index(shared)], stamps)
        return compose(invert(self._climb(down[: down.index(shared)], stamps)), to_shared)

    def _climb(self, frames: list[str], stamps: NDArray[np.int64]) -> Poses:
        pose = np.zeros((len(stamps), 7))
        pose[:, 3] = 1
        for frame in frames:
            edge = self._edges[frame]
            step = (
                interpolate(edge.stamps, edge.poses, stamps) if len(edge.stamps) else np.broadcast_to(edge.poses[0], pose.shape)
            )
            pose = compose(step, pose)
        return pose

    def _between(self, source: str, target: str) -> list[_Edge]:
        up, down = self._chain(source), self._chain(target)
        return [self._edges[frame] for frame in {*up, *down} - ({*up} & {*down}) if frame in self._edges]

    def _chain(self, frame: str) -> list[str]:
        chain = [frame]
        while chain[-1] in self._edges:
            chain.append(self._edges[chain[-1]].parent)
            if len(chain) > len(self._edges) + 1:
                raise SourceError(f"cannot read the transforms of a bag: frame {frame!r} hangs below itself")
        return chain


def pose_of(position: Any, orientation: Any) -> list[float]:  # Any: message classes are built at run time from the bag
    """Return x y z qw qx qy qz of a ROS Point or Vector3 and Quaternion."""
    return [position.x, position.y, position.z, orientation.w, orientation.x, orientation.y, orientation.z]
