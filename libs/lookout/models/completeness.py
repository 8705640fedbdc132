"""Whether a folder holds all of a checkpoint: a copy that broke off lacks a file or a part of one."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Final

from lookout.models.errors import ModelError
from lookout.outside_text import clean

WEIGHTS: Final = "model.safetensors"
INDEX: Final = f"{WEIGHTS}.index.json"
TOKENIZERS: Final = ("tokenizer.json", "vocab.json", "tokenizer.model")
"""Any of these is a tokenizer."""
_NAMED: Final = 3


def check_complete(folder: Path) -> None:
    """Check that the files of a checkpoint are there; its documents were read already.

    Raises:
        ModelError: It has no tokenizer or no weights, or a file of weights is missing.
    """
    if (folder / INDEX).is_file():
        _check_shards(folder)
    elif not (folder / WEIGHTS).is_file():
        missing = INDEX if next(folder.glob("*.safetensors"), None) else WEIGHTS
        raise ModelError(f"{folder} holds no weights: {missing} is missing; copy the whole checkpoint")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ModelError(f"{folder} has no tokenizer: {TOKENIZERS[0]} is missing; copy the whole checkpoint")


def _check_shards(folder: Path) -> None:
    shards = json.loads((folder / INDEX).read_bytes()).get("weight_map")
    if not isinstance(shards, dict) or not all(_is_name(shard) for shard in shards.values()):
        raise ModelError(f"{folder / INDEX}: weight_map does not name a file beside it for every weight")
    for shard in sorted(set(shards.values())):
        if not (folder / shard).is_file():
            raise ModelError(
                f"{folder} lacks {clean(shard, 100)}, which {INDEX} names: copy the whole checkpoint"
            )


def _is_name(shard: object) -> bool:
    return isinstance(shard, str) and bool(shard) and Path(shard).name == shard


def check_loaded(folder: Path, missing: Collection[str]) -> None:
    """Check what the stock classes say after loading. They draw weights that are missing at random.

    Args:
        folder: The checkpoint.
        missing: Names of the weights that its files do not have.

    Raises:
        ModelError: There are some.
    """
    if not missing:
        return
    names = sorted(missing)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    plural = "s" if len(names) > 1 else ""
    shown = ", ".join(clean(name, 100) for name in names[:_NAMED])
    raise ModelError(
        f"{folder} lacks {len(names)} weight{plural} of the model: {shown}{more}; copy the whole checkpoint"
    )
