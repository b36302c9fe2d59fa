"""Imports point one way: formats ← loader ← gpu_decode ← tools, bench (by syntax tree, so unused branches count too)."""

from __future__ import annotations

import ast
import sys

import pytest

from .source_tree import FOLDERS, SourceFile, source_files

# Folder → folders it may import.
MAY_IMPORT = {
    "formats": {"formats"},
    "loader": {"formats", "loader"},
    "gpu_decode": {"formats", "loader", "gpu_decode"},
    "tools": set(FOLDERS),
    "bench": set(FOLDERS),
}


def _folder_files() -> list[SourceFile]:
    return [file for file in source_files() if file.folder]


def test_the_walk_finds_every_folder() -> None:
    assert {file.folder for file in source_files()} == {*FOLDERS, ""}


def test_imports_point_one_way() -> None:
    wrong = []
    for file in _folder_files():
        for line, name, _ in file.imports():
            parts = name.split(".")
            if parts[0] == "headway" and len(parts) > 1 and parts[1] in FOLDERS and parts[1] not in MAY_IMPORT[file.folder]:
                wrong.append(f"{file.path}:{line}: {file.folder} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_imports_inside_the_folders_are_relative() -> None:
    wrong = []
    for file in _folder_files():
        if file.package == "headway.bench.peers":
            continue  # each runs alone, in its own environment, by the names its user would write
        for line, name, relative in file.imports():
            if not relative and name.split(".")[0] in {"headway", *FOLDERS}:
                wrong.append(f"{file.path}:{line}: import {name} must be relative")
    assert not wrong, "\n".join(wrong)


def test_private_modules_stay_inside_their_folder() -> None:
    wrong = []
    for file in _folder_files():
        for line, name, _ in file.imports():
            parts = name.split(".")
            foreign = parts[0] == "headway" and len(parts) > 1 and parts[1] in FOLDERS and parts[1] != file.folder
            if foreign and any(part.startswith("_") and not part.startswith("__") for part in parts[2:]):
                wrong.append(f"{file.path}:{line}: {name} is private to {parts[1]}")
    assert not wrong, "\n".join(wrong)


def test_no_file_hides_a_standard_library_module() -> None:
    wrong = [str(file.path) for file in _folder_files() if file.path.stem in sys.stdlib_module_names]
    assert not wrong, wrong


def test_no_file_is_named_after_nothing() -> None:
    wrong = [str(file.path) for file in _folder_files() if file.path.stem in {"utils", "util", "helpers", "common", "misc"}]
    assert not wrong, wrong


def test_every_module_says_what_it_is() -> None:
    wrong = [str(file.path) for file in source_files() if not ast.get_docstring(file.tree)]
    assert not wrong, wrong


def test_files_stay_readable() -> None:
    """600 lines is where style asks for a split or for the reason to stay whole."""
    long = {str(file.path): lines for file in source_files() if (lines := _lines(file)) > 600}
    assert not long, long


def _lines(file: SourceFile) -> int:
    return max((node.end_lineno or 0 for node in file.tree.body), default=0)


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_init_holds_no_logic(folder: str) -> None:
    (init,) = [file for file in source_files() if file.path.parts == (folder, "__init__.py")]
    for node in init.tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        names = isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
        assert docstring or names or isinstance(node, ast.Import | ast.ImportFrom), f"{init.path}:{node.lineno}"
