"""States: JSON round trips, positions, and refusals that name the field."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.formats import StateError
from headway.loader.plan import ViewInfo
from headway.loader.sequential import Sequential
from headway.loader.shuffled import Shuffled
from headway.loader.slots import SEGMENTS
from headway.loader.state import Inside, State
from tests.laws.plans import view_of

VIEW = view_of(100)
SAMPLER = Shuffled(block_items=4)


def at(step: int, *, micro: int = 1, ranks: int = 2, accumulation: int = 2, batch_size: int = 8) -> State:
    """Return the state after micro-batch `micro` of `step`."""
    start = State.start(VIEW, SAMPLER, seed=3, epoch=0, batch_size=batch_size)
    plan = start.plan(VIEW, SAMPLER)
    return start.after(plan, step=step, micro=micro, ranks=ranks, accumulation=accumulation)


def resume(state: State, **changed: Any) -> State:  # Any: arguments of State.resume
    given_ = {"view": VIEW, "sampler": SAMPLER, "seed": 3, "batch_size": 8, "ranks": 2, "accumulation": 2, **changed}
    return state.resume(given_.pop("view"), given_.pop("sampler"), **given_)


def test_json_says_what_design_says() -> None:
    assert at(4).to_json() == {
        "format": 0,
        "order": 0,
        "view": "view",
        "seed": 3,
        "epoch": 0,
        "sampler": {"kind": "shuffled", "block_items": 4, "span_blocks": 8, "drop_last": False},
        "segments": [[8, 5]],
        "inside": None,
    }
    assert at(4, micro=0).to_json()["inside"] == {"R": 2, "k": 2, "micro": 1}


def test_json_round_trip() -> None:
    for state in (at(0), at(3, micro=0), State.start(VIEW, Sequential(), seed=-1, epoch=9, batch_size=1)):
        assert State.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_after_the_last_batch_comes_the_next_epoch() -> None:
    assert at(12) == State.start(VIEW, SAMPLER, seed=3, epoch=1, batch_size=8)
    assert at(12, micro=0).epoch == 0


def test_a_position_outside_the_plan_is_refused() -> None:
    for step, micro in ((13, 0), (-1, 0), (2, 2)):
        with pytest.raises(StateError, match="cannot state a position"):
            at(step, micro=micro)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"view": view_of(100, name="other")}, "its view is 'view'"),
        ({"seed": 4}, "its seed is 3"),
        ({"sampler": Sequential()}, r"its sampler\.kind is 'shuffled'"),
        ({"sampler": Shuffled(block_items=4, span_blocks=2)}, r"its sampler\.span_blocks is 8"),
        ({"sampler": Shuffled(block_items=5)}, r"its sampler\.block_items is 4"),
        ({"sampler": Shuffled(block_items=4, drop_last=True)}, r"its sampler\.drop_last is False"),
    ],
)
def test_a_state_of_something_else_is_refused_by_field(changed: dict[str, Any], named: str) -> None:  # Any: as above
    with pytest.raises(StateError, match=named):
        resume(at(4), **changed)


def test_inside_a_step_only_the_same_ranks_and_accumulation_resume() -> None:
    inside = at(4, micro=0)
    assert inside.inside == Inside(ranks=2, accumulation=2, micro=1)
    assert resume(inside) == inside
    for changed in ({"ranks": 4, "accumulation": 2}, {"ranks": 1, "accumulation": 2}, {"ranks": 2, "accumulation": 4}):
        with pytest.raises(StateError, match="inside"):
            resume(inside, **changed)
    with pytest.raises(StateError, match="inside step"):
        resume(inside, batch_size=16)


def test_another_batch_size_warns_once_and_names_both() -> None:
    with pytest.warns(UserWarning, match=r"global batch is 8, this loader's is 12") as caught:
        changed = resume(at(4), batch_size=12)
    assert len(caught) == 1
    assert changed.segments == ((8, 5), (12, 0))
    with pytest.raises(StateError, match="strict_batch"):
        resume(at(4), batch_size=12, strict_batch=True)


def test_a_batch_size_without_steps_leaves_no_segment() -> None:
    with pytest.warns(UserWarning, match="another batch size"):
        twelve = resume(at(4), batch_size=12)
    with pytest.warns(UserWarning, match="another batch size"):
        assert resume(twelve, batch_size=16).segments == ((8, 5), (16, 0))
    with pytest.warns(UserWarning, match="another batch size"):
        assert resume(twelve, batch_size=8) == at(4)
    with pytest.warns(UserWarning, match="another batch size"):
        assert resume(State.start(VIEW, SAMPLER, seed=3, epoch=2, batch_size=8), batch_size=12).segments == ((12, 0),)


def test_the_sixty_fifth_batch_size_is_refused() -> None:
    view = view_of(10_000)
    segments = tuple((8 + number % 2, 1) for number in range(SEGMENTS))
    start = State.start(view, SAMPLER, seed=3, epoch=0, batch_size=8)
    full = State(view=start.view, seed=3, epoch=0, sampler=start.sampler, segments=segments)
    with pytest.raises(StateError, match="64 segments already"):
        resume(full, view=view, batch_size=20)
    assert resume(full, view=view, batch_size=9) == full


def test_segments_that_do_not_fit_the_view_are_refused() -> None:
    state = State(view="view", seed=3, epoch=0, sampler=SAMPLER.describe(VIEW, epoch=0), segments=((8, 14),))
    with pytest.raises(StateError, match="14 steps of 8"):
        resume(state)
    with pytest.raises(StateError, match="steps of 4611686018427387904"):
        resume(replace(state, segments=((2**62, 3), (8, 0))))
    # All of an epoch's steps done is the next epoch's start; nothing ever says otherwise but an editor.
    with pytest.raises(StateError, match="a state says epoch 1"):
        resume(replace(state, segments=((8, VIEW.items // 8 + (VIEW.items % 8 > 0)),)))


def test_a_batch_size_that_leaves_no_step_ends_the_epoch() -> None:
    sampler = Shuffled(drop_last=True)
    state = State(view="view", seed=3, epoch=0, sampler=sampler.describe(VIEW, epoch=0), segments=((8, VIEW.items // 8 - 1),))
    larger = 8 + VIEW.items % 8 + 1
    with pytest.warns(UserWarning, match="another batch size"):
        ended = state.resume(VIEW, sampler, seed=3, batch_size=larger)
    plan = ended.plan(VIEW, sampler)
    assert plan.first_step == plan.steps
    # Saved as it is, it resumes as it is.
    assert State.from_json(ended.to_json()).resume(VIEW, sampler, seed=3, batch_size=larger) == ended


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 1), ("order", 1), ("format", None), ("view", 7), ("view", "x" * 300), ("seed", "3"), ("seed", True),
        ("epoch", -1), ("epoch", 1.0), ("sampler", []), ("sampler", {}), ("segments", []), ("segments", "ab"),
        ("segments", [[8, -1]]), ("segments", [[0, 1]]), ("segments", [[8]]),
        ("segments", [[8, 1], [8, 0]]), ("segments", [[9, 0], [8, 0]]), ("segments", [[8, 1]] * 65), ("inside", {}),
        ("inside", {"R": 1, "k": 2, "micro": 2}), ("inside", {"R": 0, "k": 2, "micro": 1}), ("inside", 3),
    ],
)  # fmt: skip
def test_json_that_is_no_state_is_refused_by_field(field: str, value: object) -> None:
    data: dict[str, object] = dict(at(4).to_json())
    data[field] = value
    with pytest.raises(StateError, match=field):
        State.from_json(data)


def test_missing_and_unknown_fields_are_refused() -> None:
    data: dict[str, object] = dict(at(4).to_json())
    with pytest.raises(StateError, match="extra"):
        State.from_json({**data, "extra": 1})
    del data["inside"]
    with pytest.raises(StateError, match="inside"):
        State.from_json(data)
    with pytest.raises(StateError, match="JSON object"):
        State.from_json([1])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(field=st.sampled_from(list(at(4).to_json())), value=json_values)
def test_hostile_json_raises_only_state_errors(field: str, value: object) -> None:
    data: dict[str, object] = copy.deepcopy(dict(at(4).to_json()))
    data[field] = value
    try:
        state = State.from_json(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resume(state)
    except StateError:
        pass


def test_default_block_items_are_resolved_in_the_state() -> None:
    view = ViewInfo(view_id="v", items=400, drive_starts=view_of(400, drive=40).drive_starts)
    state = State.start(view, Shuffled(), seed=0, epoch=0, batch_size=4)
    assert state.sampler["block_items"] == 10
