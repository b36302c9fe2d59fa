"""The synthetic drives' cameras: textured ground, sky, and shaded boxes painted from the farthest to the nearest.

The ground is one picture of the road from above, warped into each image by the homography of its camera. Boxes stand apart
from each other on the ground, so an order that paints no box over one in front of it exists and is found exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ..formats.pose import compose, invert, rotation_matrix, to_matrix
from .synthetic_world import LANE_WIDTH_M, ROAD_EDGES_M, CameraRig, World

__all__ = ["Camera", "Ground", "make_ground"]

Float = NDArray[np.float64]
Image = NDArray[np.uint8]

_MARGIN_M: Final = 90.0
_GRASS, _ASPHALT, _PAVEMENT = (96, 120, 76), (84, 86, 90), (150, 146, 140)
_BANDS_M: Final = ((0.0, 16.0, 0), (16.0, 45.0, 2), (45.0, 1e9, 3))
"""From, to, and how often the ground's picture is halved there: what a pixel covers grows with the square of the distance."""
_NEAR_M: Final = 0.2
_SUBPIXEL: Final = 4
_SUN: Final = np.array([0.5, 0.3, 0.81])

# Corner i of a box: bit 0 = rear, bit 1 = right, bit 2 = bottom. Faces wind so that their outside is known.
_CORNERS: Final = np.array([[1 - 2 * (i & 1), 1 - (i & 2), 1 - (i & 4) / 2] for i in range(8)]) / 2
_FACES: Final = ((0, 2, 6, 4), (3, 1, 5, 7), (1, 0, 4, 5), (2, 3, 7, 6), (0, 1, 3, 2))
_NORMALS: Final = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1.0]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The ground from above: pictures of one area at `pixel_m` and, each half as wide, coarser."""

    pixel_m: float
    levels: Sequence[Image]
    corner: tuple[float, float]
    """World x, y of the outer corner of pixel (0, 0); rows go along +y."""
    road: Image
    """(H, W): 255 on the road; what nuScenes' map rasters show."""


