"""Records → batches in a known order: plan, windows, fetch, buffers, prefetch, state, faults, stats.

Nothing imported here loads torch; `Batch` and `DataLoader`, which need it, are public through `headway` itself.
"""

from .dataset import Dataset, open_dataset
from .decode import Decoder, ImageJobs
from .images import Images
from .options import LoaderOptions
from .sequential import Evaluation, Sequential
from .shuffled import Shuffled
from .state import State
from .sweeps import Sweeps
from .topology import Topology
from .trajectory import Trajectory
from .view import View
from .window import Window

__all__ = [
    "Dataset",
    "Decoder",
    "Evaluation",
    "ImageJobs",
    "Images",
    "LoaderOptions",
    "Sequential",
    "Shuffled",
    "State",
    "Sweeps",
    "Topology",
    "Trajectory",
    "View",
    "Window",
    "open_dataset",
]
