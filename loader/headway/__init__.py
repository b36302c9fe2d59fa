"""headway: the input pipeline for driving and robotics training that keeps every rank supplied.

Names are resolved on first use, so that `import headway` loads neither torch nor anything else heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.formats import HeadwayError as HeadwayError

__version__ = "0.1.0"

# Public name → module that defines it.
_HOMES = {
    "HeadwayError": "headway.formats",
}

__all__ = ["HeadwayError", "__version__"]


def __getattr__(name: str) -> Any:  # Any: each name has its own type, which TYPE_CHECKING imports state
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
