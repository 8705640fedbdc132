"""Writes the JSON Schema of the output of `lookout analyze --json`, generated from the dataclasses of the
answers.

Run `python -m protos.analysis_schema docs/schemas`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from lookout.recordings.analysis.results import Analysis, Part, PartAnswer, PartResult, QuestionAnswer
from lookout.video.files import Gap

FILE: Final = "analysis.json"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
#: fields that are present only with an option; all others are in every object
_OPTIONAL: Final = {"AnalysisReport": {"clips"}}


@dataclass(frozen=True)
class Timed:
    """A span of the recording in clock time.

    Attributes:
        start_time: Begin, ISO 8601; null: nobody knows when the recording begins.
        end_time: End, in the same form.
    """

    start_time: datetime | None
    end_time: datetime | None


@dataclass(frozen=True)
class GapReport(Gap, Timed):
    """What could not be decoded."""


@dataclass(frozen=True)
class PartReport(PartResult, Timed):
    """The result of one part."""


@dataclass(frozen=True)
class AnswerReport(QuestionAnswer, Timed):
    """The answer to one question about the whole recording.

    Attributes:
        yes_times: `yes_s` in clock time; empty: nobody knows when the recording begins.
    """

    yes_times: tuple[tuple[datetime, datetime], ...] = ()


@dataclass(frozen=True, slots=True)
class TimingsReport:
    """How a run spent its time, in seconds.

    Attributes:
        mode: How decoding and prefill shared the time.
        start_s: Time until decoding began.
        t_dec: Time spent decoding.
        t_prefill: Time spent in the vision tower and prefill.
        t_total: Time from the beginning to the end of the last prefill.
        t_answer: Time spent answering the questions.
        bound: Lower bound of `t_total` for these two durations (QuickVideo, Equation 3).
        efficiency: The bound as a share of `t_total`.
    """

    mode: str
    start_s: float
    t_dec: float
    t_prefill: float
    t_total: float
    t_answer: float
    bound: float
    efficiency: float


@dataclass(frozen=True, slots=True)
class ClipReport:
    """A clip of a range with the answer yes, or why it could not be made.

    Attributes:
        path: The file; null: it could not be cut.
        questions: Questions whose answer is yes there.
        p_yes: The largest probability in the range.
        start_s: Time of the clip's first picture in the recording.
        end_s: Time at which its last picture ends.
        reason: Why the clip could not be cut.
    """

    path: str | None
    questions: tuple[str, ...]
    p_yes: float
    start_s: float
    end_s: float
    reason: str


@dataclass(frozen=True)
class AnalysisReport(Analysis):
    """The output of `lookout analyze --json` for a recording, one object per line.

    Attributes:
        timings: How this run spent its time; null if no part was left to do, and from a fleet.
        begins: When the recording's first frame was taken, ISO 8601; null: unknown.
        clips: With `--clips`: a clip of every range with the answer yes.
    """

    answers: tuple[AnswerReport, ...]  # type: ignore[assignment]
    parts: tuple[PartReport, ...]  # type: ignore[assignment]
    gaps: tuple[GapReport, ...] = ()  # type: ignore[assignment]
    timings: TimingsReport | None = None  # type: ignore[assignment]
    clips: tuple[ClipReport, ...] = ()


def analysis_schema() -> dict[str, Any]:
    """Return the schema of one object of the output."""
    schema = TypeAdapter(AnalysisReport).json_schema(mode="serialization")
    definitions = schema.pop("$defs")
    kinds: tuple[type, ...] = (
        AnalysisReport,
        AnswerReport,
        PartReport,
        GapReport,
        TimingsReport,
        ClipReport,
        Part,
        PartAnswer,
        Gap,
    )
    for kind in kinds:
        name = kind.__name__
        body = schema if kind is AnalysisReport else definitions.get(name)
        if body is not None:
            _describe(body, kind)
            body["required"] = [field for field in body["properties"] if field not in _OPTIONAL.get(name, ())]
    return {"$schema": _DIALECT, **schema, "$defs": dict(sorted(definitions.items()))}


def _describe(body: dict[str, Any], kind: type) -> None:
    """Add the docstrings to the schema of a dataclass; remove titles and defaults, which add nothing."""
    words: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        words |= _attributes(base.__doc__ or "") if is_dataclass(base) else {}
    body["description"] = (kind.__doc__ or "").splitlines()[0]
    for name, field in body["properties"].items():
        field.pop("title", None)
        field.pop("default", None)
        field["description"] = words[name]


def _attributes(text: str) -> Mapping[str, str]:
    """Return the `Attributes:` section of a docstring by name."""
    section = text.partition("Attributes:\n")[2]
    entries = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", section, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in entries}


def main() -> None:
    """Write the schema into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    (folder / FILE).write_text(json.dumps(analysis_schema(), indent=1) + "\n")


if __name__ == "__main__":
    main()
