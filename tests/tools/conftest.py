"""A tiny synthetic source and its set, made once, and the two commands run in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.formats.adapters import SourceSpec
from headway.formats.pack_options import PackOptions
from headway.formats.packer import pack
from headway.tools import main as headway_command
from headway.tools import pack_dataset
from headway.tools.synthetic import TINY, write_nuscenes


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


Runner = Callable[..., Ran]


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One synthetic drive of 2 s with 160×90 images: five frames, 96 sweeps and images a second."""
    return write_nuscenes(tmp_path_factory.mktemp("source") / "drives", drives=1, seconds=2.0, detail=TINY)


@pytest.fixture(scope="session")
def tiny_set(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny source, packed."""
    target = tmp_path_factory.mktemp("set") / "set"
    pack(SourceSpec(kind="nuscenes", path=str(tiny_source)), target, PackOptions(workers=1))
    return target


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    """Run `headway …` or `pack-dataset …` here, and return exit code and output."""

    def command(program: str, *arguments: object) -> Ran:
        capsys.readouterr()
        main = {"headway": headway_command.main, "pack-dataset": pack_dataset.main}[program]
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ran(ended.value.code, captured.out, captured.err)

    return command
