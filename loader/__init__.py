"""Records → batches in a known order: plan, windows, fetch, buffers, prefetch, state, faults, stats.

Nothing imported here loads torch; `Batch` and `DataLoader`, which need it, are public through `headway` itself.
"""

from .dataset import Dataset, open_dataset
from .decode import Decoder, ImageJobs
from .images import Images
from .mixed import Mixed, mix
from .mixture import Mixture
from .options import LoaderOptions
from .pace import Pace
from .padding import Padding
from .quarantine import read_quarantine
from .sequential import Evaluation, Sequential
from .shuffled import Shuffled
from .state import State
from .sticky import SlotSticky
from .sweeps import Sweeps
from .telemetry import Telemetry
from .topology import Peers, Topology
from .topology_detect import mesh_topology
from .trajectory import Trajectory
from .transforms import Transforms
from .view import View
from .weighted import Weighted
from .weights import WeightTable, class_balanced
from .window import Window

__all__ = [
    "Dataset",
    "Decoder",
    "Evaluation",
    "ImageJobs",
    "Images",
    "LoaderOptions",
    "Mixed",
    "Mixture",
    "Pace",
    "Padding",
    "Peers",
    "Sequential",
    "Shuffled",
    "SlotSticky",
    "State",
    "Sweeps",
    "Telemetry",
    "Topology",
    "Trajectory",
    "Transforms",
    "View",
    "WeightTable",
    "Weighted",
    "Window",
    "class_balanced",
    "mesh_topology",
    "mix",
    "open_dataset",
    "read_quarantine",
]
