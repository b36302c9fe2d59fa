"""A program that trains from feeder processes until it is ended: `python -m tests.loader.feeder_program SET START`.

Prints the processes that made its first batches as JSON, then goes on.
"""

from __future__ import annotations

import json
import sys

import headway
from headway import DataLoader, LoaderOptions, Transforms, Window

from .transform_functions import name_process

__all__ = ["main"]


def main(location: str, start: str) -> None:
    """Run."""
    options = LoaderOptions(transforms=Transforms(sample=name_process, processes=2, start=start))  # type: ignore[arg-type]  # from the command line
    loader = DataLoader(headway.open(location, windows=[Window("note")]), 2, num_workers=2, options=options)
    pids: set[int] = set()
    while True:
        for number, batch in enumerate(loader):
            pids |= set(batch["pid"].tolist())
            if number == 1:
                print(json.dumps(sorted(pids)), flush=True)
                sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
