"""Installing without what the native core needs: the build goes on and says why in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(folder / "lib"),
        "--build-temp",
        str(folder / "tmp"),
    ]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, env={**os.environ, **environment}, check=False
    )


@pytest.mark.slow
def test_a_missing_compiler_is_one_line_not_a_failure(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    done = build(tmp_path, CC="false", HEADWAY_NATIVE="")
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("headway:")]
    assert len(lines) == 1
    assert "native core not built" in lines[0]
    assert "libjpeg-dev" in lines[0]
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.slow
def test_whoever_insists_gets_the_error(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    assert build(tmp_path, CC="false", HEADWAY_NATIVE="1").returncode != 0
    left_out = build(tmp_path, HEADWAY_NATIVE="0")
    assert left_out.returncode == 0
    assert "HEADWAY_NATIVE=0" in left_out.stderr
