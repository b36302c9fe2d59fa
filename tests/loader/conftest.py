"""What the loader's tests share: a packed set of small drives, and every decoder that this installation has."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.formats import kernel
from headway.loader.decode import Decoder, PortableDecoder
from headway.loader.native_decode import NativeDecoder

from .drives import write_drives


@pytest.fixture(scope="session")
def drives_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three packed drives of 5, 6 and 7 frames."""
    return write_drives(tmp_path_factory.mktemp("loader") / "drives")


@pytest.fixture(scope="session")
def broken_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with the first two images of CAM_BACK undecodable from the start."""
    return write_drives(tmp_path_factory.mktemp("loader") / "broken", broken=2)


@pytest.fixture(params=["portable", "native"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """Each decoder in turn."""
    if request.param == "portable":
        return PortableDecoder()
    if not kernel.available():
        pytest.skip("the native core is not built here")
    return NativeDecoder()
