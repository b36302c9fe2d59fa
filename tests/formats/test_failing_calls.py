"""Whatever system call fails while a set is packed, and with whatever error: no half set, nothing left over, the next run works.

strace lets the n-th call of a kind fail, for real. A program that has loaded everything forks one packer a try; each first wastes
calls, so that one attachment, which counts to a fixed number in every process, serves all n.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.formats import PackOptions, ShardKind
from tests.formats.test_packer import tree

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("strace") is None or platform.machine() != "x86_64",
        reason="needs strace, and the names that calls have on x86-64",
    ),
]

COUNT = 2000
CALLS = ("openat", "write", "writev", "fsync", "rename", "close", "mkdir")
ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EMFILE", "EACCES")
DONE, FAILED = 0, {5, 8}
OPTIONS = PackOptions(workers=1, shard_bytes=9_000)
PROGRAM = f"""
import os, sys
from dataclasses import replace
from headway.formats import HeadwayError, pack
from tests.formats.ramp import ramp_spec
from tests.formats.test_failing_calls import OPTIONS
WASTE = {{
    "openat": lambda: os.open("", 0), "write": lambda: os.write(-1, b""), "writev": lambda: os.writev(-1, [b"x"]),
    "fsync": lambda: os.fsync(9999), "rename": lambda: os.rename("", ""), "close": lambda: os.close(-1),
    "mkdir": lambda: os.mkdir(""),
}}
def attempt(place, call, number):
    for _ in range({COUNT} - number if number else 0):
        try:
            WASTE[call]()
        except OSError:
            pass
    try:
        pack(ramp_spec(drives=2), place, replace(OPTIONS, format=sys.argv[1]))
    except HeadwayError as error:
        return error.exit_code
    return 0
attempt(sys.argv[2], "-", 0)
print("ready", flush=True)
for line in sys.stdin:
    place, call, number = line.split()
    child = os.fork()
    if child == 0:
        try:
            code = attempt(place, call, int(number))
        except BaseException as error:
            sys.stderr.write(repr(error))
            code = 99
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Packer:
    """The program, and what strace does to the packers it forks."""

    def __init__(self, place: Path, kind: ShardKind) -> None:
        self.place = place
        command = [sys.executable, "-c", PROGRAM, kind, str(place / "warm")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer() == "ready"
        self.wanted = tree(place / "warm")

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def attempt(self, place: Path, call: str, number: int) -> int:
        """Pack into `place`; the call that strace counts to is the `number`-th of its kind. Return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{place} {call} {number}\n")
        self.process.stdin.flush()
        return int(self._answer())

    @contextmanager
    def traced(self, *options: str) -> Iterator[Path]:
        """Have strace attached, and its record in the file yielded."""
        record = self.place / "record"
        command = ["strace", "-f", "-o", str(record), *options, "-p", str(self.process.pid)]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if "attached" not in said:
            tracer.wait(10)
            pytest.skip(f"strace may not attach here: {said.strip()}")
        try:
            yield record
        finally:
            tracer.terminate()
            tracer.communicate(timeout=30)

    def counts(self) -> dict[str, int]:
        """Return how many calls of each kind one packing makes."""
        with self.traced("-e", f"trace={','.join(CALLS)}") as record:
            assert self.attempt(self.place / "counted", "-", 0) == DONE
        lines = record.read_text().splitlines()
        child = max({line.split()[0] for line in lines}, key=int)
        names = [found[1] for line in lines if (found := re.match(rf"{child}\s+(\w+)\(", line))]
        return {call: names.count(call) for call in CALLS}

    def fail(self, call: str, error: str, numbers: range) -> int:
        """Let each of the numbered calls fail; return how often one did."""
        with self.traced("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={COUNT}") as record:
            for number in numbers:
                place = self.place / f"{call}-{error}-{number}"
                code = self.attempt(place, call, number)
                what = f"{call} {number} {error}: exit code {code}"
                if code == DONE:
                    assert tree(place) == self.wanted, what
                else:
                    assert code in FAILED, what
                    assert not place.exists(), what
        for number in numbers[:: max(1, len(numbers) // 2)]:
            place = self.place / f"{call}-{error}-{number}"
            if not place.exists():
                assert self.attempt(place, "-", 0) == DONE
                assert tree(place) == self.wanted
        return record.read_text().count("(INJECTED)")

    def close(self) -> None:
        """End the program."""
        self.process.communicate(timeout=60)


@pytest.fixture(params=["arrow", "tar"])
def packer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packer]:
    program = Packer(tmp_path, request.param)
    yield program
    program.close()
    assert program.process.returncode == 0


def test_a_sample_of_failing_calls(packer: Packer) -> None:
    injected = 0
    for at, (call, count) in enumerate(packer.counts().items()):
        assert count > 0
        injected += packer.fail(call, ERRORS[at % len(ERRORS)], range(1, count + 1, max(1, count // 3)))
    assert injected > 18


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_every_failing_call(packer: Packer) -> None:
    counts = packer.counts()
    injected = sum(packer.fail(call, error, range(1, counts[call] + 1)) for call in CALLS for error in ERRORS)
    print(f"{injected} calls failed: {counts}")
    assert injected > 5 * sum(counts.values()) * 0.9
