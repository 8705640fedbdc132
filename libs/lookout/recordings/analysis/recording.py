"""Answers questions about a whole recording. Parts that are already in a journal are not computed again."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lookout import models
from lookout.models.engines import Question
from lookout.recordings import Timings
from lookout.recordings.analysis.analyzer import Analyzer
from lookout.recordings.analysis.begin import begin_and_source, given_begin
from lookout.recordings.analysis.cutting import gaps_in_file
from lookout.recordings.analysis.journal import Journal, identity_of
from lookout.recordings.analysis.results import Analysis, PartResult, Progress, answer_of, gaps_of_parts
from lookout.recordings.analysis.settings import AnalysisError, AnalysisSettings, with_options
from lookout.text import clean
from lookout.video.files import RecordingReader, Source
from lookout.video.sandbox import open_recording


def analyze(
    source: str | os.PathLike[str] | bytes | Source | RecordingReader,
    questions: Sequence[str],
    *,
    model: Path | str | None = None,
    device: str = "cpu",
    settings: AnalysisSettings | None = None,
    journal: Path | str | None = None,
    on_part: Callable[[PartResult], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
    analyzer: Analyzer | None = None,
    sandbox: bool = False,
    begins: datetime | str | None = None,
    anyway: bool = False,
    **options: Any,
) -> Analysis:
    """Return the answers to questions about a recording.

    Example:
        >>> found = lookout.analyze("garden.mp4", ["Is a person in view?"], fps=1)
        >>> for answer in found.answers:
        ...     print(answer.question, answer.p_yes, answer.seen_s)

    Args:
        source: A path, an http(s) URL, bytes, a `Source`, or an open recording, which stays open.
        questions: Yes/no questions; all of them share one prefill.
        model: Folder of a checkpoint; None: the tiny model that comes with Lookout.
        device: Where the model runs.
        settings: How to analyse the recording; None: the defaults.
        journal: A file for finished parts, so that an interrupted run can continue after them. A file that
            is not a journal is rejected. None: no file.
        on_part: Called with every part's result as soon as the part is answered.
        progress: Called after every group.
        analyzer: A loaded model. None: `model` is loaded, and stays loaded for the next call (`release`).
        sandbox: Whether to decode in sandboxed processes, which is safer for files from unknown sources.
        begins: When the recording's first frame was taken, as a moment or its text in ISO 8601; without an
            offset, it is local time. None: the time that the file states, if it is plausible.
        anyway: Accept questions for which the model was not trained, according to its folder.
        options: Single fields of `settings` or of `settings.prefill`, such as `rho`, that replace its values.

    Raises:
        AnalysisError: The request is invalid.
        QuestionError: The model cannot answer a question, or was not trained for it.
        CodecError: The recording cannot be read.
    """
    begun = time.perf_counter()
    _check_types(settings, analyzer)
    how = with_options(settings or AnalysisSettings(), options)
    _check_callbacks(on_part, progress)
    given, ready = None if begins is None else given_begin(begins), analyzer or _loaded(model, device)
    questions = models.check_questions(ready.folder, questions, text=how.describe > 0, anyway=anyway)
    if not questions or not all(text.strip() for text in questions):
        raise AnalysisError("questions: give at least one, and no empty question")
    numbered = [Question(str(i), text, how.describe) for i, text in enumerate(questions)]
    loaded = time.perf_counter()
    with open_recording(source, sandbox=sandbox, workers=how.threads) as reader:
        book = None if journal is None else Path(journal)
        found = _analyzed(ready, reader, numbered, how, book, on_part, progress, begun, loaded)
        moment, begins_from = begin_and_source(given, reader.facts.begins)
        return dataclasses.replace(found, begins=moment, begins_from=begins_from)


def _check_types(settings: object, analyzer: object) -> None:
    for name, value, kind in (("settings", settings, AnalysisSettings), ("analyzer", analyzer, Analyzer)):
        if value is not None and not isinstance(value, kind):
            raise AnalysisError(f"{name} must be an {kind.__name__}, not {clean(repr(value), 80)}")


def _check_callbacks(on_part: object, progress: object) -> None:
    for name, call in (("on_part", on_part), ("progress", progress)):
        if call is not None and not callable(call):
            raise AnalysisError(f"{name} must be a function, not {call!r:.80}")


_models: dict[tuple[str, str], Analyzer] = {}
_models_lock = threading.Lock()


def _loaded(model: Path | str | None, device: str) -> Analyzer:
    """Return an analyzer for a model and device, which is kept for the next call. If the last call used
    another model or device, its model is freed."""
    analyzer = Analyzer(model, device=device)
    key = (analyzer.digest, device)
    with _models_lock:
        if key not in _models:
            release()
            _models[key] = analyzer
        return _models[key]


def release() -> None:
    """Free the model that `analyze` keeps loaded for its next call."""
    while _models:
        _models.popitem()[1].close()


def _analyzed(  # noqa: PLR0917
    analyzer: Analyzer,
    reader: RecordingReader,
    questions: Sequence[Question],
    settings: AnalysisSettings,
    journal: Path | None,
    on_part: Callable[[PartResult], None] | None,
    progress: Callable[[Progress], None] | None,
    begun: float,
    loaded: float,
) -> Analysis:
    _, parts = analyzer.parts(reader, settings)
    book = Journal(journal, identity_of(analyzer.digest, reader, questions, settings)) if journal else None
    finished_results = book.read() if book is not None else {}
    remaining = [part for part in parts if part.number not in finished_results]

    def finished(result: PartResult) -> None:
        finished_results[result.part.number] = result
        if book is not None:
            book.add(result)
        if on_part is not None:
            on_part(result)

    timings: Timings | None = None
    work: dict[str, int] = {}
    if remaining:
        _, timings, sampling = analyzer.run(
            reader, questions, settings, parts=remaining, on_part=finished, progress=progress, begun=loaded
        )
        work = dataclasses.asdict(sampling.work)
    results = tuple(finished_results[part.number] for part in parts)
    return Analysis(
        source=reader.facts.name,
        seconds=reader.facts.duration_us / 1e6,
        frames=reader.facts.frames,
        questions=tuple(question.text for question in questions),
        answers=tuple(answer_of(question.text, i, results) for i, question in enumerate(questions)),
        parts=results,
        gaps=tuple(gaps_of_parts(results, gaps_in_file(reader, settings))),
        timings=timings,
        work=work,
        wall_s=time.perf_counter() - begun,
        run_s=sum(part.end_s - part.start_s for part in remaining),
    )
