"""Names: every package exports what it registers, a class has one name, and no function hides a module."""

import ast
import importlib
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import temperance
from temperance import calibrators, heads, losses, metrics
from temperance.errors import MissingExtraError
from temperance.registry import Registry

SOURCE = Path(temperance.__file__).parent


def importable(name: str) -> bool:
    """Is the library installed that the module is for?"""
    try:
        importlib.import_module(name)
    except MissingExtraError:
        return False
    return True


MODULES = [
    name
    for path in sorted(SOURCE.rglob("*.py"))
    if path.stem != "__main__"
    and importable(
        name := ".".join(("temperance", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    )
]
PACKAGES = [name for name in MODULES if hasattr(importlib.import_module(name), "__path__")]
EXPORTING = [name for name in PACKAGES if hasattr(importlib.import_module(name), "__all__")]


def tree(package: str) -> ast.Module:
    return ast.parse(Path(str(importlib.import_module(package).__file__)).read_text())


@pytest.mark.parametrize("package", EXPORTING)
def test_public_names_are_sorted_and_there(package: str) -> None:
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(module.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    for public in module.__all__:
        assert hasattr(module, public)


@pytest.mark.parametrize("package", EXPORTING)
def test_what_a_package_imports_for_its_users_is_public(package: str) -> None:
    found = {
        alias.asname or alias.name
        for node in tree(package).body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("temperance")
        for alias in node.names
    }
    assert found <= set(importlib.import_module(package).__all__)


@pytest.mark.parametrize(
    ("package", "registry"),
    [
        (calibrators, calibrators.CALIBRATORS),
        (heads, heads.HEADS),
        (losses, losses.LOSSES),
        (metrics, metrics.METRICS),
    ],
    ids=lambda part: getattr(part, "kind", ""),
)
def test_what_is_registered_is_public(package: ModuleType, registry: Registry[Any]) -> None:
    for entry in registry:
        assert entry.__name__ in package.__all__ and getattr(package, entry.__name__) is entry


def test_class_names_are_unique_in_any_case() -> None:
    found = Counter(
        node.name.lower()
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in found.items() if times > 1] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_hides_a_module(package: str) -> None:
    for name in MODULES:
        parent, _, last = name.rpartition(".")
        if parent == package:
            module = importlib.import_module(name)
            assert getattr(sys.modules[package], last) is module
