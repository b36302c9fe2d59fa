"""`import headway` costs nothing: a fresh interpreter loads no torch, CUDA, DALI, Ray or other heavy library for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "cv2",
    "pyarrow",
    "ray",
    "nvidia",
    "numpy",
    "triton",
    "obstore",
    "av",
    "matplotlib",
    "simplejpeg",
    "typer",
    "rich",
}
# Typing a command wrong, or asking for help, must not wait for torch either.
LIGHT_COMMANDS = ("headway.tools.main", "headway.tools.pack_dataset")


def _loaded(statement: str) -> set[str]:
    code = f"import sys, json; {statement}; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_import_headway_loads_nothing_heavy() -> None:
    assert not _loaded("import headway") & HEAVY
    assert not _loaded("import headway; dir(headway)") & HEAVY


@pytest.mark.slow
@pytest.mark.parametrize("module", LIGHT_COMMANDS)
def test_the_command_line_starts_without_torch(module: str) -> None:
    assert not _loaded(f"import {module}") & {"torch", "ray", "nvidia", "triton"}


@pytest.mark.slow
def test_formats_need_no_torch() -> None:
    assert "torch" not in _loaded("import headway.formats")
