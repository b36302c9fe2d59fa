"""What `__all__` promises: each name exists, is documented and has its place; the root resolves the same names lazily."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest

import headway

from .source_tree import FOLDERS

MODULES = ("headway", *(f"headway.{folder}" for folder in FOLDERS))


def _public(module: ModuleType) -> list[str]:
    return list(getattr(module, "__all__", []))


def _rank(name: str) -> tuple[int, str]:
    if name.isupper():
        return 0, name
    return (1 if name[:1].isupper() else 2), name


@pytest.mark.parametrize("name", MODULES)
def test_public_names_exist_sorted_and_once(name: str) -> None:
    module = importlib.import_module(name)
    names = _public(module)
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=_rank)
    for public in names:
        assert hasattr(module, public), f"{name}.{public}"


@pytest.mark.parametrize("name", MODULES)
def test_public_things_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    missing = []
    for public in _public(module):
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            if not (value.__doc__ or "").strip():
                missing.append(public)
            if inspect.isclass(value) and value.__module__.startswith("headway"):
                missing += [f"{public}.{member}" for member in _undocumented(value)]
    assert not missing, f"{name}: without a docstring: {missing}"


def _undocumented(cls: type) -> list[str]:
    members = []
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        inherits = any(hasattr(base, name) for base in cls.__mro__[1:])
        if not name.startswith("_") and inspect.isfunction(function) and not inherits and not function.__doc__:
            members.append(name)
    return members


def test_root_names_are_those_of_their_homes() -> None:
    for name in headway.__all__:
        value = getattr(headway, name)
        if inspect.isclass(value):
            assert value.__module__.startswith("headway."), name
    assert set(headway.__all__) <= set(dir(headway))


def test_an_unknown_root_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Lodaer'"):
        headway.Lodaer  # noqa: B018  the attribute access is the test
