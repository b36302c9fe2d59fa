"""Build the native core with AddressSanitizer and UBSan and run it over odd JPEGs and mutants of them.

`python tests/sanitize.py [--mutants N] [--seed S] [--thread]`; exit status 0 means that no report was made. `--thread`
takes ThreadSanitizer instead, for the pool. Real odd files join in when HEADWAY_REAL_DATA is set.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import simplejpeg

ROOT = Path(__file__).resolve().parents[1]
CORE = ["jpeg", "huffman", "resample", "slant", "store", "gather", "hash", "pool", "rows", "shuffle", "jpeg_scan"]
MOST_BYTES = 40_000  # bigger seeds only make fewer mutants a second


def seeds(folder: Path) -> list[Path]:
    """Write small JPEGs of every subsampling, progressive and with restarts; add the real odd ones."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (10, 12, 3), np.uint8)
    image = np.ascontiguousarray(cv2.resize(coarse, (83, 61), interpolation=cv2.INTER_CUBIC))
    for kind in ("444", "422", "420", "440", "411"):
        folder.joinpath(f"{kind}.jpg").write_bytes(simplejpeg.encode_jpeg(image, 85, "RGB", kind))
    gray = np.ascontiguousarray(image[..., :1])
    folder.joinpath("gray.jpg").write_bytes(simplejpeg.encode_jpeg(gray, 85, "GRAY", "Gray"))
    for name, flag, value in (("progressive", cv2.IMWRITE_JPEG_PROGRESSIVE, 1), ("restarts", cv2.IMWRITE_JPEG_RST_INTERVAL, 2)):
        cv2.imwrite(str(folder / f"{name}.jpg"), image, [flag, value])
    odd = Path(os.environ.get("HEADWAY_REAL_DATA", "/nonexistent")) / "jpeg_odd"
    real = [file for file in sorted(odd.rglob("*.jpg")) if file.stat().st_size <= MOST_BYTES]
    print(f"== {len(real)} real odd files ({odd if real else 'HEADWAY_REAL_DATA not given'})")
    return [*sorted(folder.glob("*.jpg")), *real]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--thread", action="store_true", help="ThreadSanitizer instead of AddressSanitizer and UBSan")
    options = parser.parse_args()
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("== sanitizers: no C compiler here, not run")
        return 0
    checks = "thread" if options.thread else "address,undefined"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        driver = folder / "driver"
        sources = [str(ROOT / "formats" / "native" / f"{name}.c") for name in CORE]
        flags = [f"-fsanitize={checks}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1", "-std=gnu11"]
        # The clones' resolvers run before the sanitizer's own start-up.
        flags += ["-DHW_NO_CLONES", "-DHW_EXACT_SCRATCH", "-ffp-contract=off"]
        # Small chunks, so that small files cross their borders too.
        flags += ["-DHW_CHUNK=4200"]
        subprocess.run(
            [
                compiler,
                *flags,
                str(ROOT / "tests" / "sanitize_driver.c"),
                *sources,
                "-o",
                str(driver),
                "-ljpeg",
                "-lm",
                "-pthread",
            ],
            check=True,
        )
        files = seeds(folder)
        print(f"== {checks}: {options.mutants} mutants of {len(files)} files, seed {options.seed}", flush=True)
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
        command = [str(driver), str(options.seed), str(options.mutants), *map(str, files)]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
