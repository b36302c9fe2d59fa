"""Names that come from data cannot move a cursor, hide text or forge a line, whatever prints them (reliability S9)."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from headway.formats.adapters import SourceSpec
from headway.formats.pack_options import PackOptions
from headway.formats.packer import pack
from headway.tools.pack_dataset import _facts, _print

from .conftest import Runner
from .hostile_source import DRIVE

pytestmark = pytest.mark.slow


def _clean(text: str) -> bool:
    hidden = {unicodedata.category(char) for char in text.replace("\n", "")} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return not hidden and not any(line.startswith("error: forged") for line in text.splitlines())


def test_no_command_lets_hostile_names_through(
    run: Runner, tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = SourceSpec(kind="tests.tools.hostile_source:open_source", path=str(tiny_source))
    done = pack(spec, tmp_path / "set", PackOptions(workers=1))
    _print(done, _facts(done, 1, 1.0), list_ignored=True)
    printed = capsys.readouterr().out
    assert "\\u202e" in printed
    assert _clean(printed)
    for arguments in (
        ["show", tmp_path / "set"],
        ["show", tmp_path / "set", "--json"],
        ["show", tmp_path / "set", DRIVE],
        ["show", tmp_path / "set", DRIVE, 0],
        ["show", tmp_path / "set", DRIVE, 99],
        ["show", tmp_path / "set", DRIVE[:-1]],
        ["verify", tmp_path / "set"],
        ["merge", tmp_path / "set", tmp_path / "set", tmp_path / "two"],
        ["plan", tmp_path / "set", "--steps", "0:1"],
        ["show", tmp_path / "set", DRIVE, 0, "--png", tmp_path / "a.png"],
    ):
        ended = run("headway", *arguments)
        assert _clean(ended.out), (arguments[0], ended.out)
        assert _clean(ended.err), (arguments[0], ended.err)
