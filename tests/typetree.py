"""Link the folders into build/typetree/headway as they are packaged, so that mypy sees each module under one name."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build(root: Path = ROOT) -> Path:
    """Rebuild the tree and return it; every file is a link, so an edit needs no rebuild."""
    tree = root / "build" / "typetree"
    shutil.rmtree(tree, ignore_errors=True)
    packages = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    for package, folder in packages.items():
        target = tree / package.replace(".", "/")
        target.mkdir(parents=True, exist_ok=True)
        for source in sorted((root / folder).iterdir()):
            if source.suffix in (".py", ".pyi", ".typed"):
                os.symlink(source, target / source.name)
    (tree / "tests").symlink_to(root / "tests")
    return tree


if __name__ == "__main__":
    print(build())
