"""Golden sets of each released format version stay readable, with every value as it was when they were frozen.

`tests/golden/v<N>/<kind>/` holds a set, and `tests/golden/v<N>/<kind>.sha256` the digest of everything read from it then.
They are added once, at the release of a version, and never regenerated. Version 0 was never released and has none.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headway.formats import UnsupportedFormat, open_set, pack, verify_set
from headway.formats.manifest import FORMAT_VERSION, Manifest
from tests.formats.ramp import ramp_spec
from tests.laws.test_sets import read_all

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("version", list(range(1, FORMAT_VERSION + 1)))
def test_every_released_version_has_golden_sets(version: int) -> None:
    kinds = sorted(path.stem for path in (GOLDEN / f"v{version}").glob("*.sha256"))
    assert kinds == ["arrow", "tar"]
    for kind in kinds:
        location = GOLDEN / f"v{version}" / kind
        assert verify_set(location).ok
        with open_set(location) as packed:
            assert read_all(packed) == location.with_suffix(".sha256").read_text().strip()


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    manifest = pack(ramp_spec(drives=1, frames=1), tmp_path / "set").manifest
    body = manifest.encode()[8:-78].replace(b'"format":0', b'"format":9')
    data = b'{"body":' + body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    with pytest.raises(UnsupportedFormat, match="version 9"):
        Manifest.decode(data)
    known = body.replace(b'"format":9', b'"format":0,"later":{"x":1}')
    data = b'{"body":' + known + b',"sha256":"' + hashlib.sha256(known).hexdigest().encode() + b'"}\n'
    assert Manifest.decode(data) == manifest
