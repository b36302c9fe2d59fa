"""Packs on one Ray of two CPUs: a sound source, one whose reader dies once, one that dies always, one with an error.

`python -m tests.frameworks.programs.pack_on_ray FOLDER` packs into FOLDER/<case> and prints a JSON object a case.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import ray

from headway.formats import HeadwayError, PackOptions, pack
from tests.formats.ramp import ramp_spec

from .start_ray import start_ray

DYING = "tests.frameworks.programs.dying_ramp:open_source"


def main(folder: Path) -> None:
    """Pack each case and say how it ended."""
    start_ray()
    for case in ("plain", "die-once", "error", "die-always"):
        spec, workers = ramp_spec(), 2
        if case == "error":
            spec, workers = ramp_spec(fault=5, drives=6), 4  # more at work than one, while it fails
        elif case != "plain":
            spec = replace(spec, kind=DYING, path=str(folder / f"mark.{case}"))
        told = {"case": case, "code": 0, "said": ""}
        try:
            pack(spec, folder / case, PackOptions(engine="ray", workers=workers, shard_bytes=20_000))
        except HeadwayError as error:
            told |= {"code": error.exit_code, "said": f"{type(error).__name__} {error}"}
        print(json.dumps(told), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
