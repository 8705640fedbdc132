"""Model families: what Lookout knows of each, and what is read of a checkpoint folder by it.

`FAMILIES` has a record for each family; nothing else in Lookout names one. Records and `model_input` work
without torch; `load_tower` and `load_layout` import it when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.families.inputs import model_input
from lookout.families.registry import FAMILIES, family_of
from lookout.families.types import Family, ModelInput, Prompt, TextModel
from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.families.layout import LAYOUT_FILE, load_layout, read_config
    from lookout.families.loading import load_tower

_LAZY = {"LAYOUT_FILE": "layout", "load_layout": "layout", "read_config": "layout", "load_tower": "loading"}


__getattr__ = lazy_names(__name__, _LAZY)


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