def make_ground(world: World, seed: int, *, pixel_m: float = 0.1) -> Ground:
    """Draw a world's road, lanes, pavements and grass from above."""
    along = world.road[:, 0]
    low = world.road[:, 1:3].min(0) - _MARGIN_M
    width, height = np.ceil((world.road[:, 1:3].max(0) + _MARGIN_M - low) / pixel_m).astype(int)
    rng = np.random.default_rng(seed)
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = _GRASS

    def strip(target: Image, right: float, left: float, colour: int | tuple[int, ...], parts: Float) -> None:
        for piece in parts:
            inside = along[(along >= piece[0]) & (along <= piece[1])]
            ring = np.concatenate([world.on_road(inside, right)[:, :2], world.on_road(inside, left)[::-1, :2]])
            pixels = ((ring - low) / pixel_m - 0.5) * (1 << _SUBPIXEL)
            shade = (colour,) * 3 if isinstance(colour, int) else colour
            cv2.fillPoly(target, [np.rint(pixels).astype(np.int32)], shade, cv2.LINE_AA, _SUBPIXEL)

    whole = np.array([[along[0], along[-1]]])
    right, left = ROAD_EDGES_M
    road = np.zeros((height, width), np.uint8)
    strip(road, right, left, 255, whole)
    strip(picture, right - 3.2, left + 3.2, _PAVEMENT, whole)
    strip(picture, right - 0.15, left + 0.15, (190, 188, 182), whole)
    strip(picture, right, left, _ASPHALT, whole)
    grain = rng.standard_normal((height, width), np.float32) * np.float32(5)
    coarse = rng.standard_normal((height // 24 + 2, width // 24 + 2), np.float32) * np.float32(9)
    patches = cv2.resize(coarse, (int(width), int(height)))
    grain += patches
    for channel in range(3):
        picture[:, :, channel] = cv2.add(picture[:, :, channel], grain, dtype=cv2.CV_8U)
    dashes = np.arange(along[0], along[-1] - 3, 9.0)
    dashed = np.stack([dashes, dashes + 3.5], 1)
    strip(picture, LANE_WIDTH_M / 2 - 0.22, LANE_WIDTH_M / 2 - 0.07, (222, 190, 80), whole)
    strip(picture, LANE_WIDTH_M / 2 + 0.07, LANE_WIDTH_M / 2 + 0.22, (222, 190, 80), whole)
    strip(picture, -2.2, -2.05, (225, 225, 225), dashed)
    strip(picture, 5.45, 5.6, (225, 225, 225), dashed)
    for crossing in (24.0, 74.0):
        for bar in np.arange(right + 0.5, left - 0.6, 1.2):
            strip(picture, bar, bar + 0.6, (228, 228, 228), np.array([[crossing, crossing + 3.0]]))
    levels = [picture]
    for _ in range(3):
        rows, columns = levels[-1].shape[0] // 2 * 2, levels[-1].shape[1] // 2 * 2
        levels.append(cv2.resize(levels[-1][:rows, :columns], (columns // 2, rows // 2), interpolation=cv2.INTER_AREA))
    return Ground(pixel_m=pixel_m, levels=levels, corner=(float(low[0]), float(low[1])), road=road)


@dataclass(frozen=True, kw_only=True)
class Camera:
    """One camera of the rig at one image size; `picture` takes a photograph of the world."""

    rig: CameraRig
    width: int
    height: int

    @cached_property
    def intrinsics(self) -> Float:
        """(3, 3), pixels."""
        return self.rig.intrinsics(self.width, self.height)

    def picture(self, ego_to_world: Float, ground: Ground, boxes: Float, sizes: Float, colours: NDArray[np.uint8]) -> Image:
        """Return (H, W, 3) RGB of boxes (n, 7) with sizes (n, 3) and colours (n, 3) on the ground.

        Grey boxes are buildings and get rows of windows.
        """
        to_world = compose(ego_to_world, self.rig.sensor_to_ego)
        image = self._sky.copy()
        self._paint_ground(image, to_world, ground)
        from_world, eye = to_matrix(invert(to_world)), to_world[:3]
        turns = rotation_matrix(boxes[:, 3:])
        corners = boxes[:, None, :3] + (_CORNERS * sizes[:, None]) @ turns.swapaxes(1, 2)
        # u·z, v·z, z of every corner, and on which side of each border of the picture it lies.
        rays = (corners @ from_world[:3, :3].T + from_world[:3, 3]) @ self.intrinsics.T
        sides = rays @ self._borders[:, :3].T + self._borders[:, 3]
        close = np.flatnonzero(np.all(np.any(sides >= 0, axis=1), axis=1))
        eyes = np.einsum("nij,ni->nj", turns, eye - boxes[:, :3])
        seen = eyes @ _NORMALS.T > sizes @ np.abs(_NORMALS).T / 2
        light = 0.62 + 0.38 * np.maximum(np.einsum("fj,nij,i->nf", _NORMALS, turns, _SUN), 0)
        for number in close[_back_to_front(boxes[close], sizes[close], eye)]:
            windows = np.ptp(colours[number].astype(int)) < 60
            for face in np.flatnonzero(seen[number]):
                corner = list(_FACES[face])
                shade = colours[number] * light[number, face]
                self._paint(image, rays[number, corner], sides[number, corner], shade, shade * 0.55)
                if windows and face < 4:
                    self._paint_windows(image, rays[number, corner], float(sizes[number, 2]), shade * 0.8)
        return image

    @cached_property
    def _borders(self) -> Float:
        """(5, 4): u·z, v·z, z, 1 times a row is ≥ 0 before the lens and near the image."""
        right, bottom, margin = self.width + 8.0, self.height + 8.0, 8.0
        return np.array([[0, 0, 1, -_NEAR_M], [1, 0, margin, 0], [0, 1, margin, 0], [-1, 0, right, 0], [0, -1, bottom, 0]])

    @cached_property
    def _sky(self) -> Image:
        """The picture without ground and boxes: a blue that pales towards the horizon, grass colour below it."""
        horizon = int(np.ceil(self.intrinsics[1, 2] - 0.5))
        rows = np.clip(np.arange(self.height) / max(horizon, 1), 0, 1)[:, None]
        shades = (1 - rows) * np.array([92.0, 146, 214]) + rows * np.array([214.0, 226, 236])
        shades[horizon:] = _GRASS
        return np.broadcast_to(shades[:, None].astype(np.uint8), (self.height, self.width, 3)).copy()

    def _paint_ground(self, image: Image, to_world: Float, ground: Ground) -> None:
        from_world = to_matrix(invert(to_world))
        # Pixel of the image ← point (x, y, 1) of the ground plane z = 0.
        plane = self.intrinsics @ np.stack([from_world[:3, 0], from_world[:3, 1], from_world[:3, 3]], 1)
        focal, horizon = self.intrinsics[1, 1], self.intrinsics[1, 2]
        for near, far, level in _BANDS_M:
            top = int(np.ceil(horizon + focal * to_world[2] / far + (0.5 if far > 1e6 else 0)))
            bottom = self.height if near == 0 else int(np.ceil(horizon + focal * to_world[2] / near))
            top, bottom = max(top, 0), min(bottom, self.height)
            if top >= bottom:
                continue
            scale = ground.pixel_m * 2**level
            # OpenCV counts pixel centres from 0, we from 0.5; both pictures are shifted by half a pixel.
            to_plane = np.array([[scale, 0, ground.corner[0] + scale / 2], [0, scale, ground.corner[1] + scale / 2], [0, 0, 1]])
            shift = np.array([[1, 0, -0.5], [0, 1, -0.5 - top], [0, 0, 1]])
            image[top:bottom] = cv2.warpPerspective(
                ground.levels[level],
                shift @ plane @ to_plane,
                (self.width, bottom - top),
                flags=cv2.INTER_LINEAR,
                borderMode=cv2.BORDER_CONSTANT,
                borderValue=_GRASS,
            )

    def _paint(self, image: Image, rays: Float, sides: Float, colour: Float, edge: Float | None) -> None:
        """Fill one polygon, given as u·z, v·z, z."""
        if (sides < 0).any():
            for border in self._borders:
                rays = _cut(rays, rays @ border[:3] + border[3])
                if len(rays) < 3:
                    return
        pixels = np.rint((rays[:, :2] / rays[:, 2:3] - 0.5) * (1 << _SUBPIXEL)).astype(np.int32)
        cv2.fillConvexPoly(image, pixels, colour.tolist(), cv2.LINE_AA, _SUBPIXEL)
        if edge is not None:
            cv2.polylines(image, [pixels], True, edge.tolist(), 1, cv2.LINE_AA, _SUBPIXEL)

    def _paint_windows(self, image: Image, rays: Float, height: float, colour: Float) -> None:
        """Paint a band of glass on each storey; a face's corners run along its top, then back along its bottom."""
        left, right = rays[3] - rays[0], rays[2] - rays[1]
        for top in np.arange(1.0, height - 1.5, 3.0) / height:
            bottom = top + 1.3 / height
            band = np.stack([rays[0] + left * top, rays[1] + right * top, rays[1] + right * bottom, rays[0] + left * bottom])
            self._paint(image, band, band @ self._borders[:, :3].T + self._borders[:, 3], colour, None)


def _cut(polygon: Float, side: Float) -> Float:
    """Return the part of a convex polygon where `side` ≥ 0 (Sutherland and Hodgman, 1974)."""
    if (side >= 0).all():
        return polygon
    following, next_side = np.roll(polygon, -1, 0), np.roll(side, -1)
    kept = []
    for a, b, here, there in zip(polygon, following, side, next_side, strict=True):
        if here >= 0:
            kept.append(a)
        if (here >= 0) != (there >= 0):
            kept.append(a + (b - a) * (here / (here - there)))
    return np.array(kept) if kept else polygon[:0]


def _back_to_front(boxes: Float, sizes: Float, eye: Float) -> NDArray[np.int64]:
    """Return an order in which no upright box hides one painted after it.

    Of two boxes that stand apart, a side of one has the other wholly beyond it; whoever is on the eye's side is in front.
    """
    count = len(boxes)
    turn = rotation_matrix(boxes[:, 3:])[:, :2, :2]
    flat = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]]) / 2
    corners = boxes[:, None, :2] + np.einsum("nij,nkj->nki", turn, flat * sizes[:, None, :2])
    normals = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    half = np.abs(normals) @ sizes[:, :2].T / 2  # (side, box)
    local = np.einsum("nij,nmki->nmkj", turn, corners[None] - boxes[:, None, None, :2])
    beyond = (np.einsum("nmkj,sj->nmks", local, normals) >= half.T[:, None, None] - 1e-6).all(2)  # box n: all of m beyond side s
    local_eye = np.einsum("nij,ni->nj", turn, eye[:2] - boxes[:, :2])
    eye_beyond = local_eye @ normals.T >= half.T
    first = np.zeros((count, count), bool)  # first[n, m]: paint n before m
    first |= (beyond & eye_beyond[:, None]).any(2)
    first |= (beyond & ~eye_beyond[:, None]).any(2).T
    distance = np.linalg.norm(boxes[:, :2] - eye[:2], axis=1)
    first &= ~first.T | (distance[:, None] > distance)
    order: list[int] = []
    waiting = first.sum(0)
    open_boxes = set(range(count))
    while open_boxes:
        ready = [number for number in open_boxes if waiting[number] == 0] or list(open_boxes)
        number = max(ready, key=lambda item: (distance[item], item))
        order.append(number)
        open_boxes.remove(number)
        waiting = waiting - first[number]
    return np.array(order, np.int64)
