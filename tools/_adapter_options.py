"""Flags of adapters that take their few options without a dataclass of their own; names and defaults are theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["FolderOptions", "LeRobotOptions", "WebDatasetOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOptions:
    """How to read a described folder."""

    description: str | None = None
    """Name of the YAML description inside the folder, where it is not the usual one."""
    bad_images: Literal["fail", "reject", "keep"] = "fail"
    """As for packing: with "reject" or "keep", empty images are no reason to refuse the source; the packer lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotOptions:
    """How to read a LeRobot dataset."""

    episodes: str = "all"
    """Episodes to pack: "all", "present" (those whose files are there), or numbers and ranges such as "3,7,12:20"."""
    video: Literal["jpeg", "keep"] = "jpeg"
    """jpeg: every frame becomes a JPEG, fast to read in any order. keep: the video's own packets, small and exact, decoded from
    the key frame on."""
    jpeg_quality: int = 95
    """Quality of the JPEG frames that videos are turned into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDatasetOptions:
    """How to read foreign tars."""

    rate_hz: float = 10.0
    """Frames a second: tars carry no time, so frames are stamped by their number."""
