"""Warnings of a local fleet's services that name a camera and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

from lookout.text import clean


class CameraAdvice:
    """Reads the logs of services from now on.

    Services mark such a warning with `advice` and repeat it seldom, so every one is shown.

    Args:
        folder: The logs, a file for each service.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = {path: path.stat().st_size for path in folder.glob("*.log")}

    def news(self) -> list[str]:
        """A sentence for each warning since the last call."""
        return [sentence for path in sorted(self._folder.glob("*.log")) for sentence in self._read(path)]

    def _read(self, path: Path) -> list[str]:
        """The warnings in the whole lines that a log has gained."""
        with path.open("rb") as file:
            file.seek(self._places.get(path, 0))
            lines, _, rest = file.read().rpartition(b"\n")
            self._places[path] = file.tell() - len(rest)
        return [sentence for line in lines.splitlines() if (sentence := _sentence(line))]


def _sentence(line: bytes) -> str:
    """What a line advises; empty where it advises nothing."""
    if b'"advice"' not in line:
        return ""
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    if not isinstance(entry, dict) or entry.get("advice") is not True:
        return ""
    return f"camera {clean(entry.get('camera', '?'))}: {clean(entry.get('event', ''))}"
