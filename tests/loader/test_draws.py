"""Keyed draws: functions of their key alone, unrelated otherwise."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from headway.loader.draws import below, key, rng, uniform


def test_each_part_of_the_key_matters() -> None:
    keys = {
        int(key(seed, epoch, item, occurrence, purpose))
        for seed in (0, 1)
        for epoch in (0, 1)
        for item in (0, 1)
        for occurrence in (0, 1)
        for purpose in ("crop", "flip")
    }
    assert len(keys) == 32


def test_keys_broadcast_and_match_single_ones() -> None:
    many = key(3, 1, np.arange(5)[:, None], np.arange(2), "crop")
    assert many.shape == (5, 2)
    assert many[4, 1] == key(3, 1, 4, 1, "crop")


def test_draws_are_uniform_over_items() -> None:
    assert kstest(uniform(key(0, 0, np.arange(20_000), 0, "crop")), "uniform").pvalue > 1e-3
    assert (
        abs(np.corrcoef(uniform(key(0, 0, np.arange(20_000), 0, "a")), uniform(key(0, 0, np.arange(20_000), 0, "b")))[0, 1])
        < 0.03
    )


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**62))
def test_below_is_the_high_word_of_the_product(value: int, bound: int) -> None:
    assert int(below(np.array([value], np.uint64), bound)[0]) == value * bound >> 64


@pytest.mark.slow
def test_rng_gives_the_same_numbers_in_another_process() -> None:
    code = "from headway.loader.draws import rng; print(rng(1, 2, 3, 4, 'crop').integers(0, 2**60, 3).tolist())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(rng(1, 2, 3, 4, "crop").integers(0, 2**60, 3).tolist())
    assert rng(1, 2, 3, 4, "crop").random() != rng(1, 2, 3, 5, "crop").random()
