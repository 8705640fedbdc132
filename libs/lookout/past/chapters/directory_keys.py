"""The keys of a camera's chapters in Redis, and how their facts are read there."""

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
    """Return the key of the hash of a camera's chapters."""
    return f"{camera_entries(camera)}chapters"


def chapter_facts(stored: Mapping[Any, Any]) -> dict[str, DirectoryFacts]:
    """Parse the facts of a camera's chapters by name, from their hash; malformed ones are left out."""
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
