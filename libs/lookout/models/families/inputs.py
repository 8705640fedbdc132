"""The input size of a checkpoint, read from its configuration without loading it (and without torch)."""

from __future__ import annotations

import json
from pathlib import Path

from lookout.models.errors import ModelError
from lookout.models.families.registry import UnknownFamilyError, family_of
from lookout.models.families.types import ModelInput


def model_input(folder: Path) -> ModelInput:
    """Return the picture size that a checkpoint's vision tower takes by default (the loaded tower states the
    same size).

    Raises:
        ModelError: the folder has no readable configuration, or Lookout does not run its family.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as a model's configuration: {error}") from error
    facts = config if isinstance(config, dict) else {}
    try:
        return family_of(facts.get("model_type")).input(facts.get("vision_config") or {})
    except UnknownFamilyError as error:
        raise ModelError(f"{path}: {error}") from error
    except (TypeError, ValueError, IndexError) as error:
        raise ModelError(f"{path}: the sizes of the vision tower are invalid ({error})") from error
