"""Build the optional native core, `headway.formats.native`; everything else about the package is in pyproject.toml.

It needs a C compiler and the headers of libjpeg-turbo (2.1 or newer) and zstd. Without them the install succeeds all the
same, says so in one line, and headway takes its pure-Python path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = "formats/native"
# No -march: one wheel runs on every x86-64 and arm64; the hot loops carry their own variants (native/dispatch.h).
# -ffp-contract=off keeps the variants bit-equal: a fused multiply-add would round differently on newer machines.
COMPILE = ["-std=gnu11", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-pthread"]


class OptionalBuild(build_ext):
    """Compile the core if this machine can; otherwise say what was missing and go on."""

    def run(self) -> None:
        if os.environ.get("HEADWAY_NATIVE") == "0":
            self._skipped("HEADWAY_NATIVE=0")
            return
        super().run()

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:  # whatever the compiler's failure is called on this platform
            if os.environ.get("HEADWAY_NATIVE") == "1":
                raise
            self._skipped(str(error).strip().splitlines()[-1])

    def _skipped(self, reason: str) -> None:
        self.extensions = []
        print(
            f"headway: native core not built ({reason}); the slower pure-Python path will be used. "
            "It needs a C compiler, libjpeg-turbo >= 2.1 and zstd headers (Debian: gcc libjpeg-dev libzstd-dev)",
            file=sys.stderr,
        )


setup(
    ext_modules=[
        Extension(
            "headway.formats.native",
            sources=sorted(str(path) for path in Path(NATIVE).glob("*.c")),
            depends=sorted(str(path) for path in Path(NATIVE).glob("*.h")),
            libraries=["jpeg", "zstd", "m"],
            extra_compile_args=COMPILE,
            extra_link_args=["-pthread"],
        )
    ],
    cmdclass={"build_ext": OptionalBuild},
)
