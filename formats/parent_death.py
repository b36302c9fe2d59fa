"""Processes that end with the one that started them, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends; end now if process `parent` is gone already.

    Only Linux has such a signal. One that was asked for after the parent's death never comes, hence the second look.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
