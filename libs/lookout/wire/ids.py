"""Deterministic ids: the same facts give the same id on every replica and every replay."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from typing import Final

from lookout.text import clean
from lookout.v1.labels_pb2 import Label
from lookout.wire.limits import ID_BYTES

CAMERA_ID_BYTES: Final = ID_BYTES
#: pattern of names that people give; the console's form repeats it (`src/api.ts`)
_NEW_NAME: Final = re.compile(r"(?!.*\.\.)[^\W_][\w./:-]{0,63}")


def is_camera_id(text: str) -> bool:
    """Whether `text` is a valid id of a camera or a watch: printable, 1 to 200 bytes in UTF-8."""
    # Characters are checked first, because a key may have megabytes and a lone surrogate (not printable)
    # cannot be encoded.
    if not 0 < len(text) <= ID_BYTES or not text.isprintable() or "\ufffd" in text:
        return False
    return len(text.encode()) <= ID_BYTES


def name_fault(text: str) -> str:
    """Return why a new camera or watch cannot have this name; "" if it can.

    Existing names need only pass `is_camera_id`. New names are checked more strictly, because they appear in
    URLs, patterns and commands.
    """
    if _NEW_NAME.fullmatch(text):
        return ""
    return f"{clean(text, 40)!r}: use 1 to 64 letters, digits or - _ . / : and begin with a letter or digit"


def names_id(pattern: str, identity: str) -> bool:
    """Whether a pattern matches a camera or a watch: it equals the id, or it is a glob that matches the id.
    An id may itself contain glob characters, such as `yard [2]`."""
    return identity == pattern or fnmatch.fnmatchcase(identity, pattern)


def key_text(key: bytes | str | None) -> str:
    """Return a record's key as text; invalid UTF-8 is escaped (\\xff), so that keys stay distinct."""
    return key if isinstance(key, str) else (key or b"").decode("utf-8", "backslashreplace")


def stable_id(*parts: str | int) -> str:
    """Return 32 hex digits of BLAKE2b. Each part is preceded by its length, so different lists of parts never
    have the same input."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = str(part).encode()
        digest.update(len(raw).to_bytes(4, "big"))
        digest.update(raw)
    return digest.hexdigest()


def verdict_id(camera: str, epoch: int, watch: str, version: int, window: int) -> str:
    """Return the id of the only outcome for a camera, epoch, watch, version and window."""
    return stable_id("verdict", camera, epoch, watch, version, window)


def incident_id(camera: str, epoch: int, watch: str, version: int, first_window: int) -> str:
    """Return the id that an incident keeps from opening to closing."""
    return stable_id("incident", camera, epoch, watch, version, first_window)


def label_key(label: Label) -> str:
    """Return the key of a label's record."""
    return f"{label.camera}/{label.watch}/{label.incident}"


def tensor_id(stage: str, camera: str, epoch: int, start_us: int, digest: str) -> str:
    """Return the id of a cached tensor: readable, unique within an installation."""
    return f"{stage}/{camera}/{epoch}/{start_us}/{digest}"
