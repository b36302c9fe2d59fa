"""Encoded payloads → training tensors: decoders, geometry-consistent augmentation, device transfer."""

from .bev import FlipBev, RotateBev, ScaleBev, TranslateBev
from .choose import Capability, capabilities, choose_decoder
from .colour import GridMask, Normalise, PhotometricDistortion
from .geometry import boxes_to_ego, points_to_image
from .image_augment import RandomResizedCrop, ResizeCropFlip
from .point_ops import DropPoints, FilterRange, ShufflePoints
from .policy import RECIPES, Policy, read_policy

__all__ = [
    "RECIPES",
    "Capability",
    "DropPoints",
    "FilterRange",
    "FlipBev",
    "GridMask",
    "Normalise",
    "PhotometricDistortion",
    "Policy",
    "RandomResizedCrop",
    "ResizeCropFlip",
    "RotateBev",
    "ScaleBev",
    "ShufflePoints",
    "TranslateBev",
    "boxes_to_ego",
    "capabilities",
    "choose_decoder",
    "points_to_image",
    "read_policy",
]
