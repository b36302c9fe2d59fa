"""Drawing with OpenCV as this project's pictures need it: RGB canvases, sub-pixel lines, plates, readable text, class colours."""

from __future__ import annotations

from typing import Any, Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from .console import plain

Image = NDArray[np.uint8]
Colour = tuple[int, int, int]

INK: Final[Colour] = (232, 236, 241)
MUTED: Final[Colour] = (139, 148, 160)
PAGE: Final[Colour] = (13, 16, 21)
PANEL: Final[Colour] = (20, 24, 31)
PAST: Final[Colour] = (255, 176, 59)
FUTURE: Final[Colour] = (64, 224, 208)

# First match wins; anything else takes a colour of its own from the spare ones, by its name.
_CLASS_COLOURS: Final[tuple[tuple[str, Colour], ...]] = (
    ("pedestrian", (255, 92, 138)),
    ("person", (255, 92, 138)),
    ("bicycle", (255, 214, 64)),
    ("motorcycle", (255, 140, 66)),
    ("cyclist", (255, 214, 64)),
    ("construction", (214, 156, 78)),
    ("truck", (122, 134, 255)),
    ("bus", (178, 116, 255)),
    ("trailer", (110, 178, 255)),
    ("emergency", (255, 70, 70)),
    ("car", (72, 199, 255)),
    ("vehicle", (72, 199, 255)),
    ("barrier", (155, 170, 130)),
    ("cone", (255, 120, 40)),
    ("animal", (190, 230, 120)),
)
_SPARE_COLOURS: Final[tuple[Colour, ...]] = ((120, 220, 140), (230, 160, 220), (200, 200, 110), (130, 210, 220), (220, 180, 150))
_SHIFT: Final = 4  # OpenCV's fixed-point fraction bits: positions to 1/16 pixel

_FONT: Any = cv2.FontFace("sans") if hasattr(cv2, "FontFace") else None  # Any: OpenCV 5 has real fonts, 4 only stroke fonts


def canvas(height: int, width: int, colour: Colour = PAGE) -> Image:
    """Return a filled RGB canvas."""
    return np.full((height, width, 3), colour, np.uint8)


def class_colour(name: str) -> Colour:
    """Return the colour that stands for a class, the same in every picture."""
    lower = name.lower()
    for word, colour in _CLASS_COLOURS:
        if word in lower:
            return colour
    return _SPARE_COLOURS[sum(name.encode()) % len(_SPARE_COLOURS)]


def depth_colours(depth: NDArray[np.float64], nearest: float, farthest: float) -> NDArray[np.uint8]:
    """Return (N, 3) RGB, near red to far blue, on a logarithmic scale."""
    scale = np.log(np.clip(depth, nearest, farthest) / nearest) / np.log(farthest / nearest)
    if not len(depth):
        return np.zeros((0, 3), np.uint8)  # OpenCV gives None for no colours
    level = (255 - np.round(255 * (0.04 + 0.88 * scale))).astype(np.uint8)
    return np.asarray(cv2.applyColorMap(level.reshape(-1, 1), cv2.COLORMAP_TURBO)[:, 0, ::-1], np.uint8)


def line(image: Image, start: NDArray[np.float64], end: NDArray[np.float64], colour: Colour, thickness: int = 1) -> None:
    """Draw a smooth line between two (x, y) positions in pixels."""
    cv2.line(image, _fixed(start), _fixed(end), colour, thickness, cv2.LINE_AA, _SHIFT)


def dot(image: Image, centre: NDArray[np.float64], radius: float, colour: Colour) -> None:
    """Draw a smooth filled circle."""
    cv2.circle(image, _fixed(centre), max(1, round(radius * 2**_SHIFT)), colour, -1, cv2.LINE_AA, _SHIFT)


def polyline(image: Image, points: NDArray[np.float64], colour: Colour, thickness: int = 1, *, closed: bool = False) -> None:
    """Draw a smooth line through (N, 2) positions."""
    if len(points) > 1:
        cv2.polylines(image, [_fixed_all(points)], closed, colour, thickness, cv2.LINE_AA, _SHIFT)


def fill(image: Image, polygon: NDArray[np.float64], colour: Colour, opacity: float) -> None:
    """Lay a convex polygon over the image; only its own rectangle is blended, so many small ones stay cheap."""
    height, width = image.shape[:2]
    left, top = np.maximum(np.floor(polygon.min(0)).astype(int) - 1, 0)
    right, bottom = np.minimum(np.ceil(polygon.max(0)).astype(int) + 2, (width, height))
    if left >= right or top >= bottom:
        return
    patch = image[top:bottom, left:right]
    over = patch.copy()
    cv2.fillConvexPoly(over, _fixed_all(polygon - (left, top)), colour, cv2.LINE_AA, _SHIFT)
    cv2.addWeighted(over, opacity, patch, 1 - opacity, 0, dst=patch)


def text_width(string: str, size: int, weight: int = 400) -> int:
    """Return the width in pixels of `string`."""
    if _FONT is not None:
        return int(cv2.getTextSize((1, 1), string, (0, 0), _FONT, size, weight)[2])
    return int(cv2.getTextSize(string, cv2.FONT_HERSHEY_SIMPLEX, size / 29, 1)[0][0])


def text(
    image: Image,
    string: str,
    at: tuple[float, float],
    size: int,
    *,
    colour: Colour = INK,
    weight: int = 400,
    align: Literal["left", "centre", "right"] = "left",
) -> float:
    """Write one line with its baseline at `at`, escaped, and return the x where it ends."""
    string = plain(string)
    width = text_width(string, size, weight)
    x = at[0] - {"left": 0.0, "centre": width / 2, "right": float(width)}[align]
    origin = (round(x), round(at[1]))
    if _FONT is not None:
        cv2.putText(image, string, origin, colour, _FONT, size, weight)
    else:
        thickness = 2 if weight > 500 and size > 18 else 1
        cv2.putText(image, string, origin, cv2.FONT_HERSHEY_SIMPLEX, size / 29, colour, thickness, cv2.LINE_AA)
    return x + width


def plate(image: Image, left: int, top: int, width: int, height: int, *, opacity: float = 0.62) -> None:
    """Darken a rectangle so that text on it reads."""
    patch = image[max(top, 0) : top + height, max(left, 0) : left + width]
    patch[:] = (patch * (1 - opacity) + np.array(PAGE) * opacity).astype(np.uint8)


def _fixed(position: NDArray[np.float64]) -> tuple[int, int]:
    x, y = np.clip(np.asarray(position, np.float64), -1e6, 1e6) * 2**_SHIFT
    return round(float(x)), round(float(y))


def _fixed_all(points: NDArray[np.float64]) -> NDArray[np.int32]:
    return np.round(np.clip(points, -1e6, 1e6) * 2**_SHIFT).astype(np.int32).reshape(-1, 1, 2)
