"""Names of a package that are imported on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from lookout.missing import missing_package


def lazy_names(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`.

    Args:
        package: Its `__name__`.
        modules: Modules of the package, with the names that each one provides.

    Returns:
        A function that raises AttributeError for any other name, and `MissingPackageError` if a package of an
        extra is not installed.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f"{package}.{places[name]}")
        except ModuleNotFoundError as error:
            raise missing_package(error) or error from error
        return getattr(module, name)

    return find
