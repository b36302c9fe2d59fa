"""torch.utils.data.DataLoader over loose files and memory-mapped arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .contract import Peer, Run, Setting, workers
from .samples import BATCH, FileSamples, MapDataset, Stored, collate, one_thread

__all__ = ["PEER", "torch_dataloader"]


def torch_dataloader(dataset: Any, workload: str, workers: int, **more: Any) -> Any:
    """Return a torch DataLoader with the options a user on one node would set."""
    from torch.utils.data import DataLoader

    if workers:
        more |= {"persistent_workers": True, "worker_init_fn": one_thread}
    options: dict[str, Any] = {"batch_size": BATCH[workload], "drop_last": True, "collate_fn": collate} | more
    return DataLoader(dataset, num_workers=workers, **options)


def _settings(workload: str) -> list[Setting]:
    return workers(workload) + ([{"workers": 2, "scaled": False}] if workload == "W1" else [])


def _open(run: Run, *, workers: int, scaled: bool = True) -> Callable[[], Iterator[Any]]:
    dataset = MapDataset(FileSamples(run.packed, run.workload), run.workload, scaled=scaled)
    loader = torch_dataloader(dataset, run.workload, workers, shuffle=True)
    return lambda: iter(loader)


PEER = Peer(
    name="torch",
    requirements=(),
    settings=_settings,
    pack=lambda run: FileSamples.write(Stored(run.data), run.packed),
    open=_open,
    note="loose files; simplejpeg at 1/2 scale where the target allows",
)
