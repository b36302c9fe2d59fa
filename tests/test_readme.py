"""The README's promises: its example runs as shown, in one process and on two ranks, and everything it links to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway.formats.adapters import SourceSpec
from headway.formats.pack_options import PackOptions
from headway.formats.packer import pack
from headway.tools.synthetic import TINY, write_nuscenes

from .source_tree import ROOT

README = (ROOT / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def after_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `make demo` might have run, and the example as train.py."""
    folder = tmp_path_factory.mktemp("readme")
    source = write_nuscenes(folder / "demo/drives", drives=1, seconds=3.0, detail=TINY)
    pack(SourceSpec(kind="nuscenes", path=str(source)), folder / "demo/set", PackOptions(workers=1))
    (folder / "train.py").write_text(example(), "utf-8")
    return folder


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert isinstance(code, str)
    return code


def test_the_example_is_about_twenty_lines() -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= 24


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [[], ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]]
)
def test_the_example_runs_as_shown(after_demo: Path, launcher: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *launcher, "train.py"], cwd=after_demo, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\d+ samples/s, [\d.]+ s of input ready ahead$", done.stdout, re.MULTILINE)) == (2 if launcher else 1)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_the_picture_is_small() -> None:
    assert (ROOT / "tools/overview.jpg").stat().st_size <= 400_000


def test_commands_named_in_the_readme_exist() -> None:
    from typer.main import get_command

    from headway.tools.main import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]  # a group, by construction
    assert set(re.findall(r"^    headway (\w+)", README, re.MULTILINE)) <= known
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make (\w+)", README)) <= targets
