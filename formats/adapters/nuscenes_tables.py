"""nuScenes' JSON tables as numpy columns, read in one pass without ever holding the rows.

A table is one JSON array of flat objects; the largest (trainval's sample_data, 2.6 million rows, more than a gigabyte) is
parsed object by object from a bounded buffer and turned into columns every 16,384 rows. Every broken row goes into
`Findings`, which lists what preflight found; what the rows mean is `nuscenes`' job.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import Problem, SourceError
from .json_rows import json_rows

__all__ = [
    "DOWNLOAD",
    "LINKS",
    "POSE",
    "Findings",
    "TableField",
    "TableReader",
    "TokenIndex",
    "read_poses",
    "read_table",
    "to_stamps",
]

Value = Literal["token", "text", "integer", "number", "stamp", "flag", "vector", "matrix", "tokens"]

DOWNLOAD: Final = "download the metadata again"
"""The remedy where tables are incomplete or of different versions."""
_BATCH_ROWS: Final = 16_384
_TOKEN_BYTES: Final = 128
_TEXT_BYTES: Final = 4096
_LISTED: Final = 1000
"""Findings of one kind that are kept word for word; the rest are counted. A million lines help nobody."""


class Findings:
    """What preflight found wrong: the first 1,000 of each code and sensor as they are, all of them counted."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.counts: Counter[str] = Counter()
        self.unread: set[str] = set()
        """Tables that could not be read whole: what others seek in them in vain says nothing more."""
        self._listed: Counter[tuple[str, str]] = Counter()

    def add(self, code: str, path: str, reason: str, *, sensor: str = "", stamp_ns: int | None = None) -> None:
        """Record one finding."""
        self.counts[code] += 1
        self._listed[code, sensor] += 1
        if self._listed[code, sensor] <= _LISTED:
            self.problems.append(Problem(path=path, reason=reason, sensor=sensor, stamp_ns=stamp_ns, code=code))

    def raise_if_any(self, attempted: str) -> None:
        """Raise one `SourceError` with everything recorded; return if nothing was."""
        if not self.problems:
            return
        for (code, sensor), count in self._listed.items():
            if count > _LISTED:
                reason = f"{count - _LISTED} more findings of this kind are not listed"
                self.problems.append(Problem(path="…", reason=reason, sensor=sensor, code=code))
        total = sum(self.counts.values())
        kinds = ", ".join(f"{count} {code}" for code, count in sorted(self.counts.items()))
        raise SourceError(
            f"{attempted}: found {total} problem{'s' * (total != 1)} ({kinds}); nothing was written. Mend the source, or leave "
            "out what is broken (--sensors, --split, --allow-missing):",
            self.problems,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableField:
    """One field of a table's rows and the column it becomes."""

    name: str
    value: Value
    """token, text: bytes (n,), UTF-8. integer: int64. number: float64. stamp: int64 ns from microseconds. flag: bool.
    vector: float64 (n, width). matrix: float64 (n, 3, 3), NaN where the source has an empty list. tokens: a list of tuples."""
    width: int = 0
    default: Any = None  # any JSON value: it stands in for a field that the row leaves out
    optional: bool = False


LINKS: Final = (TableField(name="prev", value="token"), TableField(name="next", value="token"))
POSE: Final = (
    TableField(name="translation", value="vector", width=3),
    TableField(name="rotation", value="vector", width=4),
)


class TokenIndex:
    """Where each token of a table is: `rows` looks up many at once."""

    def __init__(self, tokens: NDArray[np.bytes_]) -> None:
        self._order = np.argsort(tokens, kind="stable")
        self._sorted = tokens[self._order]

    def rows(self, tokens: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """Return the row of each token, −1 where the table has none."""
        if len(self._sorted) == 0:
            return np.full(len(tokens), -1, np.int64)
        at = np.minimum(np.searchsorted(self._sorted, tokens), len(self._sorted) - 1)
        return np.where(self._sorted[at] == tokens, self._order[at], -1).astype(np.int64)

    def duplicates(self) -> NDArray[np.int64]:
        """Return the rows whose token an earlier row has already."""
        return np.sort(self._order[1:][self._sorted[1:] == self._sorted[:-1]])


def read_table(
    path: Path, shown: str, fields: Sequence[TableField], findings: Findings, *, limit_bytes: int
) -> dict[str, Any]:  # Any: arrays, or a list of tuples for `tokens`
    """Return the columns of one table by field name; rows that do not fit are reported and left out.

    `shown` is how messages name the file. A file that is missing, too large or no JSON array is reported and gives
    empty columns, or the rows before the break.
    """
    parts: dict[str, list[Any]] = {field.name: [_column([], field)] for field in fields}
    for first, rows in _batches(path, shown, findings, limit_bytes):
        columns = _convert(rows, fields)
        if columns is None:
            rows = [row for number, row in enumerate(rows, first) if _fits(row, fields, shown, number, findings)]
            columns = _convert(rows, fields)
            assert columns is not None, "rows that fit one by one fit together"
        for name, column in columns.items():
            parts[name].append(column)
    joined: dict[str, Any] = {}
    for field in fields:
        pieces = parts.pop(field.name)
        if field.value == "tokens":
            joined[field.name] = [value for piece in pieces for value in piece]
        else:
            joined[field.name] = np.concatenate(pieces[1:] or pieces)
    return joined


class TableReader:
    """Reads the tables of one folder and words what is wrong with their references."""

    def __init__(self, folder: Path, shown: str, findings: Findings, limit_bytes: int) -> None:
        self.findings = findings
        self._folder, self._shown, self._limit = folder, shown, limit_bytes

    def name(self, table: str) -> str:
        return f"{self._shown}/{table}.json"

    def read(self, table: str, *fields: TableField) -> tuple[dict[str, Any], TokenIndex]:
        token = TableField(name="token", value="token")
        columns = read_table(
            self._folder / f"{table}.json", self.name(table), (token, *fields), self.findings, limit_bytes=self._limit
        )
        index = TokenIndex(columns["token"])
        for row in index.duplicates():
            token = columns["token"][row].decode()
            self.findings.add("duplicate", self.name(table), f"row {row}: token {token!r} is used by an earlier row; {DOWNLOAD}")
        return columns, index

    def is_whole(self, table: str) -> bool:
        return self.name(table) not in self.findings.unread

    def has(self, table: str) -> bool:
        return (self._folder / f"{table}.json").exists()

    def follow(
        self,
        table: str,
        columns: dict[str, Any],
        field: str,
        index: TokenIndex,
        target: str,
        *,
        empty: bool = False,
        sensors: NDArray[Any] | None = None,
    ) -> NDArray[np.int64]:
        """Return the rows of `target` that a token column points to; report the dangling ones, keep them as −1."""
        tokens: NDArray[np.bytes_] = columns[field]
        rows = index.rows(tokens)
        broken = rows < 0
        if empty:
            broken &= tokens != b""
        stamps = columns.get("timestamp")
        for row in np.flatnonzero(broken) if self.is_whole(target.removesuffix(".json")) else ():
            self.findings.add(
                "dangling",
                self.name(table),
                f"row {row} ({columns['token'][row].decode()!r}): {field!r} is {tokens[row].decode()!r}, which {target} does not "
                f"hold; {DOWNLOAD}",
                sensor="" if sensors is None else str(sensors[row]),
                stamp_ns=None if stamps is None else int(stamps[row]),
            )
        return rows


def read_poses(reader: TableReader, table: str, columns: dict[str, Any]) -> NDArray[np.float64]:
    """Return (n, 7) poses of a table's translation and rotation, as they are; report rotations that are none."""
    norms = np.linalg.norm(columns["rotation"], axis=1)
    for row in np.flatnonzero(np.abs(norms - 1) > 1e-3):
        reason = (
            f"row {row} ({columns['token'][row].decode()!r}): 'rotation' has length {norms[row]:.4g}, expected a unit quaternion"
        )
        reader.findings.add("json", reader.name(table), f"{reason}; {DOWNLOAD}")
    return np.concatenate([columns["translation"], columns["rotation"]], 1)


def to_stamps(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return int64 ns of microseconds, held as integers or (Lyft) as doubles, which are taken as the decimals they print as."""
    if values.dtype.kind in "iu":
        return values.astype(np.int64) * 1000
    return np.array([int((Decimal(repr(value)) * 1000).to_integral_value()) for value in values.tolist()], np.int64)


def _batches(path: Path, shown: str, findings: Findings, limit_bytes: int) -> Iterator[tuple[int, list[Any]]]:
    batch: list[Any] = []
    number = 0
    try:
        size = path.stat().st_size
        if size > limit_bytes:
            findings.add(
                "json", shown, f"{size} bytes, above the limit of {limit_bytes}; raise table_bytes if this table is meant"
            )
            findings.unread.add(shown)
            return
        for row in json_rows(path):
            batch.append(row)
            number += 1
            if len(batch) == _BATCH_ROWS:
                yield number - len(batch), batch
                batch = []
    except FileNotFoundError:
        findings.add("missing", shown, "no such table; nuScenes needs it, download the metadata archive again")
        findings.unread.add(shown)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        findings.add("json", shown, f"broken JSON after {number} rows: {why}; download the table again")
        findings.unread.add(shown)
    if batch:
        yield number - len(batch), batch


def _fits(row: Any, fields: Sequence[TableField], shown: str, number: int, findings: Findings) -> bool:
    """Say whether one row converts; report the first field that does not."""
    if not isinstance(row, dict):
        findings.add("json", shown, f"row {number} is {type(row).__name__}, expected an object")
        return False
    for field in fields:
        if field.name not in row and not field.optional:
            findings.add("json", shown, f"row {number} ({row.get('token')!r}) has no field {field.name!r}")
            return False
        try:
            _column([row.get(field.name, field.default)], field)
        except (TypeError, ValueError, OverflowError) as error:
            found = repr(row.get(field.name, field.default))[:80]
            findings.add("json", shown, f"row {number} ({row.get('token')!r}): {field.name!r} is {found}; {error}")
            return False
    return True


def _convert(rows: list[Any], fields: Sequence[TableField]) -> dict[str, Any] | None:
    """Return the batch's columns, or None if any row does not fit."""
    try:
        return {
            field.name: _column(
                [row.get(field.name, field.default) for row in rows] if field.optional else [row[field.name] for row in rows],
                field,
            )
            for field in fields
        }
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError):
        return None


def _column(values: list[Any], field: TableField) -> Any:
    if field.value in ("token", "text"):
        if not set(map(type, values)) <= {str}:
            raise ValueError("expected a string")
        encoded = [value.encode() for value in values]
        limit = _TOKEN_BYTES if field.value == "token" else _TEXT_BYTES
        if max(map(len, encoded), default=0) > limit or b"\0" in b"".join(encoded):
            raise ValueError("a string too long, or with a zero character")
        return np.array(encoded, "S") if encoded else np.zeros(0, "S1")
    if field.value == "flag":
        if not set(map(type, values)) <= {bool}:
            raise ValueError("expected true or false")
        return np.array(values, bool)
    if field.value == "tokens":
        if not all(type(value) is list and all(type(item) is str for item in value) for value in values):
            raise ValueError("expected a list of tokens")
        return [tuple(value) for value in values]
    if field.value == "matrix":
        blank = [[math.nan] * 3] * 3
        return _floats([value if value != [] else blank for value in values], (3, 3), finite=False)
    if field.value == "vector":
        return _floats(values, (field.width,), finite=True)
    if not set(map(type, values)) <= {int, float}:
        raise ValueError("expected a number")
    if field.value == "number":
        return _floats(values, (), finite=True)
    array = np.array(values) if values else np.zeros(0, np.int64)
    if field.value == "integer":
        if array.dtype.kind not in "iu" or (array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max):
            raise ValueError("expected an integer")
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf" or not bool(np.all((array > 0) & (array < 9.2e15))):
        raise ValueError("expected microseconds since 1970")
    return to_stamps(array)


def _floats(values: list[Any], shape: tuple[int, ...], *, finite: bool) -> NDArray[np.float64]:
    array = np.array(values) if values else np.zeros((0, *shape))
    if array.dtype.kind not in "iuf" or array.shape[1:] != shape:
        raise ValueError(f"expected numbers of shape {list(shape)}" if shape else "expected a number")
    if finite and not np.isfinite(array).all():
        raise ValueError("expected finite numbers")
    return array.astype(np.float64)
