"""Every peer by name; a peer's module is imported only in the environment that holds it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final, cast

from .contract import Peer

__all__ = ["PEERS", "load_peer"]

PEERS: Final[Mapping[str, str]] = {
    "torch": "torch_loader",
    "torch_np": "torch_np",
    "webdataset": "webdataset_loader",
    "mosaicml-streaming": "mosaicml_streaming",
    "litdata": "litdata_loader",
    "energon": "energon",
    "spdl": "spdl_loader",
    "spdl-direct": "spdl_direct",
    "torchdata.nodes": "torchdata_nodes",
    "torchdata-stateful": "torchdata_stateful",
    "grain": "grain_loader",
    "dali": "dali_loader",
    "ffcv": "ffcv_loader",
    "hf-datasets": "hf_datasets",
    "lance": "lance_loader",
    "headway": "headway_loader",
}
"""Name as in reports → module beside this one."""


def load_peer(name: str) -> Peer:
    """Import the module of a peer; nothing of the peer itself is imported by that."""
    return cast(Peer, importlib.import_module(f".{PEERS[name]}", __package__).PEER)
