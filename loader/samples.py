"""A batch's arrays as samples, and samples as a batch again: what lies between the engine and a transform of samples.

Splitting makes views. Merging leaves arrays alone that all samples still show unchanged (or changed in place), and copies each
other array once, into memory of the caller's choice. Nothing is guessed: samples that do not fit together are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import UsageError

__all__ = ["IDENTITY", "Allocate", "Sample", "Template", "merge", "split"]

Sample = dict[str, Any]  # Any: arrays, numbers, text, and dicts of them; see Batch
Array = NDArray[Any]  # Any: dtypes by schema and by the user's transform
Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]

IDENTITY: Final = frozenset(
    ("id", "replaced", "slot", "occurrence", "epoch", "valid", "is_first", "set", "stamp", "frame", "drive")
)
"""Keys that say which samples a batch has: a transform sees them, and cannot change them."""
_WHOLE: Final = frozenset(("columns", "coordinates", "sensors"))


@dataclass(frozen=True, slots=True)
class Template:
    """A sample before and after the transform, from which samples that are not there take their shapes."""

    given: Sample
    made: Sample


def split(contents: Sample) -> list[Sample]:
    """Return the samples of a batch, as views of its arrays that may be written to."""
    size = len(contents["id"])
    writable = {name: _writable(value) for name, value in contents.items()}
    contents.update(writable)
    return [_sample(writable, at, size) for at in range(size)]


def merge(
    contents: Sample, given: Sequence[Sample], made: Sequence[Sample | None], template: Template, allocate: Allocate
) -> Sample:
    """Return the batch of samples `made` from those `given`, which `split` took from `contents`; None: stays blank."""
    values = [None if sample is None else {key: sample[key] for key in sample if key not in IDENTITY} for sample in made]
    before = [{key: sample[key] for key in sample if key not in IDENTITY} for sample in given]
    shape = Template(
        {key: value for key, value in template.given.items() if key not in IDENTITY},
        {key: value for key, value in template.made.items() if key not in IDENTITY},
    )
    merged = _Merge(allocate).entry("", contents, before, values, shape)
    return merged | {key: contents[key] for key in contents if key in IDENTITY}


def _writable(value: Any) -> Any:  # Any: nested, see Sample
    if isinstance(value, dict):
        return {name: _writable(item) for name, item in value.items()}
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return value.copy()  # broadcast or mapped
    return value


def _sample(entry: Sample, at: int, size: int) -> Sample:
    if "offsets" not in entry:
        return {
            name: _sample(value, at, size) if isinstance(value, dict) else value if name in _WHOLE else value[at]
            for name, value in entry.items()
        }
    sweeps = (len(entry["offsets"]) - 1) // size
    own = entry["offsets"][at * sweeps : (at + 1) * sweeps + 1]
    rows = slice(int(own[0]), int(own[-1]))
    packed: Sample = {"points": entry["points"][rows], "offsets": own - own[0]}
    if "fields" in entry:
        packed["fields"] = {name: values[rows] for name, values in entry["fields"].items()}
    return {name: packed[name] if name in packed else value if name in _WHOLE else value[at] for name, value in entry.items()}


class _Merge:
    """One merge; `allocate` gives the memory of arrays that are new."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate

    def entry(
        self, path: str, batch: Sample, given: Sequence[Sample], made: Sequence[Sample | None], template: Template
    ) -> Sample:
        """Merge dicts of equal keys."""
        names = list(template.made)
        for sample in made:
            if sample is not None and set(sample) != set(names):
                raise UsageError(
                    f"a transform must return the same keys for every sample; under {path or 'the sample'!r} found "
                    f"{sorted(set(sample) ^ set(names))} for some only"
                )
        if "offsets" in names and "points" in names:
            return self._points(path, batch, given, made, template)
        is_table = "count" in names
        merged: Sample = {}
        for name in names:
            where = f"{path}.{name}" if path else name
            befores = [_get(sample, name) for sample in given]
            values = [None if sample is None else _Value(sample[name]) for sample in made]
            shape = _Pair(_get(template.given, name), template.made[name])
            old = batch.get(name) if isinstance(batch, dict) else None
            merged[name] = self._value(where, name, old, befores, values, shape, is_table=is_table)
        return merged

    def _value(
        self,
        where: str,
        name: str,
        old: Any,  # Any: what the batch had here
        given: Sequence[Any],  # Any: see Sample
        made: Sequence[_Value | None],
        template: _Pair,
        *,
        is_table: bool,
    ) -> Any:  # Any: see Sample
        if isinstance(template.made, dict):
            inner = [None if value is None else _dict(where, value.it) for value in made]
            before = [value if isinstance(value, dict) else {} for value in given]
            shape = Template(template.given if isinstance(template.given, dict) else {}, template.made)
            return self.entry(where, old if isinstance(old, dict) else {}, before, inner, shape)
        if name in _WHOLE:
            if any(value is not None and value.it != template.made for value in made):
                raise UsageError(f"a transform must return equal {where!r} for all samples of a batch; they name what all have")
            return template.made
        untouched = template.made is template.given
        if untouched and old is not None and all(v is None or v.it is g for v, g in zip(made, given, strict=True)):
            return old
        values = [
            value.it if value is not None else before if untouched else _blank(template.made)
            for value, before in zip(made, given, strict=True)
        ]
        if isinstance(template.made, str | list | None):
            return [_text(where, value) for value in values]
        return self._stack(where, [_array(where, value) for value in values], may_pad=is_table)

    def _points(
        self, path: str, batch: Sample, given: Sequence[Sample], made: Sequence[Sample | None], template: Template
    ) -> Sample:
        packed = ("points", "offsets", "fields")
        rest = [None if sample is None else {n: v for n, v in sample.items() if n not in packed} for sample in made]
        others = {n: v for n, v in template.made.items() if n not in packed}
        merged = self.entry(path, batch, given, rest, Template(template.given, others))
        same = all(
            sample is None or all(sample.get(name) is before.get(name) for name in ("points", "offsets"))
            for sample, before in zip(made, given, strict=True)
        )
        if same and "fields" not in template.made and "points" in batch:
            return merged | {"points": batch["points"], "offsets": batch["offsets"]}
        shape = _array(path, template.made["points"])
        parts, offsets = [], [np.zeros(1, np.int64)]
        sweeps = len(template.made["offsets"]) - 1
        for sample in made:
            own = np.zeros(sweeps + 1, np.int64) if sample is None else np.asarray(sample["offsets"], np.int64)
            points = shape[:0] if sample is None else _array(path, sample["points"])
            if len(own) != sweeps + 1 or own[0] != 0 or own[-1] != len(points) or (np.diff(own) < 0).any():
                raise UsageError(
                    f"a transform returned {len(points)} points with offsets {own[:8].tolist()} in {path!r}; offsets must begin "
                    "with 0, grow, and end with the number of points: change both together"
                )
            parts.append(points)
            offsets.append(own[1:] + offsets[-1][-1])
        merged |= {"points": self._end_to_end(path, parts), "offsets": np.concatenate(offsets)}
        if "fields" in template.made:
            merged["fields"] = {
                name: self._end_to_end(
                    f"{path}.fields.{name}",
                    [value[:0] if sample is None else _array(path, sample["fields"][name]) for sample in made],
                )
                for name, value in template.made["fields"].items()
            }
            for name, values in merged["fields"].items():
                if len(values) != len(merged["points"]):
                    raise UsageError(f"a transform returned {len(merged['points'])} points and {len(values)} of field {name!r}")
        return merged

    def _end_to_end(self, where: str, parts: Sequence[Array]) -> Array:
        first = parts[0]
        if any(part.shape[1:] != first.shape[1:] or part.dtype != first.dtype for part in parts):
            raise UsageError(f"a transform must return {where!r} of one width and dtype for all samples of a batch")
        out = self._allocate((sum(map(len, parts)), *first.shape[1:]), first.dtype)
        np.concatenate(parts, out=out)
        return out

    def _stack(self, where: str, parts: Sequence[Array], *, may_pad: bool) -> Array:
        first = parts[0]
        shapes = {part.shape for part in parts}
        if any(part.dtype != first.dtype for part in parts):
            raise UsageError(f"a transform must return {where!r} of one dtype, found {sorted({str(p.dtype) for p in parts})}")
        shape = first.shape
        if len(shapes) > 1:
            # Tables differ in rows, axis 1 of [T, M, …], and are padded as the loader pads them; "count" says how many there are.
            if not may_pad or len({(*each[:1], *each[2:]) for each in shapes}) > 1 or first.ndim < 2:
                raise UsageError(
                    f"a transform must return {where!r} of one shape for all samples of a batch, found {sorted(shapes)[:4]}; "
                    "crop or pad it there, or deliver it as points or a table, which may differ"
                )
            shape = (first.shape[0], max(each[1] for each in shapes), *first.shape[2:])
        out = self._allocate((len(parts), *shape), first.dtype)
        if len(shapes) > 1:
            out[:] = 0
        for at, part in enumerate(parts):
            if part.ndim < 2:
                out[at] = part
            else:
                out[at, :, : part.shape[1]] = part
        return out


