"""Finished measurements of a bench by name, stored in a file so that an interrupted run continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Results:
    """Measurements in a file of JSON lines, each [name, value].

    Args:
        path: The file; made with the first measurement.
        fresh: Forget what it holds.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self.found: dict[str, Any] = {}
        if fresh:
            path.unlink(missing_ok=True)
        if path.exists():
            for line in path.read_text().splitlines():
                name, value = json.loads(line)
                self.found[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def add(self, name: str, value: object) -> None:
        """Keep a measurement."""
        self.found[name] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps([name, value]) + "\n")
