"""Deterministic ids: the same facts give the same id on every replica and every replay."""

from __future__ import annotations

import hashlib
from typing import Final

CAMERA_ID_BYTES: Final = 200


def is_camera_id(text: str) -> bool:
    """Whether `text` can be a camera's id: printable, 1 to 200 bytes in UTF-8."""
    return 0 < len(text.encode()) <= CAMERA_ID_BYTES and text.isprintable() and "\ufffd" not in text


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


def tensor_id(stage: str, camera: str, epoch: int, start_us: int, digest: str) -> str:
    """The id of a cached tensor: readable, unique within an installation."""
    return f"{stage}/{camera}/{epoch}/{start_us}/{digest}"
