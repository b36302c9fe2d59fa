"""Drawn affines: inside their bounds, the same for the same key, and true to the picture they move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.formats import UsageError
from headway.gpu_decode import RandomResizedCrop, ResizeCropFlip
from headway.loader.draws import key

SOURCE = np.array([[1600, 900]])
KEYS = key(1, 2, np.arange(500), 0, "test")


def affines(policy: ResizeCropFlip | RandomResizedCrop, target: tuple[int, int], keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    fitted = np.broadcast_to(np.eye(3), (len(keys), 3, 3))
    return policy.affines(fitted, source=np.repeat(SOURCE, len(keys), 0), target=target, keys=keys)


def test_equal_keys_give_equal_affines_in_any_company() -> None:
    for policy in (ResizeCropFlip(), RandomResizedCrop()):
        whole = affines(policy, (256, 704), KEYS)
        np.testing.assert_array_equal(whole[[7, 3]], affines(policy, (256, 704), KEYS[[7, 3]]))
        assert len(np.unique(whole[:, 0, 0])) == len(KEYS)


def test_scales_angles_and_flips_cover_their_ranges() -> None:
    drawn = affines(ResizeCropFlip(resize=(0.4, 0.6), rotate_deg=(-10, 10), flip=0.25), (256, 704), KEYS)
    linear = drawn[:, :2, :2]
    scale = np.sqrt(np.abs(np.linalg.det(linear)))
    assert 0.4 <= scale.min() < 0.41
    assert 0.59 < scale.max() <= 0.6
    assert 0.18 < (np.linalg.det(linear) < 0).mean() < 0.32
    angle = np.rad2deg(np.arctan2(linear[:, 1, 0], np.abs(linear[:, 1, 1])))
    assert np.abs(angle).max() <= 10
    assert np.abs(angle).max() > 9.5


def test_without_rotation_the_crop_lies_inside_and_touches_the_bottom() -> None:
    drawn = affines(ResizeCropFlip(resize=(0.44, 0.55), rotate_deg=(0, 0)), (256, 704), KEYS)
    corners = np.array([[0, 0, 1], [704, 256, 1]]).T
    back = np.linalg.inv(drawn) @ corners
    x, y = back[:, 0], back[:, 1]
    assert x.min() > -1e-9
    assert x.max() < 1600 + 1e-9
    np.testing.assert_allclose(y[:, 1], 900)


@given(seed=st.integers(0, 2**32), height=st.integers(1, 4000), width=st.integers(1, 4000))
def test_a_resized_crop_never_leaves_the_source(seed: int, height: int, width: int) -> None:
    keys = key(seed, 0, np.arange(16), 0, "crop")
    source = np.repeat(np.array([[width, height]]), 16, 0)
    drawn = RandomResizedCrop().affines(np.zeros((16, 3, 3)), source=source, target=(224, 224), keys=keys)
    back = np.linalg.inv(drawn) @ np.array([[0, 0, 1], [224, 224, 1]]).T
    assert back[:, :2].min() >= -1e-6
    assert (back[:, :2].max(-1) <= source + 1e-6).all()


def test_a_counter_clockwise_turn_moves_the_right_edge_up() -> None:
    turned = affines(ResizeCropFlip(resize=(1, 1), rotate_deg=(10, 10), flip=0), (900, 1600), KEYS[:1])[0]
    right = turned @ [1600, 450, 1]
    assert right[1] < 450


@pytest.mark.parametrize(
    "wrong",
    [{"resize": (0.5, 0.4)}, {"resize": (0, 1)}, {"bottom": (0, 2)}, {"flip": 1.5}, {"rotate_deg": (3, 1)}],
)
def test_impossible_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ResizeCropFlip(**wrong)  # type: ignore[arg-type]  # that is the point
