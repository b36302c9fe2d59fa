"""Window specifications: what they count, what they refuse, and the recipes they were made for."""

from __future__ import annotations

import pytest

from headway.formats import UsageError, canonical_json
from headway.loader.view import View
from headway.loader.window import Window, match_sensors

from .memory_set import MemorySet, camera, ego, lidar


def test_steps_are_in_time_order_around_the_anchor() -> None:
    assert Window("A", past=2, future=1).steps == (-2, -1, 0, 1)
    assert Window("A", past=10, choose=9).length == 10
    assert Window("A", past="0.5s", future="100ms", stride="50ms", sync="nearest").steps == tuple(range(-10, 3))
    assert Window("A", past="1s", at_most=4).steps == (-4, -3, -2, -1, 0)


def test_offsets_of_a_fractional_period_do_not_drift() -> None:
    """huggingface/lerobot#3177: a rounded 1/30 s, added up, is frames off after an hour."""
    offsets = Window("A", future=4000, stride="1/30s", sync="nearest").grid().offsets
    assert offsets[3000] == 100 * 10**9
    assert offsets[1] == 33_333_333
    assert offsets[2] == 66_666_667


def test_a_window_is_plain_data_and_hashable() -> None:
    window = Window(["CAM_B", "CAM_A"], past=3, stride="1 frame")
    assert window == Window(("CAM_B", "CAM_A"), past=3, stride="1 frame")
    assert hash(window) == hash(Window(("CAM_B", "CAM_A"), past=3, stride="1 frame"))
    assert canonical_json(window.to_json()) == canonical_json(Window(["CAM_B", "CAM_A"], past=3, stride="1 frame").to_json())


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Window("A", past=-1), "past=-1 must be a count"),
        (lambda: Window("A", past=True), "past=True must be a count"),
        (lambda: Window("A", past=0.5), "past=0.5 must be a count"),  # type: ignore[arg-type]  # the point
        (lambda: Window("A", past="0.5"), "is no time"),
        (lambda: Window("A", past="1/0s", stride="1s"), "is no time"),
        (lambda: Window("A", stride=0), "stride=0"),
        (lambda: Window("A", stride="0s"), "must be above zero"),
        (lambda: Window("A", stride="0 frames"), "must be above zero"),
        (lambda: Window("A", past="1s"), "at_most=None goes with"),
        (lambda: Window("A", past=1, at_most=3), "at_most=3 goes with"),
        (lambda: Window("A", past="1s", at_most=0), "at_most=0"),
        (lambda: Window("A", past="1s", stride="2 frames"), "count frames"),
        (lambda: Window("A", past=2, stride="0.5s"), "same nanosecond"),
        (lambda: Window("A", past=2, sync="interpolate"), "asks for stamps"),
        (lambda: Window("A", sync="interpolate", on_gap="pad"), "no payload to repeat"),
        (lambda: Window("A", outside="clamp"), "only goes with sync='interpolate'"),
        (lambda: Window("A", past=3, choose=4), "must be 'all' or 1 to 3"),
        (lambda: Window("A", past=3, choose=0), "must be 'all' or 1 to 3"),
        (lambda: Window("A", sync="closest"), "none of 'exact', 'nearest'"),  # type: ignore[arg-type]  # the point
        (lambda: Window("A", on_gap="skip"), "none of 'pad', 'mask', 'drop'"),  # type: ignore[arg-type]  # the point
        (lambda: Window("A", tolerance="5"), "tolerance: '5' is no time"),
        (lambda: Window([]), "sensors must be"),
        (lambda: Window("A", past="100s", stride="1ms", sync="nearest"), "check the units"),
    ],
)
def test_what_cannot_be_meant_is_refused(build: object, says: str) -> None:
    with pytest.raises(UsageError, match="window") as caught:
        build()  # type: ignore[operator]  # a list of lambdas of different return types
    assert says in str(caught.value)


def test_patterns_match_names_and_exact_names_win() -> None:
    schema = MemorySet([lidar(), camera("CAM_B"), camera("CAM_A"), camera("CAM[A]")], [{"LIDAR_TOP": [0]}]).schema
    assert match_sensors(schema, "CAM_*", "w") == ("CAM_A", "CAM_B")
    assert match_sensors(schema, ["CAM_B", "CAM_*"], "w") == ("CAM_B", "CAM_A")
    assert match_sensors(schema, "CAM[A]", "w") == ("CAM[A]",)
    with pytest.raises(UsageError, match=r"no such sensor; it has: .*CAM_A, CAM_B"):
        match_sensors(schema, "RADAR_*", "w")
    with pytest.raises(UsageError, match="mixes sensors of kinds image, points"):
        match_sensors(schema, "*", "w")


def test_a_sensor_without_rows_fails_when_the_view_is_made() -> None:
    """mit-han-lab/bevfusion#528: asking for sweeps that were never packed must not wait for sample k."""
    files = MemorySet([lidar(), lidar("LIDAR_REAR")], [{"LIDAR_TOP": [0, 1]}])
    with pytest.raises(UsageError, match="no payload of sensor 'LIDAR_REAR'"):
        View(files, windows=[Window("LIDAR_*")])


def test_payloads_are_not_interpolated() -> None:
    files = MemorySet([lidar(), ego()], [{"LIDAR_TOP": [0, 1], "ego": [0, 1]}])
    View(files, windows=[Window("ego", sync="interpolate")])
    with pytest.raises(UsageError, match="has payloads, which cannot be interpolated"):
        View(files, windows=[Window("LIDAR_TOP", sync="interpolate")])


def test_two_windows_need_two_names() -> None:
    files = MemorySet([lidar()], [{"LIDAR_TOP": [0, 1]}])
    with pytest.raises(UsageError, match="two windows are called 'LIDAR_TOP'"):
        View(files, windows=[Window("LIDAR_TOP"), Window("LIDAR_TOP", past=1)])
    with pytest.raises(UsageError, match="a field 'stamp' of its own"):
        View(files, windows=[Window("LIDAR_TOP", name="stamp")])
    assert View(files, windows=[Window("LIDAR_TOP"), Window("LIDAR_TOP", past=1, name="old")]).names == ("LIDAR_TOP", "old")
