"""A ramp source whose reader is killed in one drive: the first time it is opened there, or, by its path, every time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from headway.formats import SourceDrive
from headway.formats.adapters import SourceSpec
from tests.formats.ramp import Ramp

_MARKS: dict[int, Path] = {}


def open_source(spec: SourceSpec) -> Ramp:
    """Open it; `spec.path` is the file that says it died."""
    source = _Dying()
    _MARKS[id(source)] = Path(spec.path)
    return source


class _Dying(Ramp):
    def open_drive(self, name: str) -> SourceDrive:
        mark = _MARKS[id(self)]
        if name == "drive-1" and (not mark.exists() or mark.suffix == ".die-always"):
            mark.write_text("died")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().open_drive(name)
