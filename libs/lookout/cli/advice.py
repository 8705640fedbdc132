"""Warnings in a local fleet's logs that tell the user what to do, about a camera or the topics."""

from __future__ import annotations

import json
from pathlib import Path

from lookout.text import clean


class CameraAdvice:
    """Follows the logs of a local fleet's services and returns the advice in them.

    Services mark a warning that tells the user what to do with `advice`. They rarely repeat such a warning,
    so every one is shown.

    Args:
        folder: The folder of the logs, one file for each service.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = {path: path.stat().st_size for path in folder.glob("*.log")}

    def news(self) -> list[str]:
        """Return one sentence per warning since the last call."""
        return [sentence for path in sorted(self._folder.glob("*.log")) for sentence in self._read(path)]

    def _read(self, path: Path) -> list[str]:
        """Return the warnings in the complete lines that were added to a log since the last call."""
        with path.open("rb") as file:
            file.seek(self._places.get(path, 0))
            lines, _, unfinished = file.read().rpartition(b"\n")
            self._places[path] = file.tell() - len(unfinished)
        return [sentence for line in lines.splitlines() if (sentence := _sentence(line))]


def _sentence(line: bytes) -> str:
    """Return the advice in a log line; empty if it has none."""
    if b'"advice"' not in line:
        return ""
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    if not isinstance(entry, dict) or entry.get("advice") is not True:
        return ""
    event = clean(entry.get("event", ""))
    return f"camera {clean(entry['camera'])}: {event}" if "camera" in entry else event
