"""headway: the input pipeline for driving and robotics training that keeps every rank supplied.

Names are resolved on first use, so that `import headway` loads neither torch nor anything else heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.formats import CacheOptions as CacheOptions
    from headway.formats import CorruptShard as CorruptShard
    from headway.formats import DecodeError as DecodeError
    from headway.formats import HeadwayError as HeadwayError
    from headway.formats import LimitExceeded as LimitExceeded
    from headway.formats import MissingExtra as MissingExtra
    from headway.formats import NotASet as NotASet
    from headway.formats import SetError as SetError
    from headway.formats import SourceError as SourceError
    from headway.formats import StalledError as StalledError
    from headway.formats import StateError as StateError
    from headway.formats import StoreError as StoreError
    from headway.formats import UnsupportedFormat as UnsupportedFormat
    from headway.formats import UsageError as UsageError
    from headway.formats import WorkerDied as WorkerDied
    from headway.loader import Dataset as Dataset
    from headway.loader import Evaluation as Evaluation
    from headway.loader import Images as Images
    from headway.loader import LoaderOptions as LoaderOptions
    from headway.loader import Mixed as Mixed
    from headway.loader import Mixture as Mixture
    from headway.loader import Pace as Pace
    from headway.loader import Padding as Padding
    from headway.loader import Peers as Peers
    from headway.loader import Sequential as Sequential
    from headway.loader import Shuffled as Shuffled
    from headway.loader import SlotSticky as SlotSticky
    from headway.loader import Sweeps as Sweeps
    from headway.loader import Telemetry as Telemetry
    from headway.loader import Topology as Topology
    from headway.loader import Trajectory as Trajectory
    from headway.loader import Transforms as Transforms
    from headway.loader import Weighted as Weighted
    from headway.loader import WeightTable as WeightTable
    from headway.loader import Window as Window
    from headway.loader import class_balanced as class_balanced
    from headway.loader import mesh_topology as mesh_topology
    from headway.loader import mix as mix
    from headway.loader import open_dataset as open
    from headway.loader import read_quarantine as read_quarantine
    from headway.loader.batch import Batch as Batch
    from headway.loader.context_part import context_part as context_part
    from headway.loader.dataloader import DataLoader as DataLoader
    from headway.loader.numpy_view import numpy_batches as numpy_batches
    from headway.loader.share import Shared as Shared

__version__ = "0.1.0"

# Public name → module that defines it.
_HOMES = {
    "Batch": "headway.loader.batch",
    "CacheOptions": "headway.formats",
    "CorruptShard": "headway.formats",
    "DataLoader": "headway.loader.dataloader",
    "Dataset": "headway.loader",
    "DecodeError": "headway.formats",
    "Evaluation": "headway.loader",
    "HeadwayError": "headway.formats",
    "Images": "headway.loader",
    "LimitExceeded": "headway.formats",
    "LoaderOptions": "headway.loader",
    "MissingExtra": "headway.formats",
    "Mixed": "headway.loader",
    "Mixture": "headway.loader",
    "NotASet": "headway.formats",
    "Pace": "headway.loader",
    "Padding": "headway.loader",
    "Peers": "headway.loader",
    "Sequential": "headway.loader",
    "SetError": "headway.formats",
    "Shared": "headway.loader.share",
    "Shuffled": "headway.loader",
    "SlotSticky": "headway.loader",
    "SourceError": "headway.formats",
    "StalledError": "headway.formats",
    "StateError": "headway.formats",
    "StoreError": "headway.formats",
    "Sweeps": "headway.loader",
    "Telemetry": "headway.loader",
    "Topology": "headway.loader",
    "Trajectory": "headway.loader",
    "Transforms": "headway.loader",
    "UnsupportedFormat": "headway.formats",
    "UsageError": "headway.formats",
    "WeightTable": "headway.loader",
    "Weighted": "headway.loader",
    "Window": "headway.loader",
    "WorkerDied": "headway.formats",
    "class_balanced": "headway.loader",
    "context_part": "headway.loader.context_part",
    "mesh_topology": "headway.loader",
    "mix": "headway.loader",
    "numpy_batches": "headway.loader.numpy_view",
    "open": "headway.loader",
    "read_quarantine": "headway.loader",
}
# Public name → its name at home, where they differ: only `headway.open` may be called like the built-in.
_NAMES = {"open": "open_dataset"}

__all__ = [
    "Batch",
    "CacheOptions",
    "CorruptShard",
    "DataLoader",
    "Dataset",
    "DecodeError",
    "Evaluation",
    "HeadwayError",
    "Images",
    "LimitExceeded",
    "LoaderOptions",
    "MissingExtra",
    "Mixed",
    "Mixture",
    "NotASet",
    "Pace",
    "Padding",
    "Peers",
    "Sequential",
    "SetError",
    "Shared",
    "Shuffled",
    "SlotSticky",
    "SourceError",
    "StalledError",
    "StateError",
    "StoreError",
    "Sweeps",
    "Telemetry",
    "Topology",
    "Trajectory",
    "Transforms",
    "UnsupportedFormat",
    "UsageError",
    "WeightTable",
    "Weighted",
    "Window",
    "WorkerDied",
    "__version__",
    "class_balanced",
    "context_part",
    "mesh_topology",
    "mix",
    "numpy_batches",
    "open",
    "read_quarantine",
]


def __getattr__(name: str) -> Any:  # Any: each name has its own type, which TYPE_CHECKING imports state
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), _NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
