"""The scene from above, forward up: points, boxes with headings and speeds, the ego with its past and future path, a scale."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ._canvas import (
    FUTURE,
    INK,
    MUTED,
    PANEL,
    PAST,
    Image,
    canvas,
    class_colour,
    dot,
    fill,
    line,
    plate,
    polyline,
    text,
    text_width,
)
from .scene import Scene

_SUPER = 2  # drawn twice as large and averaged down: one-pixel marks stay crisp without shimmering


def draw_bird_view(scene: Scene, height: int, width: int) -> Image:
    """Return (height, width, 3) RGB."""
    view = _View(scene, height * _SUPER, width * _SUPER)
    view.grid()
    view.points(scene)
    view.path(scene)
    view.boxes(scene)
    view.ego()
    page = np.ascontiguousarray(cv2.resize(view.image, (width, height), interpolation=cv2.INTER_AREA))
    view.labels(page, scene)
    return page


class _View:
    def __init__(self, scene: Scene, height: int, width: int) -> None:
        self.image = canvas(height, width, PANEL)
        self.reach = _reach(scene)
        self.scale = min(height, width) / 2 / self.reach
        self.centre = np.array([width / 2, height / 2])

    def at(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map (…, 2+) ego metres (x forward, y left) to pixels."""
        return np.asarray(self.centre + np.stack([-points[..., 1], -points[..., 0]], -1) * self.scale)

    def grid(self) -> None:
        """Rings every 10 m (20 m when far out), a cross through the ego."""
        height, width = self.image.shape[:2]
        step = 10 if self.reach <= 60 else 20
        for radius in range(step, int(np.hypot(height, width) / 2 / self.scale) + step, step):
            cv2.circle(
                self.image, tuple(np.round(self.centre).astype(int)), round(radius * self.scale), (38, 44, 54), 2, cv2.LINE_AA
            )
        line(self.image, np.array([0, self.centre[1]]), np.array([width, self.centre[1]]), (32, 37, 46), 2)
        line(self.image, np.array([self.centre[0], 0]), np.array([self.centre[0], height]), (32, 37, 46), 2)

    def points(self, scene: Scene) -> None:
        """Ground dim, tall things bright; points inside a box in the colour of its class."""
        inside = scene.boxes.inside(scene.points)
        height = np.clip((scene.points[:, 2] + 0.3) / 3.0, 0, 1)[:, None]
        colours = np.array([84, 96, 114]) + height * np.array([110, 118, 124])
        palette = np.array([class_colour(name) for name in scene.boxes.names] or [(0, 0, 0)], np.float64)
        member = inside >= 0
        colours[member] = 0.75 * palette[inside[member]] + 0.25 * 255
        order = np.lexsort((scene.points[:, 2], member))
        at = np.round(self.at(scene.points[order])).astype(int)
        rows, columns = self.image.shape[:2]
        shades = colours[order].astype(np.uint8)
        for dy in (0, 1):
            for dx in (0, 1):
                x, y = at[:, 0] + dx, at[:, 1] + dy
                seen = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
                self.image[y[seen], x[seen]] = shades[seen]

    def boxes(self, scene: Scene) -> None:
        """Footprints with a mark at the front and an arrow one second long."""
        corners = scene.boxes.corners()
        for index, name in enumerate(scene.boxes.names):
            colour = class_colour(name)
            outline = self.at(corners[index][[0, 1, 3, 2]])
            fill(self.image, outline, colour, 0.16)
            polyline(self.image, outline, colour, 3, closed=True)
            forward = scene.boxes.rotation[index][:, 0] * scene.boxes.size[index, 0] / 2
            centre = scene.boxes.centre[index]
            line(self.image, self.at(centre), self.at(centre + forward), colour, 3)
            velocity = scene.boxes.velocity[index]
            if np.isfinite(velocity[:2]).all() and np.hypot(*velocity[:2]) > 0.5:
                start, end = self.at(centre + forward), self.at(centre + forward + velocity)
                tip = 14 / max(float(np.linalg.norm(end - start)), 1.0)
                cv2.arrowedLine(self.image, _int(start), _int(end), colour, 2, cv2.LINE_AA, 0, min(tip, 0.5))

    def path(self, scene: Scene) -> None:
        """Past and future of the ego, a dot each second."""
        seconds, position = scene.path.seconds, scene.path.position
        for part, colour in ((seconds <= 0, PAST), (seconds >= 0, FUTURE)):
            polyline(self.image, self.at(position[part]), colour, 5)
            whole = part & (np.abs(seconds - np.round(seconds)) < 1e-6) & (seconds != 0)
            for point in self.at(position[whole]):
                dot(self.image, point, 6, colour)

    def ego(self) -> None:
        """The car, 4.6 × 1.9 m with the rear axle at the origin, pointing up."""
        shape = np.array([[3.6, 0.0], [2.9, 0.95], [-1.0, 0.95], [-1.0, -0.95], [2.9, -0.95]])
        fill(self.image, self.at(shape), INK, 0.95)

    def labels(self, page: Image, scene: Scene) -> None:
        """Ring distances and the ends of the path, written at full size after averaging."""
        height, width = page.shape[:2]
        step = 10 if self.reach <= 60 else 20
        middle, diagonal = self.centre / _SUPER, np.array([-0.5, 0.866])  # where fewest roads are: behind, to the left
        for radius in range(step, int(self.reach) + 1, step):
            label = f"{radius} m"
            x, y = middle + diagonal * radius * self.scale / _SUPER
            half = text_width(label, 12) / 2
            if half + 4 < x < width - half and y < height - 10:
                plate(page, round(x - half) - 3, round(y) - 9, round(2 * half) + 6, 17, opacity=0.75)
                text(page, label, (x, y + 4), 12, colour=MUTED, align="centre")
        note = "bird's-eye view, forward is up"
        plate(page, 0, 0, text_width(note, 13) + 22, 27)
        text(page, note, (11, 19), 13, colour=MUTED)
        seconds, position = scene.path.seconds, scene.path.position
        for index, colour in ((0, PAST), (-1, FUTURE)):
            if len(seconds) and abs(seconds[index]) > 0.1:
                at = self.at(position[index]) / _SUPER
                if (at > 8).all() and (at < (width - 60, height - 8)).all():
                    text(page, f"{seconds[index]:+.3g} s", (at[0] + 8, at[1] + 5), 13, colour=colour, weight=600)


def _reach(scene: Scene) -> float:
    """Return metres from the centre to the nearer border: most boxes and the path, 55 at most so that cars stay cars."""
    wanted = [20.0]
    if len(scene.boxes):
        wanted.append(float(np.quantile(np.abs(scene.boxes.centre[:, :2]).max(1), 0.8)) + 3)
    if len(scene.path.position):
        wanted.append(float(np.abs(scene.path.position[:, :2]).max()) + 6)
    return float(np.clip(np.ceil(max(wanted) / 5) * 5, 20, 55))


def _int(position: NDArray[np.float64]) -> tuple[int, int]:
    return round(float(position[0])), round(float(position[1]))
