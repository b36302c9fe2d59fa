"""Lightning's Trainer with its DDP strategy and its own launcher; checkpoints in the middle of an epoch are Lightning's."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from headway import DataLoader

from .common import Diary, Net, arguments, features, leave, make_loader


class Module(lightning.LightningModule):
    """The net, writing what each step receives."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.net = Net()
        self.given = given
        self.diary: Diary | None = None

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        """Train on one batch."""
        if self.diary is None:
            self.diary = Diary(self.given, self.global_rank)
            iterated = self.trainer.train_dataloader
            self.diary.write(
                is_ours=type(iterated) is DataLoader and iterated is self.trainer.fit_loop._combined_loader.flattened[0],
                size=iterated.topology.size,
                length=len(iterated),
            )
        self.diary.step(batch, epoch=self.current_epoch, state_epoch=batch["state"]["epoch"])
        loss: torch.Tensor = self.net(features(batch))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), 1e-3)


class Dying(lightning.Callback):
    """Kills this process where the test wants it, after the checkpoint of that step (callbacks that save come last)."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
        """Count the step before as done."""
        if trainer.global_step and module.diary is not None:
            module.diary.stepped()


def main() -> None:
    """Fit, or go on fitting from the last checkpoint."""
    given = arguments()
    loader = make_loader(given)  # before Lightning has started the other rank: the place is found when it matters
    saving = ModelCheckpoint(dirpath=given.out, filename="last", every_n_train_steps=1, save_on_train_epoch_end=False)
    saving.CHECKPOINT_EQUALS_CHAR = "-"
    trainer = lightning.Trainer(
        max_epochs=given.epochs,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saving, Dying()],
    )
    checkpoint = given.out / "last.ckpt"
    trainer.fit(Module(given), loader, ckpt_path=str(checkpoint) if given.resume else None, weights_only=False)
    leave()


if __name__ == "__main__":
    main()
