"""A batch as a person wants to see it: the cameras with points and boxes projected into them, beside a bird's-eye view.

Drawn with OpenCV alone, about 2400 pixels wide, from a `Scene`. If points, boxes and pictures do not lie on each other
here, the calibration or the transforms are wrong: nothing is fitted.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import cv2
import numpy as np

from ..formats import StoreError, UsageError
from ._bird_view import draw_bird_view
from ._camera_view import FAR_M, NEAR_M, draw_camera
from ._canvas import FUTURE, INK, MUTED, PAST, Image, canvas, class_colour, depth_colours, text, text_width
from .scene import Scene

__all__ = ["check_picture_name", "overview", "write_picture"]

_GAP, _MARGIN, _HEADER, _FOOTER, _BIRD_MIN = 6, 18, 54, 46, 560


def overview(scene: Scene, *, width: int = 2400) -> Image:
    """Return the picture of a scene as (H, width, 3) RGB."""
    columns, rows = _grid(len(scene.cameras))
    inner = width - 2 * _MARGIN
    cell_width, cell_height, mosaic_height, bird_width, bird_height = 0, 0, 0, inner, round(inner * 0.6)
    if columns:
        # The mosaic and a square of the same height fill the width together.
        ratio = _shape_ratio(scene)
        cell_width = int(min((inner - (columns + 1) * _GAP) / (columns + rows * ratio), (inner - _BIRD_MIN) / columns))
        cell_height = round(cell_width * ratio)
        mosaic_height = rows * cell_height + (rows - 1) * _GAP
        bird_width = inner - columns * (cell_width + _GAP) - _GAP
        bird_height = max(mosaic_height, _BIRD_MIN)
    page = canvas(_HEADER + bird_height + _FOOTER, width)
    for index, camera in enumerate(scene.cameras):
        top = _HEADER + index // columns * (cell_height + _GAP) + (bird_height - mosaic_height) // 2
        left = _MARGIN + index % columns * (cell_width + _GAP)
        page[top : top + cell_height, left : left + cell_width] = draw_camera(scene, camera, cell_height, cell_width)
    left = width - _MARGIN - bird_width
    page[_HEADER : _HEADER + bird_height, left : left + bird_width] = draw_bird_view(scene, bird_height, bird_width)
    _header(page, scene)
    _footer(page, scene)
    return page


def _grid(count: int) -> tuple[int, int]:
    """Return columns and rows of the mosaic: one row of up to three cameras, then as square as it goes."""
    columns = count if count <= 3 else 2 if count == 4 else 3 if count <= 9 else 4
    return columns, -(-count // columns) if columns else 0


def write_picture(image: Image, path: Path) -> None:
    """Write RGB as PNG (or JPEG, by the name's ending); the file appears whole or not at all."""
    check_picture_name(path)
    ending = path.suffix.lower() or ".png"
    done, data = cv2.imencode(ending, image[..., ::-1], [] if ending == ".png" else [cv2.IMWRITE_JPEG_QUALITY, 88])
    if not done:
        raise StoreError(f"cannot encode the picture {str(path)!r}: OpenCV refused {image.shape} pixels; please report this")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data.tobytes())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check_picture_name(path: Path) -> None:
    """Refuse a name whose ending is of no kind of picture written here."""
    if path.suffix.lower() not in ("", ".png", ".jpg", ".jpeg"):
        raise UsageError(f"cannot write a picture {str(path)!r}: its name ends in {path.suffix!r}; use .png or .jpg")


def _shape_ratio(scene: Scene) -> float:
    """Return height ÷ width of most cameras, within what a mosaic can bear."""
    shapes = Counter(camera.image.shape[:2] for camera in scene.cameras)
    height, width = shapes.most_common(1)[0][0]
    return float(np.clip(height / width, 0.4, 1.0))


def _header(page: Image, scene: Scene) -> None:
    end = text(page, scene.title, (_MARGIN, 35), 23, weight=650)
    text(page, f"{scene.stamp_ns / 1e9:.6f} s", (end + 22, 35), 16, colour=MUTED)
    facts = [f"{len(scene.cameras)} cameras", f"{len(scene.points):,} points", f"{len(scene.boxes)} boxes"]
    x = page.shape[1] - _MARGIN
    for fact in reversed(facts):
        text(page, fact, (x, 35), 17, colour=INK, align="right")
        x -= text_width(fact, 17) + 24


def _footer(page: Image, scene: Scene) -> None:
    y = page.shape[0] - 17
    x: float = _MARGIN
    bar = depth_colours(np.geomspace(NEAR_M, FAR_M, 220), NEAR_M, FAR_M)
    x = text(page, f"{NEAR_M:.0f} m", (x, y), 14, colour=MUTED) + 8
    page[y - 11 : y + 1, round(x) : round(x) + len(bar)] = bar
    x = text(page, f"{FAR_M:.0f} m", (x + len(bar) + 8, y), 14, colour=MUTED) + 30
    for label, colour in (("past 2 s", PAST), ("future 6 s", FUTURE)):
        if len(scene.path.seconds) > 1:
            page[y - 7 : y - 3, round(x) : round(x) + 22] = colour
            x = text(page, label, (x + 29, y), 14, colour=MUTED) + 22
    x += 8
    for name, count in Counter(scene.boxes.names).most_common():
        label = f"{name} {count}"
        if x + text_width(label, 14) + 24 > page.shape[1] - _MARGIN:
            text(page, "…", (x, y), 14, colour=MUTED)
            break
        page[y - 11 : y + 1, round(x) : round(x) + 12] = class_colour(name)
        x = text(page, label, (x + 18, y), 14) + 20
