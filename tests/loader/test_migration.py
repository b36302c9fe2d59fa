"""The migration page: each headway block runs as it stands, and none is longer than fifteen lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headway.formats.adapters import SourceSpec
from headway.formats.pack_options import PackOptions
from headway.formats.packer import pack
from headway.tools.synthetic import TINY, write_nuscenes

PAGE = (Path(__file__).resolve().parents[2] / "loader/MIGRATION.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n# (before|headway)\n(.*?)```", PAGE, re.DOTALL)
AFTER = [code for kind, code in BLOCKS if kind == "headway"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a packed set called as on the page."""
    made = tmp_path_factory.mktemp("migration")
    source = write_nuscenes(made / "source", drives=1, seconds=2.0, detail=TINY)
    pack(SourceSpec(kind="nuscenes", path=str(source)), made / "drives", PackOptions(workers=1))
    return made


def test_every_before_has_its_headway_within_fifteen_lines() -> None:
    assert [kind for kind, _ in BLOCKS] == ["before", "headway"] * 6
    assert max(len(code.strip().splitlines()) for _, code in BLOCKS) <= 15


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("code", AFTER)
def test_headway_blocks_run_as_shown(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, rank: int) -> None:
    """webdataset/webdataset#194: what the pages told ranks to call was not there any more."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    trained: list[Any] = []
    names = {"train": lambda *parts: trained.append(parts), "samples": list(range(10)), "resuming": False, "checkpoint": {}}
    exec(compile(code, "MIGRATION.md", "exec"), names)  # noqa: S102  our own page
    assert trained
