"""PCL's own PCD files, read as pypcd4 reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headway.formats.pcd import read_pcd

pytestmark = pytest.mark.real


def test_every_sample_has_its_points_fields_and_nan(real_data: Path) -> None:
    pypcd4 = pytest.importorskip("pypcd4", reason="the extra 'pcd' is not installed")
    entries = [entry for entry in json.loads((real_data / "MANIFEST.json").read_text()) if entry["file"].startswith("pcd/")]
    assert len(entries) == 8
    for entry in entries:
        path = real_data / entry["file"]
        found, peer = read_pcd(path.read_bytes(), path.name), pypcd4.PointCloud.from_path(path).pc_data
        assert len(found) == entry["check"]["points"]
        assert list(found.dtype.names or ()) == entry["check"]["fields"]
        assert all(found[name].tobytes() == peer[name].tobytes() for name in entry["check"]["fields"])
        assert int(np.isnan(np.stack([found[axis] for axis in "xyz"])).any(0).sum()) == entry["check"]["nan_rows"]
