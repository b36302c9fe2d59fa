"""One camera as a person wants to see it: the picture, LiDAR points coloured by depth, boxes as wireframes, the way ahead."""

from __future__ import annotations

from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from ._canvas import FUTURE, MUTED, PANEL, Image, canvas, class_colour, depth_colours, dot, fill, line, plate, text, text_width
from .scene import CameraImage, Scene

NEAR_M, FAR_M = 2.0, 60.0
_CLIP_M = 0.1
_EDGES = [(a, b) for a in range(8) for b in range(8) if a < b and (a ^ b) in (1, 2, 4)]
_FRONT = [0, 2, 6, 4]
_LANE_HALF_M = 0.9


def draw_camera(scene: Scene, camera: CameraImage, height: int, width: int) -> Image:
    """Return (height, width, 3) RGB: the whole image, letterboxed if its shape differs, with everything projected into it."""
    source_height, source_width = camera.image.shape[:2]
    scale = min(width / source_width, height / source_height)
    size = (max(1, round(source_width * scale)), max(1, round(source_height * scale)))
    view = np.ascontiguousarray(cv2.resize(camera.image, size, interpolation=cv2.INTER_AREA))
    _draw_way(view, scene, camera, scale)
    _draw_points(view, scene, camera, scale)
    _draw_boxes(view, scene, camera, scale)
    page = canvas(height, width, PANEL)
    left, top = (width - size[0]) // 2, (height - size[1]) // 2
    page[top : top + size[1], left : left + size[0]] = view
    _label(page, camera)
    return page


def project(camera: CameraImage, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (N, 2) source pixels of points (N, 3) in the camera frame, z > 0, by the camera's own model."""
    if camera.model == "fisheye" and len(camera.distortion) >= 4:
        angle = np.arctan2(np.hypot(points[:, 0], points[:, 1]), points[:, 2])
        k = camera.distortion[:4]
        bent = angle * (1 + k[0] * angle**2 + k[1] * angle**4 + k[2] * angle**6 + k[3] * angle**8)
        radius = np.maximum(np.hypot(points[:, 0], points[:, 1]), 1e-12)
        flat = points[:, :2] / radius[:, None] * bent[:, None]
    else:
        flat = points[:, :2] / points[:, 2:]
        if camera.model == "brown" and len(camera.distortion) >= 4:
            flat = _brown(flat, np.pad(camera.distortion, (0, max(0, 5 - len(camera.distortion))))[:5])
    return np.asarray(flat @ camera.intrinsics[:2, :2].T + camera.intrinsics[:2, 2])


def _brown(flat: NDArray[np.float64], k: NDArray[np.float64]) -> NDArray[np.float64]:
    x, y = flat.T
    square = x * x + y * y
    radial = 1 + k[0] * square + k[1] * square**2 + k[4] * square**3
    return np.stack(
        [
            x * radial + 2 * k[2] * x * y + k[3] * (square + 2 * x * x),
            y * radial + k[2] * (square + 2 * y * y) + 2 * k[3] * x * y,
        ],
        -1,
    )


def _to_camera(camera: CameraImage, points: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(points @ camera.from_ego[:3, :3].T + camera.from_ego[:3, 3])


def _pixels(camera: CameraImage, points: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    # Drawing coordinates have the centre of the first pixel at 0, headway's at 0.5.
    return project(camera, points) * scale - 0.5


def _draw_points(view: Image, scene: Scene, camera: CameraImage, scale: float) -> None:
    local = _to_camera(camera, scene.points)
    # Only what the undistorted cone can hold: lens models fold points from behind into the picture.
    local = local[(local[:, 2] > 0.5) & (np.hypot(local[:, 0], local[:, 1]) < 4 * local[:, 2])]
    local = local[np.argsort(-local[:, 2])]
    at = _pixels(camera, local, scale)
    seen = (at > -1).all(-1) & (at < (view.shape[1], view.shape[0])).all(-1)
    depth = np.linalg.norm(local[seen], axis=1)
    radius = np.clip(11 / np.maximum(depth, 1), 0.75, 1.5)
    for position, size, colour in zip(at[seen], radius, depth_colours(depth, NEAR_M, FAR_M).tolist(), strict=True):
        dot(view, position, size, tuple(colour))


def _draw_boxes(view: Image, scene: Scene, camera: CameraImage, scale: float) -> None:
    if not len(scene.boxes):
        return
    corners = _to_camera(camera, scene.boxes.corners().reshape(-1, 3)).reshape(-1, 8, 3)
    depth = corners[..., 2].mean(1)
    for index in np.argsort(-depth):
        box = corners[index]
        if box[:, 2].max() <= _CLIP_M or depth[index] > 90:
            continue
        colour = class_colour(scene.boxes.names[index])
        if box[:, 2].min() > _CLIP_M:
            at = _pixels(camera, box, scale)
            if not ((at.max(0) > 0) & (at.min(0) < (view.shape[1], view.shape[0]))).all():
                continue
            fill(view, at[_FRONT], colour, 0.28)
        for start, end in _EDGES:
            _edge(view, camera, box[start], box[end], scale, colour)


def _edge(
    view: Image, camera: CameraImage, start: NDArray[np.float64], end: NDArray[np.float64], scale: float,
    colour: tuple[int, int, int],
) -> None:  # fmt: skip
    if max(start[2], end[2]) <= _CLIP_M:
        return
    if min(start[2], end[2]) < _CLIP_M:
        cut = start + (end - start) * (_CLIP_M - start[2]) / (end[2] - start[2])
        start, end = (cut, end) if start[2] < _CLIP_M else (start, cut)
    pieces = 1 if camera.model == "pinhole" else 8
    at = _pixels(camera, start + np.linspace(0, 1, pieces + 1)[:, None] * (end - start), scale)
    thickness = 2 if min(start[2], end[2]) < 18 else 1
    for a, b in pairwise(at):
        line(view, a, b, colour, thickness)


def _draw_way(view: Image, scene: Scene, camera: CameraImage, scale: float) -> None:
    """Lay the ego's next seconds on the road as a ribbon of the car's width."""
    way = scene.path.position[scene.path.seconds >= 0]
    if len(way) < 2 or np.linalg.norm(way[-1] - way[0]) < 2:
        return
    heading = np.gradient(way[:, :2], axis=0)
    norm = np.linalg.norm(heading, axis=1, keepdims=True)
    side = np.stack([-heading[:, 1], heading[:, 0]], -1) / np.maximum(norm, 1e-6) * _LANE_HALF_M
    left, right = way.copy(), way.copy()
    left[:, :2] += side
    right[:, :2] -= side
    left, right = _to_camera(camera, left), _to_camera(camera, right)
    for index in range(len(way) - 1):
        quad = np.stack([left[index], left[index + 1], right[index + 1], right[index]])
        if quad[:, 2].min() > 1.0:
            fill(view, _pixels(camera, quad, scale), FUTURE, 0.34)


def _label(page: Image, camera: CameraImage) -> None:
    offset = f"{camera.offset_ns / 1e6:+.1f} ms"
    name_width = text_width(camera.name, 15, 600)
    plate(page, 0, 0, name_width + text_width(offset, 13) + 34, 27)
    end = text(page, camera.name, (11, 19), 15, weight=600)
    text(page, offset, (end + 11, 19), 13, colour=MUTED)
