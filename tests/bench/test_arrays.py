"""The array table measures what it says, on typical arrays and on files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.bench.arrays import measure_array, read_arrays, typical_arrays
from headway.formats import UsageError


def test_every_level_gives_the_array_back_and_none_is_larger_by_much() -> None:
    for name, array in typical_arrays().items():
        rows = list(measure_array(name, array[:20], repeats=1))
        assert len(rows) == (4 if array.itemsize == 1 else 8)
        assert all(float(str(row["ratio"])) > 0.9 for row in rows)


def test_files_are_read_without_running_anything(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.zeros((2, 2)))
    (tmp_path / "b.txt").write_text("1 2 3\n4 5 6\n")
    assert set(read_arrays(tmp_path / "a.npz")) == {"a.npz/x", "a.npz/y"}
    assert read_arrays(tmp_path / "b.txt")["b.txt"].shape == (2, 3)
    np.save(tmp_path / "c.npy", np.array([print], object), allow_pickle=True)
    with pytest.raises(UsageError, match=r"c\.npy"):
        read_arrays(tmp_path / "c.npy")
