"""Deterministic ids: the same facts give the same id on every replica and every replay."""

from __future__ import annotations

import fnmatch
import hashlib
from typing import Final

from lookout.v1.labels_pb2 import Label
from lookout.wire.limits import ID_BYTES

CAMERA_ID_BYTES: Final = ID_BYTES


def is_camera_id(text: str) -> bool:
    """Whether `text` can be the id of a camera or a watch: printable, 1 to 200 bytes in UTF-8."""
    # Characters first: a key may be megabytes, and half of a surrogate pair (not printable) cannot be
    # encoded.
    if not 0 < len(text) <= ID_BYTES or not text.isprintable() or "\ufffd" in text:
        return False
    return len(text.encode()) <= ID_BYTES


def names_id(pattern: str, identity: str) -> bool:
    """Whether a pattern names a camera or a watch: it is its id, or a glob that fits it. An id may have what
    a glob has: `yard [2]`.
    """
    return identity == pattern or fnmatch.fnmatchcase(identity, pattern)


def key_text(key: bytes | str | None) -> str:
    """A record's key as text; bytes that are not UTF-8 are written \\xff, so keys stay distinguishable."""
    return key if isinstance(key, str) else (key or b"").decode("utf-8", "backslashreplace")


def stable_id(*parts: str | int) -> str:
    """32 hex digits of BLAKE2b; parts are length-prefixed, so no two lists of parts join to the same text."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = str(part).encode()
        digest.update(len(raw).to_bytes(4, "big"))
        digest.update(raw)
    return digest.hexdigest()


def verdict_id(camera: str, epoch: int, watch: str, version: int, window: int) -> str:
    """The id of the one outcome of a camera, epoch, watch, version and window."""
    return stable_id("verdict", camera, epoch, watch, version, window)


def incident_id(camera: str, epoch: int, watch: str, version: int, first_window: int) -> str:
    """The id that an incident keeps from opening to closing."""
    return stable_id("incident", camera, epoch, watch, version, first_window)


def label_key(label: Label) -> str:
    """The key of a label's record."""
    return f"{label.camera}/{label.watch}/{label.incident}"


def tensor_id(stage: str, camera: str, epoch: int, start_us: int, digest: str) -> str:
    """The id of a cached tensor: readable, unique within an installation."""
    return f"{stage}/{camera}/{epoch}/{start_us}/{digest}"
