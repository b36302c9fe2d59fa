"""Where a loader stands: small JSON, the same size for any number of items, that resumes on any number of ranks.

A state says which order it belongs to (view, sampler, seed, epoch, versions) and how far the user has received it: complete
steps per batch size, and micro-batches within a step. Resuming is a seek. What cannot be restored exactly is refused, and the
error names the field.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..formats.errors import StateError
from .plan import Plan
from .sampler import Json, Sampler, ViewInfo
from .slots import SEGMENTS

__all__ = ["FORMAT", "ORDER", "Inside", "State"]

FORMAT = 0
"""Version of this JSON."""
ORDER = 0
"""Version of the order itself: raised with any change that makes a plan answer differently."""

_FIELDS = ("format", "order", "view", "seed", "epoch", "sampler", "segments", "inside")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A position within a step of k micro-batches."""

    ranks: int
    accumulation: int
    micro: int
    """Micro-batches of the step that were received: 1 to k − 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A position in an epoch's order, and which order that is.

    >>> import numpy as np
    >>> from headway.loader.sequential import Sequential
    >>> view = ViewInfo(view_id="v", items=10, drive_starts=np.array([0, 10]))
    >>> state = State.start(view, Sequential(), seed=0, epoch=0, batch_size=4)
    >>> State.from_json(state.to_json()) == state
    True
    """

    view: str
    seed: int
    epoch: int
    sampler: Mapping[str, Json]
    segments: tuple[tuple[int, int], ...]
    """(global batch size, complete steps done with it); the last is the current one."""
    inside: Inside | None = None

    @classmethod
    def start(cls, view: ViewInfo, sampler: Sampler, *, seed: int, epoch: int, batch_size: int) -> State:
        """Return the state before the first batch of an epoch."""
        return cls(
            view=view.view_id, seed=seed, epoch=epoch, sampler=sampler.describe(view, epoch=epoch), segments=((batch_size, 0),)
        )

    @property
    def batch_size(self) -> int:
        """The current global batch size."""
        return self.segments[-1][0]

    @property
    def steps_done(self) -> int:
        """Complete steps of the epoch that the user has received."""
        return sum(steps for _, steps in self.segments)

    def first_batch(self, accumulation: int) -> int:
        """Return the number of the batch that comes next in the epoch, of `accumulation` micro-batches a step."""
        return self.steps_done * accumulation + (self.inside.micro if self.inside else 0)

    def plan(self, view: ViewInfo, sampler: Sampler) -> Plan:
        """Return the plan this state is a position of; `resume` has checked that view and sampler belong to it."""
        return Plan(view, sampler, seed=self.seed, epoch=self.epoch, segments=self.segments)

    def after(self, plan: Plan, *, step: int, micro: int = 0, ranks: int = 1, accumulation: int = 1) -> State:
        """Return the state once the user has received micro-batch `micro` (of k = `accumulation`) of `step` of this plan.

        After the last batch of the epoch that is the start of the next one.
        """
        if not (plan.first_step <= step < plan.steps and 0 <= micro < accumulation):
            raise StateError(
                f"cannot state a position after micro-batch {micro} of step {step}: this plan has steps {plan.first_step} to "
                f"{plan.steps} of {accumulation} micro-batches"
            )
        done = step + (micro + 1) // accumulation
        if done == plan.steps:
            return self.next_epoch(plan.view, plan.sampler)
        *earlier, (batch_size, _) = plan.segments
        before = sum(steps for _, steps in earlier) if earlier else 0
        return State(  # once a batch: dataclasses.replace takes three times as long
            view=self.view,
            seed=self.seed,
            epoch=self.epoch,
            sampler=self.sampler,
            segments=(*earlier, (batch_size, done - before)),
            inside=None if done > step else Inside(ranks=ranks, accumulation=accumulation, micro=micro + 1),
        )

    def next_epoch(self, view: ViewInfo, sampler: Sampler, *, epoch: int | None = None) -> State:
        """Return the state before the first batch of the next epoch (or of `epoch`), with the current batch size."""
        return State.start(
            view,
            sampler,
            seed=self.seed,
            epoch=self.epoch + 1 if epoch is None else epoch,
            batch_size=self.batch_size,
        )

    def resume(
        self,
        view: ViewInfo,
        sampler: Sampler,
        *,
        seed: int,
        batch_size: int,
        ranks: int = 1,
        accumulation: int = 1,
        strict_batch: bool = False,
    ) -> State:
        """Return the state to go on from with this loader's view, sampler and topology, or refuse.

        `batch_size` is the global one. Another one than the state's begins a new segment, with one warning that names both.
        """
        for name, found, expected in (
            ("view", self.view, view.view_id),
            ("seed", self.seed, seed),
            *_sampler_fields(self.sampler, sampler.describe(view, epoch=self.epoch)),
        ):
            if found != expected:
                raise StateError(
                    f"cannot resume from a state of epoch {self.epoch}: its {name} is {found!r}, this loader's is {expected!r}; "
                    "open the same view with the same options, or start a new run without the state"
                )
        inside = self.inside
        if inside is not None and (inside.ranks, inside.accumulation) != (ranks, accumulation):
            raise StateError(
                f"cannot resume inside step {self.steps_done} of epoch {self.epoch}: inside was saved with ranks={inside.ranks}, "
                f"accumulation={inside.accumulation}, this loader has ranks={ranks}, accumulation={accumulation}; "
                "resume with the same, or from a state saved at the end of a step"
            )
        if batch_size != self.batch_size:
            return self._resized(view, sampler, batch_size, strict_batch)
        plan = self.plan(view, sampler)  # refuses segments that do not fit
        if self.segments[-1][1] and plan.first_step == plan.steps:
            raise StateError(
                f"cannot resume from a state of epoch {self.epoch}: its segments {self.segments!r} end the epoch's "
                f"{plan.steps} steps, and after the last one a state says epoch {self.epoch + 1}; the state was edited"
            )
        return self

    def _resized(self, view: ViewInfo, sampler: Sampler, batch_size: int, strict_batch: bool) -> State:
        told = f"the state's global batch is {self.batch_size}, this loader's is {batch_size}"
        if strict_batch:
            raise StateError(
                f"cannot resume from a state of epoch {self.epoch} with another batch size under strict_batch: {told}; "
                "set batch_size, ranks and accumulation so that their product is the state's"
            )
        if self.inside is not None:
            raise StateError(
                f"cannot resume inside step {self.steps_done} of epoch {self.epoch} with another batch size: {told}; "
                "resume from a state saved at the end of a step"
            )
        done = tuple(segment for segment in self.segments if segment[1])
        if done and done[-1][0] == batch_size:
            resized = replace(self, segments=done)
        elif len(done) == SEGMENTS:
            raise StateError(
                f"cannot change the batch size again in epoch {self.epoch}: {told}, and it has {SEGMENTS} segments already; "
                f"finish it with a global batch of {self.batch_size}"
            )
        else:
            resized = replace(self, segments=(*done, (batch_size, 0)))
        resized.plan(view, sampler)
        warnings.warn(
            f"resuming with another batch size: {told}. Each item still comes exactly once this epoch; batches are cut anew",
            stacklevel=3,
        )
        return resized

    def to_json(self) -> dict[str, Json]:
        """Return the state as JSON values."""
        inside = self.inside
        return {
            "format": FORMAT,
            "order": ORDER,
            "view": self.view,
            "seed": self.seed,
            "epoch": self.epoch,
            "sampler": dict(self.sampler),
            "segments": [[batch_size, steps] for batch_size, steps in self.segments],
            "inside": None if inside is None else {"R": inside.ranks, "k": inside.accumulation, "micro": inside.micro},
        }

    @classmethod
    def from_json(cls, value: object) -> State:
        """Return the state that `to_json` wrote; anything else is refused, naming the field."""
        if not isinstance(value, Mapping):
            raise StateError(f"cannot read a loader state: expected a JSON object, found {type(value).__name__}")
        for name, known in (("format", FORMAT), ("order", ORDER)):
            version = _integer(value.get(name), name)
            if version != known:
                raise StateError(
                    f"cannot read a loader state: its {name} version is {version}, this headway knows {known}; "
                    "resume with the headway version that wrote it"
                )
        unknown = set(value) ^ set(_FIELDS)
        if unknown:
            raise StateError(f"cannot read a loader state: missing or unknown fields {sorted(map(str, unknown))!r}")
        view, sampler = value["view"], value["sampler"]
        if not isinstance(view, str) or len(view) > 256:
            raise StateError(f"cannot read a loader state: view must be an id, found {str(view)[:80]!r}")
        if not isinstance(sampler, Mapping) or not isinstance(sampler.get("kind"), str):
            raise StateError(f"cannot read a loader state: sampler must be an object with a kind, found {str(sampler)[:80]!r}")
        return cls(
            view=view,
            seed=_integer(value["seed"], "seed", least=None),
            epoch=_integer(value["epoch"], "epoch"),
            sampler=dict(sampler),
            segments=_segments(value["segments"]),
            inside=_inside(value["inside"]),
        )


