"""`headway doctor` on this machine: what it says is so, and it never fails for being told bad news."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headway.formats import kernel
from headway.tools.doctor import findings

from .conftest import Runner


def test_json_is_one_object_with_what_is_active(run: Runner) -> None:
    ran = run("headway", "doctor", "--no-gpu", "--json")
    assert ran.code == 0
    found = {each["name"]: each for each in json.loads(ran.out)["findings"]}
    assert set(found) >= {"native core", "image decoder", "cores", "/dev/shm", "open files", "huge pages", "cache", "extras"}
    assert (found["native core"]["state"] == "ok") is kernel.available()
    assert found["image decoder"]["found"].startswith("native" if kernel.available() else "portable")
    assert f"of {os.cpu_count()} visible" in found["cores"]["found"]


def test_every_slow_path_has_a_remedy() -> None:
    assert all(each.remedy for each in findings(gpu=False) if each.state == "slow")


def test_a_machine_without_a_cache_is_advised_and_no_error(run: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    ran = run("headway", "doctor", "--no-gpu")
    assert ran.code == 0
    assert "XDG_CACHE_HOME" in ran.out
    assert "could be faster" in ran.err


@pytest.mark.slow
def test_gpu_decoders_are_listed_with_the_reason(run: Runner) -> None:
    ran = run("headway", "doctor")
    assert ran.code == 0
    assert "decode: portable" in ran.out
