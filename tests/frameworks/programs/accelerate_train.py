"""Accelerate: `prepare` keeps the loader, and `save_state` is given what the last batch carried."""

from __future__ import annotations

import json

import torch
from accelerate import Accelerator

from .common import Diary, Net, arguments, features, leave, make_loader


def main() -> None:
    """Train with what `prepare` returns."""
    given = arguments()
    accelerator = Accelerator(cpu=True)
    loader = make_loader(given)
    model = Net()
    model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-3), loader)
    checkpoint = given.out / "loader.json"
    if given.resume:
        prepared.load_state_dict(json.loads(checkpoint.read_text()))
    diary = Diary(given, accelerator.process_index)
    diary.write(size=loader.topology.size, length=len(prepared))
    for batch in diary.iterated(prepared):
        diary.step(batch)
        with accelerator.accumulate(model):
            accelerator.backward(model(features(batch.to(accelerator.device))))
            optimizer.step()
            optimizer.zero_grad()
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            checkpoint.write_text(json.dumps(batch["state"]))
        accelerator.wait_for_everyone()
        diary.stepped()
    leave()


if __name__ == "__main__":
    main()
