"""Imports names of a package on first use (PEP 562)."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

from lookout.missing import missing_package


def lazy_names(package: str) -> Callable[[str], Any]:
    """Return a package's `__getattr__`. It finds the names that the package's `__init__.py` imports below
    `if TYPE_CHECKING:`.

    Args:
        package: The package's `__name__`.

    Returns:
        A function that imports a name; it raises AttributeError for any other name, and `MissingPackageError`
            if a package of an extra is not installed.
    """
    modules = _modules(pkgutil.get_data(package, "__init__.py") or b"")

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(modules[name])
        except ModuleNotFoundError as error:
            raise missing_package(error) or error from error
        return getattr(module, name)

    return find


def _modules(source: bytes) -> dict[str, str]:
    """Return the module of each name that is imported for type checkers only."""
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [
        node
        for block in blocks
        if isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    ]
    return {alias.name: node.module or "" for node in imports for alias in node.names}
