"""Model families: what Lookout knows about each family, and what it reads from a checkpoint folder.

`FAMILIES` has a record for each family; no other code names a family. Records and `model_input` work without
torch; `load_tower` and `load_layout` import it when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.models.families.inputs import model_input as model_input
from lookout.models.families.registry import FAMILIES as FAMILIES, family_of as family_of
from lookout.models.families.types import Family as Family, ModelInput as ModelInput

if TYPE_CHECKING:
    from lookout.models.families.layout import (
        LAYOUT_FILE as LAYOUT_FILE,
        close_thought as close_thought,
        load_layout as load_layout,
        load_tokenizer as load_tokenizer,
        read_config as read_config,
    )
    from lookout.models.families.loading import load_tower as load_tower, tower_grid as tower_grid

__getattr__ = lazy_names(__name__)
