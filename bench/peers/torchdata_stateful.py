"""torchdata's StatefulDataLoader: torch's DataLoader with a state; it reads as that does, so only `bench resume` runs it."""

from __future__ import annotations

from .contract import Peer, Resumable, Run
from .samples import BATCH, FileSamples, MapDataset, Stored, collate
from .torch_loader import PEER as TORCH

__all__ = ["PEER"]


def _resumable(run: Run) -> Resumable:
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = MapDataset(FileSamples(run.packed, run.workload), run.workload)
    loader = StatefulDataLoader(
        dataset, batch_size=BATCH[run.workload], shuffle=True, num_workers=1, collate_fn=collate, drop_last=True
    )
    return Resumable(lambda: iter(loader), loader.state_dict, loader.load_state_dict)


PEER = Peer(
    name="torchdata-stateful",
    requirements=("torchdata==0.11.0",),
    settings=TORCH.settings,
    pack=lambda run: FileSamples.write(Stored(run.data), run.packed),
    open=TORCH.open,
    cannot=dict.fromkeys(BATCH, "reads as torch does; `bench resume` measures its state"),
    packs_like="torch",
    resumable=_resumable,
)
