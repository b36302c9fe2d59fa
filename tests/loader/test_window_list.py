"""Windows as JSON: there and back, and nothing unknown slips through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.formats import UsageError
from headway.loader.sweeps import Sweeps
from headway.loader.trajectory import Trajectory
from headway.loader.window import Window
from headway.loader.window_list import AnyWindow, windows_from_json


@pytest.mark.parametrize(
    "window",
    [
        Window(["CAM_*", "X"], past=3, stride="1 frame", on_gap="pad", tolerance="20ms"),
        Window("LIDAR", past="1s", at_most=4, name="old"),
        Window("can", past=2, stride="1/30s", sync="interpolate", outside="clamp"),
        Sweeps(past=10, choose=9, drop_self_m=2.5, drop_self_key=True, deskew=True),
        Trajectory(past="1s", rate_hz=29.97),
    ],
)
def test_windows_come_back_as_they_were(window: AnyWindow) -> None:
    (again,) = windows_from_json(json.loads(json.dumps([window.to_json()])))
    assert again.to_json() == window.to_json()
    assert type(again) is type(window)


def test_only_what_differs_must_be_said() -> None:
    found = windows_from_json([{"kind": "window", "sensors": "CAM"}, {"kind": "sweeps"}, {"kind": "trajectory"}])
    assert found == (Window("CAM"), Sweeps(), Trajectory())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "must be a JSON list"),
        ([1], "window 0 of the list: expected an object"),
        ([{"kind": ["window"]}], "expected an object"),
        ([{"kind": "clip"}], "one of window, trajectory, sweeps"),
        ([{"kind": "window"}], "'sensors' must be"),
        ([{"kind": "window", "sensors": [1]}], "sensors must be a name or names"),
        ([{"kind": "sweeps"}, {"kind": "window", "sensors": "A", "pst": 1}], "window 1 of the list: a window has no field 'pst'"),
        ([{"kind": "window", "sensors": "A", "past": []}], "past=[] must be a count"),
        ([{"kind": "window", "sensors": "A", "stride": None}], "stride=None must be"),
        ([{"kind": "window", "sensors": "A", "at_most": "1"}], "at_most='1'"),
        ([{"kind": "window", "sensors": "A", "sync": ["exact"]}], "sync=['exact'] is none of"),
        ([{"kind": "window", "sensors": "A", "name": 3}], "'name' must be text"),
        ([{"kind": "sweeps", "past": 1.5}], "past=1.5 must be a count"),
        ([{"kind": "sweeps", "drop_self_m": "1 m"}], "drop_self_m='1 m'"),
        ([{"kind": "sweeps", "deskew": 1}], "'deskew' must be true or false"),
        ([{"kind": "trajectory", "past": 2}], "2 is no time"),
        ([{"kind": "trajectory", "rate_hz": None}], "rate_hz=None"),
    ],
)
def test_anything_else_is_refused(data: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        windows_from_json(data)
    assert says in str(caught.value)
