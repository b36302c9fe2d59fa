"""The product's source files as the gates see them: path, module name and syntax tree. Reads files; imports nothing of ours."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("formats", "loader", "gpu_decode", "tools", "bench")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One Python file of the product."""

    path: Path
    """Relative to the repository."""
    package: str
    """Package it belongs to, e.g. "headway.formats"."""
    folder: str
    """One of FOLDERS, or "" for the root package."""
    tree: ast.Module

    def imports(self) -> Iterator[tuple[int, str, bool]]:
        """Yield (line, absolute module or module.name, relative?) of every import, conditional and local ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name, False) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = self.package.split(".")
                    parts = parts[: len(parts) - node.level + 1]
                    base = ".".join([*parts, base] if base else parts)
                yield from ((node.lineno, f"{base}.{alias.name}", node.level > 0) for alias in node.names)


def package_dirs() -> dict[str, str]:
    """Return package name → folder, as pyproject.toml maps them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    mapping: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    return mapping


@cache
def source_files() -> tuple[SourceFile, ...]:
    """Return every Python file of every mapped package, sorted by path."""
    files = []
    for package, folder in package_dirs().items():
        for path in sorted((ROOT / folder).glob("*.py")):
            parts = package.split(".")
            tree = ast.parse(path.read_text("utf-8"), str(path))
            files.append(
                SourceFile(path=path.relative_to(ROOT), package=package, folder=parts[1] if len(parts) > 1 else "", tree=tree)
            )
    return tuple(sorted(files, key=lambda file: str(file.path)))
