"""Encoded payloads → training tensors: decoders, geometry-consistent augmentation, device transfer."""

from .image_augment import RandomResizedCrop, ResizeCropFlip

__all__ = ["RandomResizedCrop", "ResizeCropFlip"]
