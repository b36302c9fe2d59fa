"""Filters as people type them: `drive.location == 'boston' and frame >= 10` becomes a pyarrow.compute expression.

The text is parsed, never run: comparisons, `in [..]`, `and`, `or`, `not`, numbers, text, true and false, and the names of
frame facts. Names that are no Python names are written in backquotes: `` `LIDAR TOP.speed` ``.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..formats import UsageError

__all__ = ["parse_where"]

_MAX_LENGTH: Final = 10_000
_QUOTED: Final = re.compile(r"`([^`]+)`")
_COMPARE: Final = {
    ast.Eq: "__eq__",
    ast.NotEq: "__ne__",
    ast.Lt: "__lt__",
    ast.LtE: "__le__",
    ast.Gt: "__gt__",
    ast.GtE: "__ge__",
}

Expression = Any  # Any: pyarrow is untyped


def parse_where(text: str) -> Expression:
    """Return the expression that `text` means."""
    if len(text) > _MAX_LENGTH:
        raise UsageError(f"the filter is {len(text)} characters long, {_MAX_LENGTH} are the most; list frames in Python instead")
    quoted: list[str] = []

    def keep(match: re.Match[str]) -> str:
        quoted.append(match[1])
        return f" __quoted_{len(quoted) - 1}__ "

    try:
        tree = ast.parse(_QUOTED.sub(keep, text).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refused(text, f"it cannot be parsed ({error})") from error
    try:
        return _Reader(text, quoted).read(tree.body)
    except RecursionError as error:
        raise _refused(text, "it is nested too deeply") from error
    except (pa.ArrowException, TypeError) as error:
        raise _refused(text, str(error)) from error


class _Reader:
    def __init__(self, text: str, quoted: list[str]) -> None:
        self._text, self._quoted = text, quoted

    def read(self, node: ast.expr) -> Expression:
        """Return the expression of a condition."""
        if isinstance(node, ast.BoolOp):
            parts = [self.read(value) for value in node.values]
            whole = parts[0]
            for part in parts[1:]:
                whole = whole & part if isinstance(node.op, ast.And) else whole | part
            return whole
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.read(node.operand)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.Name | ast.Attribute):
            return pc.field(self._name(node))
        raise self._wrong(node)

    def _comparison(self, node: ast.Compare) -> Expression:
        whole, left = None, node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn):
                part = self._side(left).isin(self._list(right))
                part = ~part if isinstance(operator, ast.NotIn) else part
            elif type(operator) in _COMPARE:
                part = getattr(self._side(left), _COMPARE[type(operator)])(self._side(right))
            else:
                raise self._wrong(node)
            whole, left = part if whole is None else whole & part, right
        return whole

    def _side(self, node: ast.expr) -> Expression:
        if isinstance(node, ast.Name | ast.Attribute):
            name = self._name(node)
            return pc.scalar(name == "true") if name in ("true", "false") else pc.field(name)
        return pc.scalar(self._value(node))

    def _list(self, node: ast.expr) -> list[object]:
        if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
            raise self._wrong(node)
        return [self._value(item) for item in node.elts]

    def _value(self, node: ast.expr) -> object:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand)
            if isinstance(value, int | float):
                return -value
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool):
            return node.value
        raise self._wrong(node)

    def _name(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._name(node.value)}.{node.attr}"
        if isinstance(node, ast.Name):
            match = re.fullmatch(r"__quoted_(\d+)__", node.id)
            return node.id if match is None else self._quoted[int(match[1])]
        raise self._wrong(node)

    def _wrong(self, node: ast.expr) -> UsageError:
        return _refused(self._text, f"{ast.unparse(node)[:100]!r} is no comparison of frame facts")


def _refused(text: str, why: str) -> UsageError:
    return UsageError(
        f"cannot read the filter {text[:200]!r}: {why}; write for example: drive == 'scene-0061' and frame >= 10, or "
        "drive.location in ['boston', 'singapore'] and not drive.night"
    )
