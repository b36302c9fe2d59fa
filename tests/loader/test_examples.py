"""The examples in the loader's docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import headway


@pytest.mark.parametrize(
    "name", ["batch", "context_part", "dataloader", "dataset", "images", "numpy_view", "options", "padding", "share", "topology"]
)
def test_examples_run_as_written(name: str, drives_set: Path) -> None:
    module = importlib.import_module(f"headway.loader.{name}")
    result = doctest.testmod(module, extraglobs={"drives_set": drives_set, "headway": headway})
    assert result.attempted
    assert not result.failed
