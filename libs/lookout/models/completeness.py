"""Checks that a folder has a whole checkpoint. After an interrupted copy, files or weights are missing."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lookout.models.errors import ModelError
from lookout.text import clean

if TYPE_CHECKING:
    import torch

WEIGHTS: Final = "model.safetensors"
INDEX: Final = f"{WEIGHTS}.index.json"
TOKENIZERS: Final = ("tokenizer.json", "vocab.json", "tokenizer.model")
"""Files that contain a tokenizer; one of them is enough."""
PROMPTS: Final = ("chat_template.jinja", "chat_template.json", "lookout_layout.json")
"""Files that define the prompt; one of them is enough. Older checkpoints define it in the tokenizer's
configuration."""
_NAMED: Final = 3


def check_complete(folder: Path) -> None:
    """Check that all files of a checkpoint exist. `check_checkpoint` must have read its JSON files before.

    Raises:
        ModelError: The tokenizer, the chat template, or some or all of the weights are missing.
    """
    if (folder / INDEX).is_file():
        _check_shards(folder)
    elif not (folder / WEIGHTS).is_file():
        missing = INDEX if next(folder.glob("*.safetensors"), None) else WEIGHTS
        raise ModelError(f"{folder} has no weights: {missing} is missing; copy the whole checkpoint")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ModelError(f"{folder} has no tokenizer: {TOKENIZERS[0]} is missing; copy the whole checkpoint")
    if not any((folder / name).is_file() for name in PROMPTS) and not _tokenizer_has_template(folder):
        raise ModelError(
            f"{folder} has no chat template, which defines how the model is asked: copy {PROMPTS[0]} (or "
            f"{PROMPTS[1]}) with the checkpoint, or write a lookout_layout.json"
        )


def _tokenizer_has_template(folder: Path) -> bool:
    path = folder / "tokenizer_config.json"  # if it exists, it is a JSON object (`check_checkpoint`)
    return path.is_file() and bool(json.loads(path.read_bytes()).get("chat_template"))


def _check_shards(folder: Path) -> None:
    shards = json.loads((folder / INDEX).read_bytes()).get("weight_map")
    if not isinstance(shards, dict) or not all(_is_name(shard) for shard in shards.values()):
        raise ModelError(f"{folder / INDEX}: weight_map must name a file next to it for every weight")
    for shard in sorted(set(shards.values())):
        if not (folder / shard).is_file():
            raise ModelError(
                f"{folder} lacks {clean(shard, 100)}, which {INDEX} names: copy the whole checkpoint"
            )


def _is_name(shard: object) -> bool:
    return isinstance(shard, str) and bool(shard) and Path(shard).name == shard


def check_loaded(
    folder: Path, missing: Collection[str], weights: Iterable[tuple[str, torch.Tensor]] = ()
) -> None:
    """Check the weights that transformers loaded, because transformers fills missing weights with random
    numbers and accepts NaN and infinity.

    Args:
        folder: The checkpoint.
        missing: Names of the model's weights that the files lack.
        weights: The loaded weights, by name.

    Raises:
        ModelError: Weights are missing, or a loaded weight has a number that is not finite.
    """
    for name, weight in weights:
        check_finite_weight(folder, name, weight)
    if not missing:
        return
    names = sorted(missing)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    plural = "s" if len(names) > 1 else ""
    shown = ", ".join(clean(name, 100) for name in names[:_NAMED])
    raise ModelError(
        f"{folder} lacks {len(names)} weight{plural} of the model: {shown}{more}; copy the whole checkpoint"
    )


def check_finite_weight(folder: Path, name: str, weight: torch.Tensor) -> None:
    """Check that every number of a weight is finite, because a single NaN or infinity makes every answer NaN.

    The check reads the weight once, without a copy, and takes a tenth of the time of loading it.

    Args:
        folder: The checkpoint.
        name: The weight's name.
        weight: The weight, of any shape and dtype.

    Raises:
        ModelError: A number is not finite.
    """
    if not weight.is_floating_point() or weight.itemsize < 2 or not weight.numel():
        return  # torch has no minimum and maximum for 8-bit floats
    edges = [float(edge) for edge in weight.detach().aminmax()]
    if not all(map(math.isfinite, edges)):
        raise ModelError(
            f"{folder}: the weight {clean(name, 100)} has numbers that are not finite (NaN or infinity): "
            "copy the whole checkpoint, or save it again with a dtype that can represent its numbers"
        )
