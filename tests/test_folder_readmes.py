"""Each folder's README is a map: at most 80 lines, every file named, nothing named that is not there."""

from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest

from .source_tree import FOLDERS, ROOT


def _named(folder: str) -> set[str]:
    return set(re.findall(r"`([\w*/.]+(?:\.py|/))`", (ROOT / folder / "README.md").read_text("utf-8")))


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_map_is_one_page(folder: str) -> None:
    assert len((ROOT / folder / "README.md").read_text("utf-8").splitlines()) <= 80


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_is_on_the_map(folder: str) -> None:
    named = _named(folder)
    files = {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py"}
    folders = {f"{path.parent.name}/" for path in (ROOT / folder).glob("*/__init__.py")} - {"headway/"}
    missing = sorted(name for name in files | folders if not any(fnmatch(name, pattern) for pattern in named))
    assert not missing, f"{folder}/README.md does not name {missing}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_map_names_nothing_that_is_gone(folder: str) -> None:
    gone = [
        name for name in _named(folder) if "*" not in name and not any((base / name).exists() for base in (ROOT, ROOT / folder))
    ]
    allowed = {"KIND.py", "formats/adapters/KIND.py", "registry.py"}
    assert not sorted(set(gone) - allowed), f"{folder}/README.md names {gone}"
