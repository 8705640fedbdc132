"""Model families: what Lookout knows of each, and what is read of a checkpoint folder by it.

`FAMILIES` has a record for each family; nothing else in Lookout names one. Records and `model_input` work
without torch; `load_tower` and `load_layout` import it when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lookout.families.inputs import model_input
from lookout.families.registry import FAMILIES, family_of
from lookout.families.types import Family, ModelInput, Prompt, TextModel

if TYPE_CHECKING:
    from lookout.families.layout import LAYOUT_FILE, load_layout, read_config
    from lookout.families.loading import load_tower

_LAZY = {"LAYOUT_FILE": "layout", "load_layout": "layout", "read_config": "layout", "load_tower": "loading"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


__all__ = [
    "FAMILIES",
    "LAYOUT_FILE",
    "Family",
    "ModelInput",
    "Prompt",
    "TextModel",
    "family_of",
    "load_layout",
    "load_tower",
    "model_input",
    "read_config",
]
