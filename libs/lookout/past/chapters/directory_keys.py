"""The Redis key of a camera's chapters, and the parser of the facts stored under it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypedDict

from lookout.runtime.store.labels import camera_entries


class DirectoryFacts(TypedDict):
    """A chapter's entry in Redis: its holder, and the wall times of its first and last frame."""

    pod: str
    begin_us: int
    end_us: int


def chapters_key(camera: str) -> str:
    """Return the Redis key of the hash with the facts of a camera's chapters."""
    return f"{camera_entries(camera)}chapters"


def chapter_facts(stored: Mapping[Any, Any]) -> dict[str, DirectoryFacts]:
    """Parse the hash with the facts of a camera's chapters. Returns facts by chapter name; malformed entries
    are omitted."""
    out: dict[str, DirectoryFacts] = {}
    for name, value in stored.items():
        try:
            facts = json.loads(value)
            own: DirectoryFacts = {
                "pod": str(facts["pod"]),
                "begin_us": int(facts["begin_us"]),
                "end_us": int(facts["end_us"]),
            }
            out[name.decode()] = own
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return out
