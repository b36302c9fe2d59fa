"""How commands talk: escaped names, one-line errors, documented exit codes, signals that end cleanly."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import (
    CorruptShard,
    DecodeError,
    HeadwayError,
    MissingExtra,
    NotASet,
    Problem,
    SourceError,
    StalledError,
    StoreError,
    UsageError,
    WorkerDied,
)
from headway.tools.console import human_bytes, human_time, plain, print_error
from headway.tools.exit_codes import ExitCode, exit_code_of


@given(st.text())
def test_nothing_invisible_is_left_in_plain_text(text: str) -> None:
    shown = plain(text)
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode()  # lone surrogates cannot be printed


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_visible_text_stays_as_it_is(text: str) -> None:
    assert plain(text) == text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),
        ("line\nerror: forged", "line\\nerror: forged"),
        ("\U000e0041", "\\U000e0041"),
        ("Zürich 東京", "Zürich 東京"),
    ],
)
def test_hostile_names_are_escaped(name: str, shown: str) -> None:
    assert plain(name) == shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (MissingExtra("ros", "reading bags"), 2),
        (SourceError("x"), 3),
        (CorruptShard("x"), 4),
        (NotASet("x"), 4),
        (DecodeError("x"), 4),
        (StoreError("x"), 5),
        (PermissionError(errno.EACCES, "no"), 5),
        (StalledError("x"), 6),
        (WorkerDied("x"), 6),
        (OSError(errno.ENOSPC, "full"), 8),
        (OSError(errno.EDQUOT, "quota"), 8),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError(), 1),
        (HeadwayError("x"), 1),
    ],
)
def test_exit_codes_are_those_documented(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code
    assert code in set(ExitCode)


def test_a_full_disk_is_told_from_whatever_wraps_it() -> None:
    wrapped = StoreError("cannot write shard")
    wrapped.__cause__ = OSError(errno.ENOSPC, "full")
    assert exit_code_of(wrapped) == ExitCode.NO_SPACE


def test_every_problem_is_printed_and_none_can_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [Problem(path=f"f{number}", reason="is missing") for number in range(100)]
    problems.append(Problem(path="x\nerror: forged", reason="is\x07 odd", sensor="CAM", stamp_ns=7))
    print_error(SourceError("cannot pack", problems))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 102
    assert lines[-1] == "  x\\nerror: forged (sensor 'CAM', stamp 7): is\\x07 odd"


def test_only_a_bug_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(CorruptShard("shard 'a' is damaged; run `headway verify`"))
    assert capsys.readouterr().err == "error: shard 'a' is damaged; run `headway verify`\n"
    print_error(OSError(errno.ENOSPC, "No space left on device", "/sets/a"))
    assert capsys.readouterr().err.count("\n") == 1
    print_error(ZeroDivisionError("division by zero"))
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.50 kB"), (256_000_000, "256 MB"), (12_345_678_901, "12.3 GB")]
)
def test_bytes_are_shown_with_three_digits(count: int, shown: str) -> None:
    assert human_bytes(count) == shown


def test_times_are_shown_in_the_unit_that_fits() -> None:
    assert (human_time(4.21), human_time(200), human_time(3900)) == ("4.2 s", "3 min 20 s", "1 h 05 min")


WAITER = """
import sys, threading, typer
from headway.tools.console import run_app
app = typer.Typer()
@app.command()
def wait():
    try:
        print("ready", flush=True)
        threading.Event().wait(60)
    finally:
        print("cleaned up", flush=True)
run_app(lambda: app, "wait", [])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_commands_cleanly(number: signal.Signals, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        out, err = child.communicate(timeout=30)
    assert child.returncode == code
    assert out == "cleaned up\n"
    assert err.startswith(f"interrupted ({number.name})")
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_bug(tiny_set: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "headway.tools.main", "show", str(tiny_set), "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert done.returncode == ExitCode.BROKEN_PIPE
    assert "Traceback" not in done.stderr
