"""The pixels a checkpoint looks at, read from its configuration without loading it (and without torch)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookout.models.errors import ModelError

__all__ = ["ModelInput", "model_input"]

# Families that take any size, and what Lookout gives them.
FLEXIBLE = {"qwen2_5_vl": (448, 14), "qwen3_vl": (448, 16)}


@dataclass(frozen=True, slots=True)
class ModelInput:
    """Width and height of the picture, and side of a patch, in pixels."""

    width: int
    height: int
    patch: int

    @property
    def rows(self) -> int:
        """Patch rows; a remainder that fills no patch is not looked at."""
        return self.height // self.patch

    @property
    def cols(self) -> int:
        """Patch columns."""
        return self.width // self.patch


def model_input(folder: Path) -> ModelInput:
    """What the vision tower of a checkpoint folder takes by default (`lookout.vision` says the same).

    Raises:
        ModelError: the folder holds no configuration, or one of a family without a vision tower here.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as a model's configuration: {error}") from error
    family = config.get("model_type") if isinstance(config, dict) else None
    vision = config.get("vision_config") or {} if isinstance(config, dict) else {}
    try:
        if family in FLEXIBLE:
            side, patch = FLEXIBLE[family]
            return ModelInput(side, side, int(vision.get("patch_size", patch)))
        if family == "internvl":
            height, width = _pair(vision.get("image_size", 448))
            return ModelInput(width, height, _pair(vision.get("patch_size", 14))[0])
        if family == "llava_onevision":
            side = _pair(vision.get("image_size", 384))[0]
            return ModelInput(side, side, _pair(vision.get("patch_size", 14))[0])
    except (TypeError, ValueError, IndexError) as error:
        raise ModelError(f"{path}: the sizes of the vision tower are invalid ({error})") from error
    raise ModelError(
        f"{path}: family {family!r} has no vision tower in Lookout; supported: internvl, llava_onevision, "
        f"{', '.join(FLEXIBLE)}"
    )


def _pair(value: Any) -> tuple[int, int]:
    """(height, width) of what may be one number for both."""
    first, second = (value[0], value[1]) if isinstance(value, list) else (value, value)
    return int(first), int(second)
