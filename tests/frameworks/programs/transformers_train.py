"""Transformers' Trainer: the loader comes from `get_train_dataloader`, its state goes into each checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from headway import DataLoader

from .common import Diary, Net, arguments, features, leave, make_loader

LOADER_STATE = "headway.json"


class Model(torch.nn.Module):
    """The net, as Trainer calls models: by the batch's keys, and with a loss in what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, **batch: Any) -> dict[str, torch.Tensor]:
        """Return the loss."""
        return {"loss": self.net(features(batch))}


class HeadwayTrainer(Trainer):
    """A Trainer over a loader of a packed set."""

    def __init__(self, loader: DataLoader, diary: Diary, **more: Any) -> None:
        super().__init__(train_dataset=loader.dataset, **more)
        self.loader, self.diary, self.received = loader, diary, loader.state_dict()

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader as it is: it knows its rank and its order."""
        return self.loader

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        """Remember the state that comes with the batch."""
        self.diary.step(inputs)
        self.received = inputs["state"]
        return super().training_step(model, inputs, *rest)

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        super()._save_checkpoint(*arguments, **named)
        folder = Path(self._get_output_dir(trial=None)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            (folder / LOADER_STATE).write_text(json.dumps(self.received))


class Watching(TrainerCallback):
    """Dies where the test wants it, once the step's checkpoint is written."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_save(self, *_: Any, **__: Any) -> None:
        """Count the step as done; Trainer saves after every step here."""
        torch.distributed.barrier()
        self.diary.stepped()


def main() -> None:
    """Train, or go on from the newest checkpoint."""
    given = arguments()
    options = TrainingArguments(
        output_dir=str(given.out),
        num_train_epochs=given.epochs,
        use_cpu=True,
        save_strategy="steps",
        save_steps=1,
        report_to=[],
        disable_tqdm=True,
        ignore_data_skip=True,
        remove_unused_columns=False,
    )
    loader = make_loader(given)
    diary = Diary(given, options.process_index)
    trainer = HeadwayTrainer(loader, diary, model=Model(), args=options, callbacks=[Watching(diary)])
    checkpoint = max(given.out.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])) if given.resume else None
    if checkpoint is not None:
        loader.load_state_dict(json.loads((checkpoint / LOADER_STATE).read_text()))
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    iterated = trainer.callback_handler.train_dataloader
    diary.write(is_ours=iterated is loader, size=loader.topology.size, length=len(iterated))
    leave()


if __name__ == "__main__":
    main()
