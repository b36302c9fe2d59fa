"""Manifests that are intact but not what a manifest holds are refused with a typed error."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import Limits, Manifest, SetError, pack
from headway.formats.manifest import parse_json
from tests.formats.ramp import ramp_spec


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The body of a real manifest, as plain JSON data."""
    manifest = pack(ramp_spec(drives=2, frames=1), tmp_path_factory.mktemp("manifest") / "set").manifest
    plain: dict[str, Any] = json.loads(manifest.encode())["body"]
    return plain


def sealed(body: bytes) -> bytes:
    """Wrap a body with the digest that vouches for it."""
    return b'{"body":' + body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


CHANGES: list[tuple[str, Any]] = [
    ("shards.0.name", "../../etc/passwd-00000000"),
    ("shards.0.name", "shard-00000-000-00000000"),
    ("shards.0.kind", "zip"),
    ("shards.0.frames", 99),
    ("shards.0.data.bytes", -1),
    ("shards.0.data.sha256", "zz"),
    ("drives.0.parts.0.shard", 7),
    ("drives.0.parts.0.rows", [1]),
    ("drives.0.parts.0.frames", True),
    ("drives.0.name", "drive-1"),
    ("drives.0.name", "DRIVE-1"),
    ("drives.0.attributes", {"nested": {}}),
    ("drives.0.attachments", [{}]),
    ("sensors", {}),
    ("set_id", "abc"),
    ("licence", 5),
    ("schema", []),
    ("schema.reference", "nothing"),
    ("schema.sensors.0.kind", "video"),
    ("schema.sensors.0.columns", [{"name": "x", "dtype": "object"}]),
]


@pytest.mark.parametrize(("path", "value"), CHANGES)
def test_what_a_manifest_may_not_hold_is_refused(path: str, value: object, body: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(body))
    *parents, last = path.split(".")
    at = changed
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[last] = value
    with pytest.raises(SetError):
        Manifest.decode(sealed(json.dumps(changed).encode()))


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":1,"a":2}', '{"a":NaN}', "1" * 100, '{"a":' * 40 + "1" + "}" * 40, "{", "\xff", ""],
)
def test_json_is_read_strictly(text: str) -> None:
    with pytest.raises(SetError):
        parse_json(text.encode("latin-1"), "a file")


def test_json_above_the_limit_is_refused_unread() -> None:
    with pytest.raises(SetError, match=r"Limits\.manifest_bytes"):
        parse_json(b" " * 100, "a file", Limits(manifest_bytes=10))


@given(st.binary(max_size=300))
def test_any_bytes_give_a_typed_error(data: bytes) -> None:
    for candidate in (data, sealed(data)):
        with pytest.raises(SetError):
            Manifest.decode(candidate)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_json_gives_a_typed_error(plain: object) -> None:
    for candidate in (plain, {"format": 0, "schema": plain}):
        with pytest.raises(SetError):
            Manifest.decode(sealed(json.dumps(candidate).encode()))


def test_a_manifest_round_trips(tmp_path: Path) -> None:
    manifest = pack(ramp_spec(drives=2, frames=1), tmp_path / "set").manifest
    again = Manifest.decode(manifest.encode())
    assert again == manifest
    assert again.encode() == manifest.encode() == (tmp_path / "set" / "manifest.json").read_bytes()
