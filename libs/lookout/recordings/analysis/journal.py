"""Keeps the finished parts of a request in a file, so that an interrupted run can continue."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lookout.disk import private_folder, replace_file
from lookout.models.engines import Question
from lookout.recordings import Mode
from lookout.recordings.analysis.results import PartResult
from lookout.recordings.analysis.settings import AnalysisError, AnalysisSettings
from lookout.text import clean
from lookout.video.files import RecordingReader

#: version of how recordings are cut into parts: raise it when the bounds of parts change
_CUTTING = 2


class Journal:
    """The finished parts of one request: a line that identifies the request, then one JSON object per line.

    An incomplete line from an interrupted run is ignored. The journal of another request is started over. A
    file that is not a journal is never replaced.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity

    def read(self) -> dict[int, PartResult]:
        """Return the finished parts by number. Create the file if it is missing or another request's.

        Raises:
            AnalysisError: The path exists but is not a journal.
        """
        lines = self._lines()
        if not lines or lines[0].get("request") != self.identity:
            private_folder(self.path.parent)
            replace_file(self.path, (json.dumps({"request": self.identity}) + "\n").encode())
            return {}
        results = [PartResult.from_dict(line) for line in lines[1:]]
        valid_lines = [json.dumps(lines[0]), *(json.dumps(result.to_dict()) for result in results)]
        replace_file(self.path, ("\n".join(valid_lines) + "\n").encode())
        return {result.part.number: result for result in results}

    def _lines(self) -> list[dict[str, Any]]:
        """Return the complete lines of the file."""
        if not self.path.name or (self.path.exists() and not self.path.is_file()):
            raise AnalysisError(f"journal={clean(self.path)} is not a file: give one, such as run.jsonl")
        text = self.path.read_bytes() if self.path.is_file() else b""
        lines: list[dict[str, Any]] = []
        for line in text.splitlines():
            try:
                lines.append(json.loads(line))
            except (ValueError, RecursionError):
                break
        # A journal is created together with its first line, so every journal has that line.
        if text and not (lines and isinstance(lines[0], dict) and "request" in lines[0]):
            raise AnalysisError(f"journal={clean(self.path)} is another kind of file: give another path")
        return lines

    def add(self, result: PartResult) -> None:
        """Append a finished part."""
        with self.path.open("a") as file:
            file.write(json.dumps(result.to_dict()) + "\n")
            file.flush()


def identity_of(
    model: str, reader: RecordingReader, questions: Sequence[Question], settings: AnalysisSettings
) -> str:
    """Return an identifier of a request, from the model's digest, the recording, the questions, and the
    settings that change answers."""
    canonical = dataclasses.replace(settings, mode=Mode.OVERLAPPED, waiting=1, threads=None)
    table = reader.table
    state = hashlib.blake2b(digest_size=16)
    state.update(repr((model, _CUTTING, [(q.text, q.describe) for q in questions])).encode())
    state.update(repr(canonical).encode())
    state.update(repr(reader.facts).encode())
    for array in (table.pts, table.size):
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()
