"""An environment for each peer: a virtual environment in the cache, made on demand, holding the peer, torch and the decoders.

Peers pin different versions of the same libraries; one environment for all would measure none as its users run it. headway's own
rows run in the environment this process runs in.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from ..formats import UsageError
from .peers.contract import BASE_REQUIREMENTS, Peer

__all__ = ["environment_of", "peer_path"]

_PIP_S = 1800.0


def peer_path() -> Path:
    """Return the folder that holds the package `peers`, for PYTHONPATH of a peer's process."""
    return Path(__file__).resolve().parent


def environment_of(peer: Peer, cache: Path, *, say: Callable[[str], None]) -> Path:
    """Return the Python of the peer's environment, making it first where it is not there.

    Raises:
        UsageError: the environment cannot be installed; the message ends with pip's last lines.
    """
    if peer.name == "headway":
        return Path(sys.executable)
    wanted = (*BASE_REQUIREMENTS, *peer.requirements)
    digest = hashlib.sha256("\n".join((sys.version, *wanted)).encode()).hexdigest()[:12]
    place = cache / digest  # peers that need the same share one
    python = place / "bin" / "python"
    if (place / "ready").exists():
        return python
    say(f"installing {peer.name}: {', '.join(peer.requirements) or 'torch only'}")
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_PIP_S, env={**os.environ, "PIP_NO_INPUT": "1"}
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"cannot install {peer.name}: pip took longer than {_PIP_S:.0f} s") from error
    if done.returncode:
        raise UsageError(f"cannot install {peer.name}: {_last_lines(done.stderr)}")
    (place / "ready").touch()
    return python


def _last_lines(text: str, count: int = 3) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return " / ".join(lines[-count:])
