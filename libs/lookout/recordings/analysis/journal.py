"""Finished parts of a request in a file, so that a run that was stopped continues after them."""

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

#: how recordings are cut into parts: another number where their bounds change
_CUTTING = 2


class Journal:
    """Finished parts of one request, one JSON object a line after a line that names the request.

    A line that a stopped run left half written is ignored; another request's journal is begun again. A file
    that is no journal is never replaced.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity

    def read(self) -> dict[int, PartResult]:
        """The parts that are finished, by number. Begins the file where it is missing or another's.

        Raises:
            AnalysisError: What is there is no journal.
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
        """The whole lines of the file."""
        if not self.path.name or (self.path.exists() and not self.path.is_file()):
            raise AnalysisError(f"journal={clean(self.path)} is no file: name one, such as run.jsonl")
        text = self.path.read_bytes() if self.path.is_file() else b""
        lines: list[dict[str, Any]] = []
        for line in text.splitlines():
            try:
                lines.append(json.loads(line))
            except (ValueError, RecursionError):
                break
        # Its first line is written with the file, so a journal always has it.
        if text and not (lines and isinstance(lines[0], dict) and "request" in lines[0]):
            raise AnalysisError(f"journal={clean(self.path)} is a file of another kind: it is not replaced")
        return lines

    def add(self, result: PartResult) -> None:
        """Remember a part."""
        with self.path.open("a") as file:
            file.write(json.dumps(result.to_dict()) + "\n")
            file.flush()


def identity_of(
    model: str, reader: RecordingReader, questions: Sequence[Question], settings: AnalysisSettings
) -> str:
    """Names a request: the model's digest, recording, questions, and the settings that change answers."""
    canonical = dataclasses.replace(settings, mode=Mode.OVERLAPPED, waiting=1, threads=None)
    table = reader.table
    state = hashlib.blake2b(digest_size=16)
    state.update(repr((model, _CUTTING, [(q.text, q.describe) for q in questions])).encode())
    state.update(repr(canonical).encode())
    state.update(repr(reader.facts).encode())
    for array in (table.pts, table.size):
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()
