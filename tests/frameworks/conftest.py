"""One small packed set for all frameworks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loader.drives import write_drives


@pytest.fixture(scope="session")
def frames_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four drives of 6, 7, 8 and 9 frames: 30 items."""
    return write_drives(tmp_path_factory.mktemp("frameworks") / "drives", drives=4, frames=6)
