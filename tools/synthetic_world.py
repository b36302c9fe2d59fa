"""A small made-up town for synthetic drives: a curved road, things on it, and the car with its sensors.

Everything is a pure function of seed and time: `World.poses` and `World.ego` say where a box or the car is at any moment, so
cameras, LiDAR and annotations that ask at their own stamps agree with each other.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..formats.pose import from_matrix

__all__ = ["CAMERAS", "LANE_WIDTH_M", "LIDAR_TO_EGO", "ROAD_EDGES_M", "CameraRig", "Thing", "World", "make_world"]

Float = NDArray[np.float64]

LANE_WIDTH_M: Final = 3.5
ROAD_EDGES_M: Final = (-4.8, 8.3)
"""Right and left edge of the road, measured to the left of the car's own lane's middle."""
_SPEED: Final = 9.0
_STEP_M: Final = 0.25
_BEFORE_M, _AFTER_M = 70.0, 110.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraRig:
    """One camera: where it sits on the car, where it looks, and how it sees at 1600 × 900."""

    name: str
    position: tuple[float, float, float]
    """Metres, ego frame."""
    yaw_deg: float
    """0 looks ahead, 90 to the left."""
    focal_px: float
    centre_px: tuple[float, float]
    before_us: int
    """How long before the LiDAR stamp its key frame is taken, as the spinning beam passes it."""

    @property
    def sensor_to_ego(self) -> Float:
        """(7,) pose: x right, y down, z forward in the camera."""
        yaw = np.deg2rad(self.yaw_deg)
        forward = np.array([np.cos(yaw), np.sin(yaw), 0.0])
        matrix = np.eye(4)
        matrix[:3, :3] = np.stack([[forward[1], -forward[0], 0.0], [0.0, 0.0, -1.0], forward], 1)
        matrix[:3, 3] = self.position
        return from_matrix(matrix)

    def intrinsics(self, width: int, height: int) -> Float:
        """(3, 3) for images of this size; the centre of the top-left pixel is (0.5, 0.5)."""
        x, y = width / 1600, height / 900
        return np.array(
            [[self.focal_px * x, 0, self.centre_px[0] * x], [0, self.focal_px * y, self.centre_px[1] * y], [0, 0, 1.0]]
        )


CAMERAS: Final = (
    CameraRig(name="CAM_FRONT", position=(1.70, 0.02, 1.51), yaw_deg=0, focal_px=1266, centre_px=(816, 491), before_us=35491),
    CameraRig(
        name="CAM_FRONT_RIGHT", position=(1.55, -0.49, 1.50), yaw_deg=-56, focal_px=1261, centre_px=(808, 495), before_us=27612
    ),
    CameraRig(
        name="CAM_BACK_RIGHT", position=(1.01, -0.48, 1.56), yaw_deg=-111, focal_px=1259, centre_px=(807, 501), before_us=20058
    ),
    CameraRig(name="CAM_BACK", position=(0.03, 0.0, 1.57), yaw_deg=180, focal_px=809, centre_px=(829, 482), before_us=10426),
    CameraRig(name="CAM_BACK_LEFT", position=(1.04, 0.48, 1.59), yaw_deg=109, focal_px=1257, centre_px=(792, 493), before_us=528),
    CameraRig(
        name="CAM_FRONT_LEFT", position=(1.52, 0.49, 1.51), yaw_deg=55, focal_px=1273, centre_px=(826, 480), before_us=43107
    ),
)

_QUARTER = np.sqrt(0.5)
LIDAR_TO_EGO: Final = (0.94, 0.0, 1.84, _QUARTER, 0.0, 0.0, -_QUARTER)
"""Pose of the LiDAR: its x looks to the car's right, its y ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """An upright box on the ground: a road user, or a building when it has no category."""

    name: str
    category: str
    attribute: str
    size: tuple[float, float, float]
    """Length, width, height in metres."""
    colour: tuple[int, int, int]
    """RGB of its brightest face."""
    along_m: float
    """Where on the road its centre is at time 0."""
    left_m: float
    """How far to the left of the car's lane."""
    speed: float = 0.0
    """m/s along the road; negative against it."""
    turned: float = 0.0
    """Radians between the road and its front."""


@dataclass(frozen=True, kw_only=True)
class World:
    """One drive's road and what is on it."""

    things: Sequence[Thing]
    origin: tuple[float, float]
    """World coordinates of the road's start, metres."""
    heading: float
    bend: float
    """Greatest curvature, 1/m."""
    wave_m: float
    """Length over which the road bends left and right again."""
    length_m: float

    @cached_property
    def road(self) -> Float:
        """(n, 4): distance, x, y, heading every 0.25 m."""
        distance = np.arange(-_BEFORE_M, self.length_m + _AFTER_M, _STEP_M)
        heading = self.heading + self.bend * self.wave_m / (2 * np.pi) * (1 - np.cos(2 * np.pi * distance / self.wave_m))
        x = np.cumsum(np.cos(heading)) * _STEP_M
        y = np.cumsum(np.sin(heading)) * _STEP_M
        start = np.searchsorted(distance, 0.0)
        return np.stack([distance, x - x[start] + self.origin[0], y - y[start] + self.origin[1], heading], 1)

    def on_road(self, along: NDArray[np.float64] | float, left: NDArray[np.float64] | float = 0.0) -> Float:
        """Return (…, 3) x, y, heading of a place beside the road's middle."""
        at, x, y, heading = self.road.T
        here = np.interp(along, at, heading)
        return np.stack([np.interp(along, at, x) - left * np.sin(here), np.interp(along, at, y) + left * np.cos(here), here], -1)

    def ego(self, seconds: float) -> Float:
        """Return the car's (7,) pose: rear axle on the ground, in its lane, slowing down and speeding up a little."""
        along = _SPEED * seconds + 1.5 * np.sin(seconds * 0.7)
        return _upright(self.on_road(along), np.zeros(()))

    def poses(self, seconds: float) -> Float:
        """Return (things, 7) poses of all boxes' centres."""
        along, left, speed, turned, height = self._places.T
        places = self.on_road(along + speed * seconds, left)
        places[:, 2] += turned + np.where(speed < 0, np.pi, 0.0)
        return _upright(places, height / 2)

    @cached_property
    def _places(self) -> Float:
        return np.array([(item.along_m, item.left_m, item.speed, item.turned, item.size[2]) for item in self.things])