@dataclass(frozen=True, slots=True)
class _Value:
    it: Any  # Any: see Sample


@dataclass(frozen=True, slots=True)
class _Pair:
    given: Any  # Any: see Sample
    made: Any  # Any: see Sample


def _get(sample: Sample, name: str) -> Any:  # Any: see Sample
    return sample.get(name)


def _dict(where: str, value: Any) -> Sample:  # Any: whatever a transform returned
    if not isinstance(value, dict):
        raise UsageError(f"a transform must return the same structure for every sample; {where!r} is a dict for some only")
    return value


def _text(where: str, value: Any) -> Any:  # Any: whatever a transform returned; text or lists of it
    if isinstance(value, list):
        return [_text(where, item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise UsageError(f"a transform returned a {type(value).__name__} inside list {where!r}; lists hold text and numbers only")


def _array(where: str, value: Any) -> Array:  # Any: whatever a transform returned
    if not isinstance(value, np.ndarray | np.generic | bool | int | float) and not hasattr(value, "__array__"):
        raise UsageError(
            f"a transform returned a {type(value).__name__} as {where!r}; samples hold arrays, numbers, text, and dicts of them"
        )
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise UsageError(f"a transform returned {where!r} as an array of {array.dtype}; only numbers and bools become tensors")
    return array


def _blank(value: Any) -> Any:  # Any: see Sample
    if isinstance(value, list):
        return [_blank(item) for item in value if isinstance(item, list)] or []
    if value is None or isinstance(value, str):
        return None if value is None else ""
    return np.zeros_like(np.asarray(value))
