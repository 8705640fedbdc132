"""Labelled clips: which question is answered yes and when, in a CSV file.

    clip,question,answer,start_s,end_s
    door/monday.mp4,Is anyone lying on the ground?,yes,12.5,31
    door/monday.mp4,Is a vehicle in view?,no,,

One row says what is true of a clip between two times (empty: from its start, to its end). A clip has an
answer to a question if it has a row for it: yes inside the spans of its "yes" rows, no outside them. Paths
are relative to the file.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lookout.errors import LookoutError
from lookout.text import question_text

COLUMNS = ("clip", "question", "answer")
FOREVER = 1e9
BORDER_S = 0.5
"""A window that shares less than this with a "yes" span is neither yes nor no."""

Spans = tuple[tuple[float, float], ...]


class LabelError(LookoutError, ValueError):
    """A labels file that cannot be read; the message names the line."""


@dataclass(slots=True)
class LabelledClip:
    """One clip: the "yes" spans, in seconds, of every question that it has an answer to."""

    path: Path
    spans: dict[str, Spans] = field(default_factory=dict)

    def truth(self, question: str, start_s: float, end_s: float) -> bool | None:
        """Whether a window shows what the question asks for.

        None at the border of a span, and if the clip has no answer to the question.
        """
        if question not in self.spans:
            return None
        shared = max((min(end_s, b) - max(start_s, a) for a, b in self.spans[question]), default=-FOREVER)
        if shared >= min(BORDER_S, end_s - start_s):
            return True
        return False if shared < -BORDER_S else None


def read_labels(path: Path | str) -> list[LabelledClip]:
    """Read the clips of a labels file, in its order.

    Raises:
        LabelError: A column, a clip, an answer or a time is wrong; the message names the line.
    """
    file = Path(path)
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise LabelError(f"{file}: the first line lacks the columns {', '.join(missing)}")
            clips: dict[Path, LabelledClip] = {}
            for row in reader:
                _add(clips, row, file, reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabelError(f"{file} cannot be read: {error}") from error
    if not clips:
        raise LabelError(f"{file} has no rows")
    return list(clips.values())


def questions_of(clips: Sequence[LabelledClip]) -> list[str]:
    """Every question that some clip answers, in order of appearance."""
    return list(dict.fromkeys(question for clip in clips for question in clip.spans))


def _add(clips: dict[Path, LabelledClip], row: dict[str, str], file: Path, line: int) -> None:
    where = f"{file}, line {line}"
    clip = file.parent / (row["clip"] or "").strip()
    if not clip.is_file():
        raise LabelError(f"{where}: there is no clip {clip}")
    question = question_text(row["question"] or "", lambda fault: LabelError(f"{where}: {fault}"), limit=None)
    answer = (row["answer"] or "").strip().lower()
    if answer not in {"yes", "no"}:
        raise LabelError(f"{where}: the answer is yes or no, not {row['answer']!r}")
    start, end = (_seconds(row.get(name), where, name) for name in ("start_s", "end_s"))
    span = (0.0 if start is None else start, FOREVER if end is None else end)
    if span[0] >= span[1]:
        raise LabelError(f"{where}: start_s {span[0]:g} is not before end_s {span[1]:g}")
    spans = clips.setdefault(clip, LabelledClip(clip)).spans
    spans[question] = (*spans.get(question, ()), *([span] if answer == "yes" else []))


def _seconds(text: str | None, where: str, name: str) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        return float(text)
    except ValueError as error:
        raise LabelError(f"{where}: {name} {text!r} is not a number of seconds") from error
