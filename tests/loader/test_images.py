"""The affine of an image group: what crop, letterbox and stretch do to pixels and intrinsics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import UsageError
from headway.loader.images import Images, match_sensors

sides = st.integers(1, 3000)


def corners(images: Images, width: int, height: int) -> tuple[float, float, float, float]:
    matrix = images.affine(width, height)
    left, top = (matrix @ (0, 0, 1))[:2]
    right, bottom = (matrix @ (width, height, 1))[:2]
    return float(left), float(top), float(right), float(bottom)


@given(sides, sides, sides, sides)
def test_crop_covers_the_target_and_stretches_nothing(width: int, height: int, target_w: int, target_h: int) -> None:
    images = Images("*", size=(target_h, target_w), fit="crop")
    left, top, right, bottom = corners(images, width, height)
    assert left <= 1e-6
    assert top <= 1e-6
    assert right >= target_w - 1e-6
    assert bottom >= target_h - 1e-6
    matrix = images.affine(width, height)
    assert matrix[0, 0] == matrix[1, 1]
    assert bottom == pytest.approx(target_h)


@given(sides, sides, sides, sides)
def test_letterbox_shows_the_whole_source(width: int, height: int, target_w: int, target_h: int) -> None:
    left, top, right, bottom = corners(Images("*", size=(target_h, target_w), fit="letterbox", anchor="centre"), width, height)
    assert left >= -1e-6
    assert top >= -1e-6
    assert right <= target_w + 1e-6
    assert bottom <= target_h + 1e-6
    assert left + right == pytest.approx(target_w)
    assert top + bottom == pytest.approx(target_h)


@given(sides, sides, sides, sides)
def test_stretch_maps_corners_to_corners(width: int, height: int, target_w: int, target_h: int) -> None:
    found = corners(Images("*", size=(target_h, target_w), fit="stretch"), width, height)
    np.testing.assert_allclose(found, (0, 0, target_w, target_h), atol=1e-6)


def test_the_usual_surround_crop_keeps_the_bottom() -> None:
    matrix = Images("*", size=(256, 704)).affine(1600, 900)
    np.testing.assert_allclose(matrix, np.array([[0.44, 0, 0], [0, 0.44, -140], [0, 0, 1]]), atol=1e-9)


def test_anchors_choose_which_end_is_cut() -> None:
    shifts = {anchor: Images("*", size=(10, 100), anchor=anchor).affine(100, 110)[1, 2] for anchor in ("top", "centre", "bottom")}
    assert shifts == {"top": 0, "centre": -50, "bottom": -100}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"size": (0, 5)}, "size"),
        ({"size": (5,)}, "size"),
        ({"fit": "zoom"}, "fit"),
        ({"dtype": "int8"}, "dtype"),
        ({"mean": (1, 2, 3)}, "mean"),
        ({"dtype": "float32", "std": (0, 1, 1)}, "std"),
        ({"fill": 300}, "fill"),
        ({"name": ""}, "name"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_by_name(options: dict[str, object], names: str) -> None:
    with pytest.raises(UsageError, match=names):
        Images("*", **options)  # type: ignore[arg-type]  # wrong on purpose


def test_patterns_match_by_name_and_each_sensor_once() -> None:
    assert match_sensors(["B", "*"], ["C", "A", "B"]) == ["B", "A", "C"]
    with pytest.raises(UsageError, match="'X\\*'"):
        match_sensors("X*", ["A"])
