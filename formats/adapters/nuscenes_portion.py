"""The part of linked nuScenes tables that a few scenes need: small enough to be sent to a pack worker.

Opening a source again costs a worker the whole preflight: 13 s of a core and 57 MB held for 306,000 sample_data rows, and
trainval has 2.6 million. What one scene of 3,000 rows needs is 0.6 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .nuscenes_boxes import Annotations
from .nuscenes_check import Chosen
from .nuscenes_links import Tables

__all__ = ["cut_tables"]


def cut_tables(tables: Tables, chosen: Chosen, scenes: Sequence[int]) -> tuple[Tables, Chosen]:
    """Return both with nothing but `scenes` (ascending), which are numbered anew in that order."""
    width = len(tables.channels)
    rows = _ranges(tables.row_starts[np.array(scenes) * width], tables.row_starts[(np.array(scenes) + 1) * width])
    samples = np.flatnonzero(np.isin(tables.sample_scene, scenes))
    new_sample = np.full(len(tables.sample_scene), -1, np.int32)
    new_sample[samples] = np.arange(len(samples))
    sample_scene = np.searchsorted(scenes, tables.sample_scene[samples]).astype(np.int32)
    row_sample = new_sample[tables.row_sample[rows]]
    calibrations, row_calibration = np.unique(tables.row_calibration[rows], return_inverse=True)
    poses, row_pose = np.unique(tables.row_pose[rows], return_inverse=True)
    key = sample_scene[row_sample].astype(np.int64) * width + tables.row_channel[rows]
    new_row = {int(row): number for number, row in enumerate(rows)} if tables.labels else {}
    cut = replace(
        tables,
        scenes=[tables.scenes[scene] for scene in scenes],
        sample_stamp=tables.sample_stamp[samples],
        sample_scene=sample_scene,
        sample_token=tables.sample_token[samples],
        row_starts=np.searchsorted(key, np.arange(len(scenes) * width + 1)),
        row_sample=row_sample,
        row_channel=tables.row_channel[rows],
        row_calibration=row_calibration.astype(np.int32),
        row_pose=row_pose.astype(np.int32),
        row_stamp=tables.row_stamp[rows],
        row_key=tables.row_key[rows],
        row_width=tables.row_width[rows],
        row_height=tables.row_height[rows],
        row_file=tables.row_file[rows],
        sensor_to_ego=tables.sensor_to_ego[calibrations],
        intrinsics=tables.intrinsics[calibrations],
        ego_to_world=tables.ego_to_world[poses],
        annotations=None if tables.annotations is None else _cut_annotations(tables.annotations, samples),
        labels=[replace(label, row=new_row[label.row]) for label in tables.labels if label.row in new_row],
    )
    return cut, replace(
        chosen,
        scenes=[number for number, scene in enumerate(scenes) if scene in set(chosen.scenes)],
        sizes=chosen.sizes[rows],
        label_files={new_row[row]: name for row, name in chosen.label_files.items() if row in new_row},
    )


def _cut_annotations(boxes: Annotations, samples: NDArray[np.int64]) -> Annotations:
    first, last = boxes.starts[samples], boxes.starts[samples + 1]
    rows = _ranges(first, last)
    return replace(
        boxes,
        starts=np.concatenate([[0], np.cumsum(last - first)]),
        centre=boxes.centre[rows],
        size=boxes.size[rows],
        rotation=boxes.rotation[rows],
        velocity=boxes.velocity[rows],
        category=boxes.category[rows],
        track=boxes.track[rows],
        attributes=boxes.attributes[rows],
        visibility=boxes.visibility[rows],
        lidar_points=boxes.lidar_points[rows],
        radar_points=boxes.radar_points[rows],
    )


def _ranges(first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of all ranges first:last, one after the other."""
    return np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)] or [np.zeros(0, np.int64)])
