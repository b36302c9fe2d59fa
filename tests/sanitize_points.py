"""Build the points decoder with AddressSanitizer and UBSan and run it over mutants of payloads of every layout.

`python -m tests.sanitize_points [--mutants N] [--seed S]`; exit status 0 means that no report was made.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from headway.formats.points import encode_points
from tests.laws.points_mutants import mutate, radar, uncompressed

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1", "-std=gnu11"]
# The clones' resolvers run before the sanitizer's own start-up; with exact scratch, reading past a block is seen.
FLAGS += ["-DHW_NO_CLONES", "-DHW_EXACT_SCRATCH"]


def write_mutants(path: Path, points: int, mutants: int, rng: random.Random) -> None:
    """Write payloads of `points` records, whole and damaged, zstd and not, with what the driver must know of the records."""
    sensor, records = radar(points)
    whole = [encode_points(records, sensor), uncompressed(sensor, records)]
    columns = [field.numpy_dtype for field in sensor.fields for _ in range(int(np.prod(field.shape)))]
    payloads = [*whole, *(mutate(whole[k % 2], rng) for k in range(mutants))]
    with path.open("wb") as file:
        file.write(struct.pack("<4I", points, records.itemsize, len(columns), len(payloads)))
        file.write(b"".join(struct.pack("<2B", ord(dtype.kind), dtype.itemsize) for dtype in columns))
        for payload in payloads:
            file.write(struct.pack("<I", len(payload)) + payload)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("== sanitizers: no C compiler here, not run")
        return 0
    native = ROOT / "formats" / "native"
    with tempfile.TemporaryDirectory() as scratch:
        driver = Path(scratch) / "driver"
        sources = [
            ROOT / "tests/sanitize_points.c",
            native / "points.c",
            *(native / f"{name}.c" for name in ("gather", "hash", "huffman")),
        ]
        subprocess.run(
            [compiler, *FLAGS, *map(str, sources), "-o", str(driver), "-lzstd", "-ljpeg", "-lm", "-pthread"], check=True
        )
        rng = random.Random(options.seed)
        for points, share in ((0, 0.05), (3, 0.35), (700, 0.4), (3000, 0.2)):
            data = Path(scratch) / "payloads"
            write_mutants(data, points, int(options.mutants * share), rng)
            print(f"== {points} points", flush=True)
            environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"}
            if code := subprocess.run([str(driver), str(data)], env=environment, check=False).returncode:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
