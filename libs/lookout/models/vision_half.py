"""Writes the vision half of a checkpoint, which is all that prune-encode loads: tower and projector.

The language model's layers are omitted. Its embedding is kept, because transformers rejects a checkpoint
without one.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safetensors import safe_open
from safetensors.torch import save_file

from lookout.models import ModelError, find_model
from lookout.models.digest import VISION_HALF, folder_digest

_INDEX: Final = "model.safetensors.index.json"
#: layers and head of the language model, in every spelling that the families' checkpoints use; a tower's
#: layers have the tower's name in front (`vision_tower.vision_model.encoder.layers.0`, `visual.blocks.0`)
_LANGUAGE: Final = re.compile(
    r"^(?:model\.)?language_model\.(?:model\.)?layers\.|^model\.layers\.|^(?:language_model\.)?lm_head\."
)


@dataclass(frozen=True, slots=True)
class VisionHalf:
    """A vision half that was written.

    Attributes:
        digest: Digest of the whole checkpoint, which also identifies the half.
        whole_bytes: Size of the whole checkpoint's weights in bytes.
        half_bytes: Size of the half's weights in bytes.
    """

    digest: str
    whole_bytes: int
    half_bytes: int


def write_vision_half(folder: Path, target: Path) -> VisionHalf:
    """Write the vision half of a checkpoint to a folder; return its digest and sizes.

    Args:
        folder: The whole checkpoint.
        target: A folder that does not exist yet, or is empty.

    Raises:
        ModelError: The folder is not a whole checkpoint, or the target is not empty.
    """
    folder = find_model(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} is not empty: give a new folder")
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.iterdir()):
        # `copyfile` follows symbolic links, of which a download cache consists.
        if path.is_file() and path.suffix != ".safetensors" and path.name != _INDEX:
            shutil.copyfile(path, target / path.name)
    weights = sorted(folder.glob("*.safetensors"))
    files = {path.name: _copy_weights(path, target / path.name) for path in weights}
    names = {name: file for file, tensors in files.items() for name in tensors}
    if (folder / _INDEX).exists():
        size = sum(path.stat().st_size for path in target.glob("*.safetensors"))
        index = {"metadata": {"total_size": size}, "weight_map": names}
        (target / _INDEX).write_text(json.dumps(index, indent=2))
    digest = folder_digest(folder)
    # The marker is written last, so a folder with the marker is complete.
    (target / VISION_HALF).write_text(json.dumps({"digest": digest}))
    return VisionHalf(digest, _size(folder), _size(target))


def _copy_weights(source: Path, target: Path) -> list[str]:
    """Copy a file's tensors except those of the language model; return the names of the copied tensors."""
    with safe_open(source, framework="pt") as tensors:
        names = [name for name in tensors.keys() if not _LANGUAGE.match(name)]  # noqa: SIM118 - not a dict
        if names:
            save_file({name: tensors.get_tensor(name) for name in names}, target, {"format": "pt"})
    return names


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
