"""Checks the numbers in a checkpoint folder before any memory is allocated for them.

An untrusted folder cannot run code: weights are never unpickled, and Lookout never sets transformers'
`trust_remote_code`. The remaining risk is numbers so large that reading the checkpoint takes too much memory
or time.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lookout.disk import read_file
from lookout.models.errors import ModelError
from lookout.text import clean

CONFIG: Final = "config.json"
#: limits in bytes of a configuration and of any other JSON file; published configurations have a few thousand
#: bytes, vocabularies up to 20 million
_CONFIG_BYTES: Final = 4 << 20
_TOKENIZER_BYTES: Final = 256 << 20
#: the files that transformers and Lookout read; other files may contain anything
_DOCUMENTS: Final = frozenset(
    f"{name}.json"
    for name in (
        *(
            "generation_config",
            "tokenizer",
            "tokenizer_config",
            "special_tokens_map",
            "added_tokens",
            "vocab",
        ),
        *("preprocessor_config", "video_preprocessor_config", "processor_config", "chat_template"),
        *("model.safetensors.index", "lookout_layout", "lookout_questions", "lookout_windows"),
    )
)
#: limit in bytes of the header of a safetensors file, the same as in that format's own reader
_TABLE_BYTES: Final = 100_000_000
#: the first bytes of a Git LFS pointer, which replaces a large file
_POINTER: Final = b"version https://git-lfs"
_PARTS: Final = ("vision_config", "text_config")
#: limits of the layers of a tower or language model, and of any other number in a configuration
_LAYERS: Final = 1000
_NUMBER: Final = 1 << 31
_BITS: Final = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64},
    **{"F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
}


def check_checkpoint(folder: Path) -> None:
    """Check a checkpoint folder's configuration, its other JSON files and the headers of its weights.

    Raises:
        ModelError: A file is malformed or too large, or states impossible numbers.
    """
    config = _read_json(folder / CONFIG, _CONFIG_BYTES)
    for part in _PARTS:
        # If a part is not an object, transformers uses its defaults, a model with billions of parameters.
        if not isinstance(config.get(part, {}), dict):
            raise ModelError(f"{folder / CONFIG}: {part} is not a JSON object")
    for name, value in _numbers(config):
        limit = _LAYERS if "layers" in name or name == "depth" else _NUMBER
        if not math.isfinite(value) or abs(value) > limit:
            raise ModelError(f"{folder / CONFIG}: {clean(name, 60)} is {value:.6g}; the limit is {limit}")
    for path in sorted(folder.glob("*.json")):
        if path.name in _DOCUMENTS:
            _read_json(path, _TOKENIZER_BYTES)  # fails if a download was interrupted
        elif path.name != CONFIG:
            _read(path, _TOKENIZER_BYTES)
    for path in sorted(folder.glob("*.safetensors")):
        _check_weights(path)


def _read(path: Path, limit: int) -> bytes:
    try:
        return read_file(path, limit=limit, links=True)  # a download cache consists of symbolic links
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error


def _read_json(path: Path, limit: int) -> dict[str, Any]:
    try:
        value = json.loads(_read(path, limit))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {clean(error, 200)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def _numbers(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the key and the value of every number in a configuration."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield name, float(value) if abs(value) < 1e300 else math.inf
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, name)


def count_weights(folder: Path) -> int:
    """Return the number of parameters in a checkpoint's weight files, without loading them.

    Raises:
        ModelError: A weight file is damaged.
    """
    return sum(_check_weights(path) for path in sorted(folder.glob("*.safetensors")))


def _check_weights(path: Path) -> int:
    """Check the header of a safetensors file and return the number of parameters in its tensors.

    Raises:
        ModelError: The file is not in this format, or a tensor's offsets do not fit its shape or the file.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise ModelError(f"{path} cannot be read: not a regular file")
        with path.open("rb") as file:
            start = file.read(len(_POINTER))
            if start == _POINTER:
                raise ModelError(f"{path} is a Git LFS pointer: fetch the weights with git lfs pull")
            file.seek(0)
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size - 8, _TABLE_BYTES):
                raise ModelError(f"{path} is damaged: its table of tensors has {length} bytes")
            table = json.loads(file.read(length))
        return sum(
            _check_tensor(tensor, size - 8 - length)
            for name, tensor in table.items()
            if name != "__metadata__"
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError, struct.error) as error:
        if isinstance(error, ModelError):
            raise
        why = clean(error, 200)
        raise ModelError(f"{path} is damaged: its table of tensors cannot be used ({why})") from error


def _check_tensor(tensor: dict[str, Any], size: int) -> int:
    first, last = tensor["data_offsets"]
    elements = math.prod(int(side) for side in tensor["shape"])
    if not 0 <= first <= last <= size or (last - first) * 8 != elements * _BITS[tensor["dtype"]]:
        raise ValueError(
            f"{tensor['shape']} of {tensor['dtype']} does not fit bytes {first} to {last} of {size}"
        )
    return elements
