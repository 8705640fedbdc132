"""Writes the finished parts of a request to a file, so that an interrupted run can continue after them."""

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

#: version of the cutting into parts; raise it whenever the bounds of parts change, so that old journals do
#: not match
_CUTTING = 2


class Journal:
    """A file with the finished parts of one request.

    Its first line identifies the request; every other line is the JSON object of one part. A last line that
    is incomplete because a run was interrupted is ignored. A journal of another request is overwritten. A
    file that is not a journal is never overwritten.

    Args:
        path: The file.
        identity: Identifies the request (`identity_of`).
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity

    def read(self) -> dict[int, PartResult]:
        """Return the finished parts by number. If the file is missing or belongs to another request, begin a
        new file and return no parts.

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
            raise AnalysisError(f"journal={clean(self.path)} is not a file: give a file, such as run.jsonl")
        text = self.path.read_bytes() if self.path.is_file() else b""
        lines: list[dict[str, Any]] = []
        for line in text.splitlines():
            try:
                lines.append(json.loads(line))
            except (ValueError, RecursionError):
                break
        # A journal is created with its first line, so a file without that line is not a journal.
        if text and not (lines and isinstance(lines[0], dict) and "request" in lines[0]):
            raise AnalysisError(
                f"journal={clean(self.path)} exists but is not a journal: give the path of a journal, or of "
                "a file that does not exist"
            )
        return lines

    def add(self, result: PartResult) -> None:
        """Append the result of a finished part."""
        with self.path.open("a") as file:
            file.write(json.dumps(result.to_dict()) + "\n")
            file.flush()


def identity_of(
    model: str, reader: RecordingReader, questions: Sequence[Question], settings: AnalysisSettings
) -> str:
    """Return a digest of everything that determines a request's answers: the model's digest, the recording,
    the questions, and the settings that change answers."""
    relevant_settings = dataclasses.replace(settings, mode=Mode.OVERLAPPED, waiting=1, threads=None)
    table = reader.table
    state = hashlib.blake2b(digest_size=16)
    state.update(repr((model, _CUTTING, [(q.text, q.describe) for q in questions])).encode())
    state.update(repr(relevant_settings).encode())
    state.update(repr(reader.facts).encode())
    for array in (table.pts, table.size):
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()