def _integer(value: object, name: str, *, least: int | None = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**64:
        raise StateError(f"cannot read a loader state: {name} must be an integer, found {str(value)[:80]!r}")
    if least is not None and value < least:
        raise StateError(f"cannot read a loader state: {name} must be {least} or more, found {value}")
    return value


def _segments(value: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not 1 <= len(value) <= SEGMENTS:
        raise StateError(f"cannot read a loader state: segments must be 1 to {SEGMENTS} pairs, found {str(value)[:80]!r}")
    for pair in value:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise StateError(f"cannot read a loader state: segments must be pairs [B, steps], found {str(pair)[:80]!r}")
    segments = tuple((_integer(size, "segments", least=1), _integer(steps, "segments")) for size, steps in value)
    for (size, steps), (later, _) in pairwise(segments):
        if not steps or size == later:
            raise StateError(
                f"cannot read a loader state: segments must differ in size from one to the next, all but the last with 1 or more "
                f"steps; found {[size, steps]!r} before one of {later}; the state was edited"
            )
    return segments


def _inside(value: object) -> Inside | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"R", "k", "micro"}:
        raise StateError(f"cannot read a loader state: inside must be null or R, k, micro, found {str(value)[:80]!r}")
    ranks, accumulation, micro = (_integer(value[name], f"inside.{name}", least=1) for name in ("R", "k", "micro"))
    if micro >= accumulation:
        raise StateError(f"cannot read a loader state: inside.micro must be below k={accumulation}, found {micro}")
    return Inside(ranks=ranks, accumulation=accumulation, micro=micro)


def _sampler_fields(found: Mapping[str, Json], expected: Mapping[str, Json]) -> list[tuple[str, Json, Json]]:
    if found.get("kind") != expected.get("kind"):
        names = ["kind"]
    else:
        names = [*expected, *sorted(set(found) - set(expected))]
    return [(f"sampler.{name}", found.get(name), expected.get(name)) for name in names]
