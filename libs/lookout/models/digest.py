"""Digests that identify the model in a checkpoint folder."""

import hashlib
import json
import os
from pathlib import Path
from typing import Final

from lookout.models.errors import ModelError
from lookout.models.questions import QUESTIONS_FILE

_FILES = ("*.safetensors", "*.json")
#: the file with the whole checkpoint's digest, in a folder that has only tower and projector
VISION_HALF: Final = "lookout_vision_half.json"


def folder_digest(folder: Path) -> str:
    """Return a digest (16 hex digits) of the names and contents of a checkpoint's weight files, configuration
    and tokenizer.

    The folder's list of questions with their F1 scores does not count, because a new measurement does not
    change the model.

    Raises:
        ModelError: A file cannot be read.
    """
    state = hashlib.blake2b(digest_size=8)
    files = (path for pattern in _FILES for path in folder.glob(pattern) if path.name != QUESTIONS_FILE)
    for path in sorted(files):
        state.update(path.name.encode() + b"\0")
        try:
            with open(path, "rb") as file:
                state.update(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).digest())
        except OSError as error:
            why = f"{error.strerror} (this process is user {os.geteuid()})"
            raise ModelError(f"{path} cannot be read: {why}") from error
    return state.hexdigest()


def is_vision_half(folder: Path) -> bool:
    """Whether a folder holds only the tower and projector of a checkpoint (`lookout model vision`)."""
    return (folder / VISION_HALF).is_file()


def tower_digest(folder: Path) -> str:
    """Return the digest of the whole checkpoint, even if the folder has only its vision half.

    Raises:
        ModelError: A vision half does not state the digest of its checkpoint, or a file cannot be read.
    """
    if not is_vision_half(folder):
        return folder_digest(folder)
    try:
        digest = json.loads((folder / VISION_HALF).read_text())["digest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{folder / VISION_HALF} states no digest: write the folder again with lookout model vision"
        ) from error
    if not isinstance(digest, str):
        raise ModelError(
            f"{folder / VISION_HALF} states no digest: write the folder again with lookout model vision"
        )
    return digest
