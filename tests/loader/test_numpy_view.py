"""Batches as numpy arrays: the tensors' own memory, bfloat16 included, and leases that hold as for tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import headway
from headway import DataLoader, Images
from headway.loader.numpy_view import numpy_batch, numpy_batches


def test_arrays_are_views_of_the_tensors(drives_set: Path) -> None:
    for batch in DataLoader(headway.open(drives_set), 6, num_workers=0):
        arrays = numpy_batch(batch)
        assert np.shares_memory(arrays["LIDAR"]["points"], batch["LIDAR"]["points"].numpy())
        assert arrays["ego"]["ego_to_world"].dtype == np.float64
        assert arrays["note"]["text"] is not None
        assert arrays["state"] == batch["state"]


def test_bfloat16_needs_its_dtype_and_keeps_its_bits(drives_set: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dataset = headway.open(drives_set, images=Images("CAM_BACK", size=(24, 32), dtype="bfloat16"))
    for batch in DataLoader(dataset, 6, num_workers=0):
        image = numpy_batch(batch)["camera"]["image"]
        assert image.dtype == ml_dtypes.bfloat16
        assert np.array_equal(image.astype(np.float32), batch["camera"]["image"].float().numpy())


def test_kept_arrays_keep_their_values(drives_set: Path) -> None:
    loader = DataLoader(headway.open(drives_set, images=Images("CAM_BACK", size=(120, 160))), 3, num_workers=2)
    kept = [batch["camera"]["image"] for batch in numpy_batches(loader)]
    again = [batch["camera"]["image"] for batch in loader]
    loader.set_epoch(0)
    for array, tensor in zip(kept, loader, strict=True):
        assert torch.equal(torch.from_numpy(array), tensor["camera"]["image"])
    del again
