"""nuScenes' annotations as columns sorted by sample, and the boxes of one sample as a table payload.

Sizes become length, width, height (the source has width, length, height); velocities follow the devkit's definition.
All else stays as the source writes it, in the world frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .nuscenes_tables import LINKS, POSE, TableField, TableReader, TokenIndex, read_poses

__all__ = ["Annotations", "load_annotations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """All boxes, sorted by sample; `starts[s] : starts[s + 1]` are those of sample s."""

    starts: NDArray[np.int64]
    centre: NDArray[np.float64]
    size: NDArray[np.float64]
    """(n, 3) length, width, height; the table has width, length, height."""
    rotation: NDArray[np.float64]
    velocity: NDArray[np.float64]
    category: NDArray[np.int32]
    track: NDArray[np.bytes_]
    attributes: NDArray[np.int32]
    attribute_names: Sequence[str]
    visibility: NDArray[np.int8]
    lidar_points: NDArray[np.int32]
    radar_points: NDArray[np.int32]


def load_annotations(
    reader: TableReader,
    samples: TokenIndex,
    sample: dict[str, Any],
    categories: TokenIndex,
) -> Annotations | None:
    category_token = TableField(name="category_token", value="token")
    ends = [TableField(name=f"{which}_annotation_token", value="token") for which in ("first", "last")]
    instance, instances = reader.read("instance", category_token, *ends)
    attribute, attributes = reader.read("attribute", TableField(name="name", value="text"))
    visibility, visibilities = reader.read("visibility")
    box, boxes = reader.read(
        "sample_annotation",
        TableField(name="sample_token", value="token"),
        TableField(name="instance_token", value="token"),
        TableField(name="visibility_token", value="token", default="", optional=True),
        TableField(name="attribute_tokens", value="tokens"),
        TableField(name="size", value="vector", width=3),
        *POSE,
        *LINKS,
        TableField(name="num_lidar_pts", value="integer", default=-1, optional=True),
        TableField(name="num_radar_pts", value="integer", default=-1, optional=True),
    )
    table = "sample_annotation"
    to_category = reader.follow("instance", instance, "category_token", categories, "category.json")
    for end in ends:
        reader.follow("instance", instance, end.name, boxes, "sample_annotation.json")
    to_sample = reader.follow(table, box, "sample_token", samples, "sample.json")
    to_instance = reader.follow(table, box, "instance_token", instances, "instance.json")
    seen = reader.follow(table, box, "visibility_token", visibilities, "visibility.json", empty=True)
    before = reader.follow(table, box, "prev", boxes, "sample_annotation.json", empty=True)
    after = reader.follow(table, box, "next", boxes, "sample_annotation.json", empty=True)
    read_poses(reader, table, box)
    for row in np.flatnonzero((box["size"] <= 0).any(1)):
        reason = f"row {row} ({box['token'][row].decode()!r}): 'size' is {box['size'][row].tolist()}, expected lengths above 0 m"
        reader.findings.add("json", reader.name(table), reason)
    named, names = _attribute_names(reader, box, attribute, attributes)
    if len(box["token"]) == 0:
        return None
    time = sample["timestamp"][to_sample] if len(sample["timestamp"]) else np.zeros(len(to_sample), np.int64)
    order = np.argsort(to_sample, kind="stable")
    order = order[((to_sample >= 0) & (to_instance >= 0))[order]]
    levels = np.append(_visibility_levels(visibility["token"]), 0)
    category = np.append(to_category, -1)[to_instance]
    return Annotations(
        starts=np.searchsorted(to_sample[order], np.arange(len(sample["token"]) + 1)),
        centre=box["translation"][order],
        size=box["size"][order][:, [1, 0, 2]],
        rotation=box["rotation"][order],
        velocity=_velocity(box["translation"], time, before, after)[order],
        category=category[order].astype(np.int32),
        track=instance["token"][to_instance[order]] if len(instance["token"]) else np.zeros(0, "S1"),
        attributes=named[order],
        attribute_names=names,
        visibility=levels[seen][order].astype(np.int8),
        lidar_points=np.clip(box["num_lidar_pts"][order], -1, 1 << 30).astype(np.int32),
        radar_points=np.clip(box["num_radar_pts"][order], -1, 1 << 30).astype(np.int32),
    )


def _attribute_names(
    reader: TableReader, box: dict[str, Any], attribute: dict[str, Any], attributes: TokenIndex
) -> tuple[NDArray[np.int32], list[str]]:
    """Return for each box the number of its attribute text (names joined by ";") and the texts."""
    texts: dict[tuple[str, ...], int] = {}
    numbers = np.array([texts.setdefault(tokens, len(texts)) for tokens in box["attribute_tokens"]], np.int32)
    names = []
    for tokens in texts:
        column = {
            "token": np.array([b"attribute of a box"] * len(tokens)),
            "attribute_tokens": np.array([t.encode() for t in tokens], "S"),
        }
        rows = reader.follow("sample_annotation", column, "attribute_tokens", attributes, "attribute.json") if tokens else ()
        names.append(";".join(attribute["name"][row].decode() for row in rows if row >= 0))
    return numbers, names


def _visibility_levels(tokens: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """Return 1…4 for nuScenes' visibility tokens "1"…"4" (0–40, 40–60, 60–80, 80–100 %); other tokens by their row."""
    return np.array([int(t) if t.isdigit() and int(t) < 128 else row + 1 for row, t in enumerate(tokens)], np.int64)


def _velocity(
    centre: NDArray[np.float64], stamp: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return m/s in the world frame from the neighbouring annotations, as the devkit's `box_velocity` defines it.

    Central difference where both neighbours exist, one-sided at a track's ends; NaN for a single annotation or where
    the annotations lie more than 1.5 s (central: 3 s) apart.
    """
    here = np.arange(len(centre))
    first, last = np.where(before < 0, here, before), np.where(after < 0, here, after)
    seconds = (stamp[last] - stamp[first]) / 1e9
    allowed = np.where((before >= 0) & (after >= 0), 3.0, 1.5)
    known = (first != last) & (seconds > 0) & (seconds <= allowed)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(known[:, None], (centre[last] - centre[first]) / seconds[:, None], np.nan)
