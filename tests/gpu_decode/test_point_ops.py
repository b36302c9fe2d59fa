"""Points are chosen and ordered by keyed draws: the same in any company, each sweep by itself, nothing lost on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import UsageError
from headway.gpu_decode import DropPoints, FilterRange, Policy, ShufflePoints, boxes_to_ego, tensor_draws
from headway.loader import draws
from headway.loader.batch import Batch
from tests.gpu_decode.scenes import scene

KEYS = draws.key(3, 1, np.arange(1000), np.arange(1000) % 3, "points")


def test_device_draws_are_the_loaders_bit_for_bit() -> None:
    parts = np.arange(1000) * 7919 - 500
    expected = draws.fold(KEYS, parts)
    found = tensor_draws.fold(tensor_draws.to_tensor(KEYS), torch.from_numpy(parts))
    assert (found.numpy().view(np.uint64) == expected).all()
    assert (tensor_draws.uniform(found).numpy() == draws.uniform(expected)).all()


def rows_of(batch: Batch, sample: int) -> set[tuple[float, ...]]:
    cloud = batch["LIDAR_TOP"]
    begin, end = cloud["offsets"][sample : sample + 2].tolist()
    return {tuple(row) for row in cloud["points"][begin:end].tolist()}


@given(seed=st.integers(0, 1000))
def test_a_shuffle_loses_nothing_and_crosses_no_sweep(seed: int) -> None:
    before = scene(seed, samples=3)
    after = Policy((ShufflePoints(),)).augment(before)
    assert torch.equal(after["LIDAR_TOP"]["offsets"], before["LIDAR_TOP"]["offsets"])
    for sample in range(3):
        assert rows_of(after, sample) == rows_of(before, sample)
    assert not torch.equal(after["LIDAR_TOP"]["points"], before["LIDAR_TOP"]["points"])


def test_draws_do_not_depend_on_the_company() -> None:
    policy = Policy((DropPoints(share=0.4), ShufflePoints()))
    whole = policy.augment(scene(5, samples=3))["LIDAR_TOP"]
    batch = scene(5, samples=3)
    cloud = batch["LIDAR_TOP"]
    begin = int(cloud["offsets"][2])
    alone = {
        name: value[2:] if isinstance(value, torch.Tensor) and name not in ("points", "offsets") else value
        for name, value in cloud.items()
    }
    alone |= {"points": cloud["points"][begin:], "offsets": cloud["offsets"][2:] - begin}
    part = {name: value[2:] for name, value in batch.items() if isinstance(value, torch.Tensor)}
    last = policy.augment(Batch(part, LIDAR_TOP=alone, state=batch["state"]))["LIDAR_TOP"]
    assert torch.equal(last["points"], whole["points"][whole["offsets"][2] :])


def test_an_epoch_and_a_repeat_draw_anew() -> None:
    policy = Policy((ShufflePoints(),))
    first, later = policy.augment(scene(1)), policy.augment(scene(1, epoch=1))
    repeat = policy.augment(Batch(scene(1), occurrence=torch.ones(2, dtype=torch.int64)))
    points = [each["LIDAR_TOP"]["points"] for each in (first, later, repeat)]
    assert not torch.equal(points[0], points[1])
    assert not torch.equal(points[0], points[2])


def test_dropout_drops_its_share_and_keeps_counts_true() -> None:
    cloud = {"points": torch.arange(40_000.0).reshape(-1, 1), "offsets": torch.tensor([0, 10_000, 40_000]), "columns": ["x"]}
    kept = DropPoints(share=0.3).points(cloud, tensor_draws.to_tensor(KEYS[:2]))
    assert 0.69 < len(kept["points"]) / 40_000 < 0.71
    first = int(kept["offsets"][1])
    assert (kept["points"][:first] < 10_000).all()
    assert (kept["points"][first:] >= 10_000).all()
    assert kept["offsets"][-1] == len(kept["points"])


def test_a_range_keeps_its_lower_end_and_not_its_upper() -> None:
    policy = Policy((FilterRange(low=(-1, -1, -1), high=(1, 1, 1)),))
    batch = scene()
    cloud = batch["RADAR"]
    cloud["points"][:, :3] = torch.tensor([[-1.0, 0, 0], [1, 0, 0], [0, 0, 0.999], [0, -2, 0], [0, 0, -1], [0.5, 0.5, 0.5]])
    cloud["fields"] = {"id": torch.arange(6)}
    kept = policy.augment(batch)["RADAR"]
    assert kept["fields"]["id"].tolist() == [0, 2, 4, 5]
    assert kept["offsets"].tolist() == [0, 2, 4]


def test_boxes_outside_go_with_their_text_and_the_rest_moves_up() -> None:
    batch = scene(4, samples=3)
    boxes = boxes_to_ego(batch)
    batch["boxes"] = boxes
    middle = float(boxes["centre"][0, 0, : int(boxes["count"][0, 0]), 0].median())
    kept = Policy((FilterRange(low=(middle - 1e-9, -1e9, -1e9), high=(1e9, 1e9, 1e9)),)).augment(batch)["boxes"]
    for sample in range(3):
        rows = [m for m in range(int(boxes["count"][sample, 0])) if boxes["centre"][sample, 0, m, 0] >= middle - 1e-9]
        assert kept["track_id"][sample][0] == [f"{sample}-{m}" for m in rows]
        assert int(kept["count"][sample, 0]) == len(rows)
        for name in ("centre", "size", "rotation", "velocity", "yaw"):
            torch.testing.assert_close(kept[name][sample, 0, : len(rows)], boxes[name][sample, 0, rows])
            assert (kept[name][sample, 0, len(rows) :] == 0).all()


@pytest.mark.parametrize("wrong", [lambda: DropPoints(share=2), lambda: FilterRange(low=(1, 0, 0), high=(0, 1, 1))])
def test_impossible_options_are_refused(wrong: object) -> None:
    with pytest.raises(UsageError):
        wrong()  # type: ignore[operator]  # one of the two above
