"""The hand-written package list of pyproject.toml equals the tree, so that no sub-package misses the wheel."""

from __future__ import annotations

import tomllib

from .source_tree import FOLDERS, ROOT, package_dirs


def test_package_list_equals_the_tree() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    assert listed == sorted(listed)
    assert set(listed) == set(package_dirs())
    found = {"headway"}
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            if parts[:2] != ("loader", "headway"):
                found.add(".".join(("headway", *parts)))
    assert found == set(listed)


def test_each_package_maps_to_its_folder() -> None:
    for package, folder in package_dirs().items():
        expected = "loader/headway" if package == "headway" else package.removeprefix("headway.").replace(".", "/")
        assert folder == expected


def test_typed_marker_ships_in_the_root_package() -> None:
    assert (ROOT / "loader/headway/py.typed").exists()


def test_versions_agree() -> None:
    import headway

    assert headway.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