def make_world(seed: int, drive: int, seconds: float) -> World:
    """Return the world of one drive."""
    rng = np.random.default_rng([seed, drive, 1])
    length = _SPEED * seconds + 2.0
    return World(
        things=_things(rng, length),
        origin=(600.0 + 400.0 * drive, 1600.0 - 250.0 * drive),
        heading=float(rng.uniform(-np.pi, np.pi)),
        bend=float(rng.choice([-1, 1]) * rng.uniform(0.008, 0.014)),
        wave_m=float(rng.uniform(150, 220)),
        length_m=length,
    )


def _upright(places: Float, z: Float) -> Float:
    """Return (…, 7) poses of (…, 3) x, y, heading."""
    half = places[..., 2] / 2
    return np.stack([places[..., 0], places[..., 1], z, np.cos(half), 0 * half, 0 * half, np.sin(half)], -1)


def _things(rng: np.random.Generator, length: float) -> list[Thing]:
    made: list[Thing] = []

    def add(category: str, attribute: str, size: tuple[float, float, float], along: float, left: float, **more: float) -> None:
        # The golden ratio spreads hues: neighbours in the list, often neighbours on the road, look most different.
        hue = (0.11 + len(made) * 0.618034) % 1.0
        rgb = colorsys.hsv_to_rgb(hue, 0.85 if category else 0.12, 0.95 if category else 0.8)
        name = f"{category or 'building'}-{len(made)}"
        red, green, blue = (round(255 * part) for part in rgb)
        made.append(
            Thing(
                name=name,
                category=category,
                attribute=attribute,
                size=size,
                colour=(red, green, blue),
                along_m=along,
                left_m=left,
                speed=more.get("speed", 0.0),
                turned=more.get("turned", 0.0),
            )
        )

    def car() -> tuple[float, float, float]:
        return float(rng.uniform(4.1, 4.9)), float(rng.uniform(1.75, 1.95)), float(rng.uniform(1.45, 1.75))

    start, end = -45.0, length + 60.0
    add("vehicle.car", "vehicle.moving", car(), 19.0, 0.1, speed=_SPEED)
    add("vehicle.truck", "vehicle.moving", (7.5, 2.4, 3.1), -17.0, 0.0, speed=_SPEED)
    add("vehicle.car", "vehicle.moving", car(), 38.0, -0.1, speed=_SPEED * 1.05)
    for number, along in enumerate(np.arange(22.0, end + _SPEED * length / 8, 27.0)):
        bus = number % 4 == 2
        size = (10.5, 2.6, 3.2) if bus else car()
        add("vehicle.bus.rigid" if bus else "vehicle.car", "vehicle.moving", size, float(along), LANE_WIDTH_M, speed=-7.0)
    for left in (-3.45, 6.95):
        along = start + float(rng.uniform(0, 6))
        while along < end:
            turned = float(rng.normal(0, 0.02)) + (np.pi if left > 0 else 0.0)
            add("vehicle.car", "vehicle.parked", car(), along, left, turned=turned)
            along += float(rng.uniform(7.5, 22))
    for left in (-6.3, 9.9):
        along = start + float(rng.uniform(0, 8))
        while along < end:
            moving = bool(rng.random() < 0.7)
            size = (float(rng.uniform(0.5, 0.8)), float(rng.uniform(0.5, 0.8)), float(rng.uniform(1.55, 1.9)))
            place, speed = (
                left + float(rng.uniform(-0.7, 0.7)),
                float(rng.choice([-1, 1]) * rng.uniform(0.8, 1.6)) if moving else 0.0,
            )
            add(
                "human.pedestrian.adult",
                "pedestrian.moving" if moving else "pedestrian.standing",
                size,
                along,
                place,
                speed=speed,
            )
            along += float(rng.uniform(9, 20))
    for along in np.arange(8.0, end, 31.0):
        add("movable_object.trafficcone", "", (0.4, 0.4, 0.8), float(along), -5.1)
    for left, side in ((-11.5, -1), (15.0, 1)):
        along = start
        while along < end + 20:
            size = (float(rng.uniform(9, 20)), float(rng.uniform(8, 12)), float(rng.uniform(5, 14)))
            add("", "", size, along + size[0] / 2, left + side * size[1] / 2)
            along += size[0] + float(rng.uniform(2.5, 9))
    return made
