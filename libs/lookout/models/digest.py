"""Which model a folder holds."""

import hashlib
from pathlib import Path

_FILES = ("*.safetensors", "*.json")


def folder_digest(folder: Path) -> str:
    """16 hex digits over the names and bytes of a checkpoint's weights, configuration and tokenizer."""
    state = hashlib.blake2b(digest_size=8)
    for path in sorted(path for pattern in _FILES for path in folder.glob(pattern)):
        state.update(path.name.encode() + b"\0")
        with open(path, "rb") as file:
            state.update(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).digest())
    return state.hexdigest()
