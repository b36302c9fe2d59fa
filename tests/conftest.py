"""What all tests share: the real samples (or the reason why they are missing) and the two hypothesis profiles."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

# "test": the same examples each run, so that `make test` neither flakes nor grows. "full": fresh ones, before a release.
hypothesis.settings.register_profile("test", max_examples=40, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile(
    "full", max_examples=2000, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile by what is run: `-m full` means the release run."""
    hypothesis.settings.load_profile("full" if config.option.markexpr == "full" else "test")
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # started in the background of a script; programs under test would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the real samples; tests that ask for it are skipped, with the reason, where it is missing."""
    value = os.environ.get("HEADWAY_REAL_DATA", "")
    if not value:
        pytest.skip("HEADWAY_REAL_DATA is not set: the real samples are not part of the repository")
    folder = Path(value)
    if not folder.is_dir():
        pytest.skip(f"HEADWAY_REAL_DATA names {value!r}, which is no folder")
    return folder.resolve()


@pytest.fixture(scope="session")
def real_nuscenes(real_data: Path) -> Path:
    """The real nuScenes keyframe: v1.0-mini tables with six cameras and one sweep."""
    folder = real_data / "nuscenes"
    if not folder.is_dir():
        pytest.skip(f"no nuscenes folder under HEADWAY_REAL_DATA ({real_data})")
    return folder
