"""Keyed draws on any device: `loader.draws` in torch integers, bit for bit, so that points need no trip to the CPU.

torch has no unsigned 64-bit arithmetic: keys travel as the same bits in int64, and shifts clear the copies of the sign bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["fold", "to_tensor", "uniform"]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN: Final = _signed(0x9E3779B97F4A7C15)
_FIRST: Final = _signed(0xBF58476D1CE4E5B9)
_SECOND: Final = _signed(0x94D049BB133111EB)


def to_tensor(keys: NDArray[np.uint64], device: torch.device | str = "cpu") -> torch.Tensor:
    """Return numpy keys as an int64 tensor of the same bits."""
    return torch.from_numpy(keys.view(np.int64).copy()).to(device)


def fold(keys: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return `keys` with an integer part mixed in; what `loader.draws.fold` gives, in int64 bits."""
    mixed = (keys ^ part) + _GOLDEN
    mixed = (mixed ^ _shifted(mixed, 30)) * _FIRST
    mixed = (mixed ^ _shifted(mixed, 27)) * _SECOND
    return mixed ^ _shifted(mixed, 31)


def uniform(keys: torch.Tensor) -> torch.Tensor:
    """Return one float64 in [0, 1) per key."""
    return _shifted(keys, 11).to(torch.float64) * 2.0**-53


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Return value >> bits with zeros moved in from the left."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
