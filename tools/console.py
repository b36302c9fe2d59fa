"""How commands talk: plain lines on stdout, progress and errors on stderr, one exit code, signals turned into clean ends.

Names that come from data are escaped before they reach a terminal, so that no drive or file name can move the cursor, hide
text or forge a line. Errors headway raises on purpose are one clear line; only a bug shows its traceback.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from ..formats import HeadwayError, SourceError, StalledError, WorkerDied
from .exit_codes import ExitCode, exit_code_of

if TYPE_CHECKING:
    import typer

__all__ = ["Interrupted", "human_bytes", "human_time", "plain", "print_error", "report", "run_app", "say"]

_LISTED = 10_000
# Categories of characters that show as something else than themselves: controls, formats (bidi, zero width), surrogates,
# line and paragraph separators.
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM; raised in the main thread so that every `with` and `finally` on the way out still runs."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def plain(text: object) -> str:
    """Return `str(text)` with every control, bidi and other invisible character escaped."""
    return "".join(_escape(char) if unicodedata.category(char) in _HIDDEN else char for char in str(text))


def _escape(char: str) -> str:
    code = ord(char)
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def say(line: str = "") -> None:
    """Print one line of results to stdout; ends the command when nobody reads it any more."""
    try:
        print(line)
    except BrokenPipeError:
        raise SystemExit(_reader_gone()) from None


def report(line: str) -> None:
    """Print one line about the work (not its result) to stderr."""
    print(line, file=sys.stderr, flush=True)


def print_error(error: BaseException) -> None:
    """Explain `error` on stderr: one line, plus the list of problems or the stacks where the error carries them."""
    if isinstance(error, SourceError):
        report(f"error: {plain(error.message)}")
        for problem in error.problems[:_LISTED]:
            report(f"  {plain(problem)}")
        if len(error.problems) > _LISTED:
            report(f"  … and {len(error.problems) - _LISTED} more")
    elif isinstance(error, StalledError | WorkerDied):
        report("error: " + "\n".join(plain(line) for line in str(error).splitlines()))
    elif isinstance(error, HeadwayError):
        report(f"error: {plain(error)}")
    elif isinstance(error, OSError):
        report(f"error: {plain(error)}{_remedy(error)}")
    else:
        report("internal error, a bug in headway; please report it with these lines:")
        report("\n".join(plain(line) for line in "".join(traceback.format_exception(error)).splitlines()))


def _remedy(error: OSError) -> str:
    if exit_code_of(error) == ExitCode.NO_SPACE:
        return "; make room on that disk and run the command again"
    if isinstance(error, PermissionError):
        return "; check who owns it and its permissions"
    if isinstance(error, FileNotFoundError):
        return "; check the path"
    return ""


def run_app(build: Callable[[], typer.Typer], prog: str, argv: Sequence[str]) -> NoReturn:
    """Build a typer app, run it and exit: the one place where errors and signals become exit codes."""
    sys.exit(_outcome(lambda: build()(list(argv), prog_name=prog)))


def _outcome(command: Callable[[], object]) -> int:
    """Return the exit code of `command`, having explained whatever went wrong."""
    received: list[int] = []
    try:
        with _signals(received):
            try:
                command()
                code = int(ExitCode.OK)
            except SystemExit as ending:
                code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except Exception as error:
        print_error(error)
        code = exit_code_of(error)
    if received:
        # typer turns an interrupt into an exit code of its own before it gets here.
        report(f"interrupted ({signal.Signals(received[0]).name}); nothing half-written is left")
        return 128 + received[0]
    return code


def _reader_gone() -> int:
    # The interpreter flushes stdout once more at exit; without a new target that would print a second error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.BROKEN_PIPE


@contextmanager
def _signals(received: list[int]) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into one `Interrupted`; a second one, while cleaning up, is the default action."""

    def handle(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        raise Interrupted(signum)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def human_bytes(count: float) -> str:
    """Return "1.53 GB": decimal units, three digits."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5 or unit == "TB":
            break
        count /= 1000
    if unit == "B":
        return f"{count:.0f} B"
    return f"{count:.{0 if abs(count) >= 100 else 1 if abs(count) >= 10 else 2}f} {unit}"


def human_time(seconds: float) -> str:
    """Return "4.2 s", "3 min 20 s" or "1 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
