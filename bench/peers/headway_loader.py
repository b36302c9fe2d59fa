"""headway itself, its threads searched for as others' workers are, in headway's own environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .contract import Peer, Resumable, Run, Setting
from .samples import BATCH, MEAN, STD

__all__ = ["PEER", "look_of"]

_LOOK: dict[str, Any] = {"dtype": "float32", "mean": tuple(MEAN.tolist()), "std": tuple(STD.tolist())}
_NAMES = ("trajectory", "calibration", "speed", "command", "label")


def _pack(run: Run) -> None:
    from headway.formats.adapters import SourceSpec
    from headway.formats.packer import pack

    pack(SourceSpec(kind="headway.bench.workload_source:open_source", path=str(run.data)), str(run.packed))


def look_of(workload: str) -> dict[str, Any]:
    """Return what a workload asks of its images: size (height, width) in px, and a random crop where it has one."""
    from headway.gpu_decode import RandomResizedCrop

    return {"size": (224, 224), "augment": RandomResizedCrop()} if workload == "W2" else {"size": (256, 704), "augment": None}


def _loader(run: Run, threads: int | None) -> Any:
    import headway

    images = []
    if run.workload in ("W1", "W2"):
        images = [headway.Images("cam*", name="image", **look_of(run.workload), **_LOOK)]
    dataset = headway.open(str(run.packed), images=images)
    return headway.DataLoader(dataset, batch_size=BATCH[run.workload], shuffle=True, drop_last=True, num_workers=threads)


def _open(run: Run, *, threads: int | None) -> Callable[[], Iterator[Any]]:
    loader = _loader(run, threads)
    return lambda: (_renamed(run.workload, batch) for batch in loader)


def _resumable(run: Run) -> Resumable:
    loader = _loader(run, None)
    batches = lambda: ({"stamp": batch["sample"]["time"][:, 0]} for batch in loader)  # noqa: E731  # one line, used once
    return Resumable(batches, loader.state_dict, loader.load_state_dict)


def _renamed(workload: str, batch: Any) -> dict[str, Any]:
    """Give fields the names the check knows; views only."""
    found = {name: value[:, 0] for name, value in batch["sample"].items() if name in _NAMES}
    if workload in ("W1", "W4"):
        found["lidar"], found["lidar_offsets"] = batch["lidar"]["points"], batch["lidar"]["offsets"]
    if workload in ("W1", "W2"):
        found["image"] = batch["image"]["image"][:, 0] if workload == "W1" else batch["image"]["image"][:, 0, 0]
    return found


def _settings(workload: str) -> list[Setting]:
    return [{"threads": count} for count in (None, 1, 2)]


PEER = Peer(
    name="headway",
    requirements=(),
    settings=_settings,
    pack=_pack,
    open=_open,
    resumable=_resumable,
    note="payload hashes checked",
)
