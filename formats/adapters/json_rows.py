"""The elements of one large JSON array, one at a time, from a buffer of a few megabytes.

Nothing is kept: a table of gigabytes costs the memory of its longest row. What is not strictly a JSON array in UTF-8 raises
`ValueError` at the element where it stops being one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["json_rows"]

_READ_BYTES: Final = 4 << 20
_ROW_CHARACTERS: Final = 4 << 20
"""Longest element taken: nuScenes' map.json lists every log in one row, all other rows stay below a kilobyte."""


def json_rows(path: Path) -> Iterator[Any]:  # Any: whatever JSON value an element is
    """Yield the elements of the JSON array in a file; raise ValueError where it breaks."""
    scan = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode
    decode = codecs.getincrementaldecoder("utf-8")().decode
    skip = re.compile(r"[ \t\r\n]*").match
    wanted = "["  # what may come next: "[", a value (""), a value or "]" ("]"), or a comma or "]" (",]")
    with path.open("rb") as file:
        text, at, ended = "", 0, False
        while True:
            space = skip(text, at)
            at = space.end() if space else at
            failure = "nothing follows"
            if at < len(text):
                mark = text[at]
                if mark == "]" and wanted in (",]", "]"):
                    break
                if wanted in ("", "]"):
                    try:
                        value, at = scan(text, at)
                    except json.JSONDecodeError as error:
                        failure = error.msg
                    else:
                        wanted = ",]"
                        yield value
                        continue
                elif mark not in wanted:
                    raise ValueError(f"expected {' or '.join(map(repr, wanted))}, found {text[at : at + 20]!r}")
                else:
                    at, wanted = at + 1, "]" if mark == "[" else ""
                    continue
            if ended:
                raise ValueError(f"the file ends early ({failure})")
            if len(text) - at > _ROW_CHARACTERS:
                raise ValueError(f"no complete row within {_ROW_CHARACTERS} characters ({failure})")
            chunk = file.read(_READ_BYTES)
            ended = not chunk
            text, at = text[at:] + decode(chunk, final=ended), 0
        tail = text[at + 1 :] + decode(file.read(64))
        if tail.strip():
            raise ValueError(f"text after the closing bracket: {tail.strip()[:20]!r}")


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")
