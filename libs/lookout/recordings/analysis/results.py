"""The results of an analysis as plain data, for each part and for the whole recording."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from lookout.missing import missing_package
from lookout.recordings import Timings
from lookout.recordings.analysis.settings import AnalysisError
from lookout.structured import named_shares
from lookout.video.files import Gap
from lookout.video.segments import CodecError, Reason

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    # These modules import torch, which reading answers does not need.
    from lookout.models.engines import Question
    from lookout.models.engines.transformers.prefill import RecordingAnswer


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a recording: samples [first, stop), which are prefilled and asked independently of other
    parts.

    Attributes:
        number: Number of the part in its recording, from 0.
        first: Number of the part's first sample.
        stop: Number of the sample after the part's last one.
        start_s: Begin, in seconds since the first frame.
        end_s: End, in seconds since the first frame.
    """

    number: int
    first: int
    stop: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """One question's answer for one part.

    Attributes:
        question: The question.
        p_yes: Probability of yes, 0 to 1.
        text: A description; None if it was not requested or the answer is no.
        seen_s: Pairs of a time in seconds and its share of the answer's attention, largest share first.
        answers: For a structured question, the probability of each allowed answer; else empty.
    """

    question: str
    p_yes: float
    text: str | None = None
    seen_s: tuple[tuple[float, float], ...] = ()
    answers: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PartResult:
    """The result of one part.

    Attributes:
        part: The part.
        frames: Number of samples that were decoded.
        answers: The answers, in the order of the questions; empty if no sample was decoded.
        rows: Number of prompt rows that were prefilled.
        kept: Number of KV entries that were kept, per layer and KV head.
        kv_bytes: Size of the KV at the end of the part.
        flops: FLOPs by stage: `vision`, `prefill` and `questions`.
        tokens: Number of visual tokens after pruning.
        tokens_total: Number of visual tokens without pruning.
        damaged: Number of the decoded samples that show damage in the file.
        gaps: Times that could not be decoded.
    """

    part: Part
    frames: int
    answers: tuple[PartAnswer, ...]
    rows: int = 0
    kept: int = 0
    kv_bytes: int = 0
    flops: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0
    tokens_total: int = 0
    damaged: int = 0
    gaps: tuple[Gap, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-compatible data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PartResult:
        """Return the result that `to_dict` converted to `data`."""
        answers = tuple(
            PartAnswer(
                a["question"],
                a["p_yes"],
                a["text"],
                tuple((t, s) for t, s in a["seen_s"]),
                a.get("answers", {}),
            )
            for a in data["answers"]
        )
        gaps = tuple(Gap(**gap) for gap in data.get("gaps", ()))
        return cls(**{**data, "part": Part(**data["part"]), "answers": answers, "gaps": gaps})


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """The answer to one question about the whole recording.

    Attributes:
        question: The question.
        p_yes: The largest p(yes) of any part.
        part: Number of the part with this p(yes), the best part.
        start_s: Begin of the best part, in seconds.
        end_s: End of the best part, in seconds.
        seen_s: Pairs of a time in seconds and its share of the best part's attention, largest share first.
        yes_s: Ranges (begin, end) in seconds in which p(yes) is above 0.5. Adjacent parts form one range.
        text: A description of the best part; None if it was not requested or the answer is no.
        answers: For a structured question, the probability of each allowed answer in the best part; else
            empty.
    """

    question: str
    p_yes: float
    part: int
    start_s: float
    end_s: float
    seen_s: tuple[tuple[float, float], ...]
    yes_s: tuple[tuple[float, float], ...]
    text: str | None = None
    answers: Mapping[str, float] = field(default_factory=dict, hash=False)


COLUMNS: Final = (
    *("recording", "question", "start_s", "end_s", "p_yes", "answers", "moments_s", "text", "gap"),
    *("start_time", "end_time"),
)
"""Columns of a table of answers."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """All answers about a recording.

    Attributes:
        source: Path or URL of the recording.
        seconds: Length of the recording in seconds.
        frames: Number of frames of the recording.
        questions: The questions.
        answers: The answers, in the order of the questions.
        parts: The results of all parts, in time order.
        gaps: Times that the recording does not show or that could not be decoded.
        timings: How long this run took to decode and prefill; None if all parts were already finished.
        work: Counts of the decoder's work, such as packets and decoded frames.
        wall_s: Duration of this run in seconds.
        run_s: Seconds of the recording that this run answered: fewer than `seconds` if a time range was
            given, or if parts were already finished.
        complete: Whether all parts were answered; False if the run was stopped.
        begins: When the recording's first frame was taken; None: unknown.
        begins_from: Where `begins` comes from: the caller (`given`) or the file (`file`); empty: unknown.
    """

    source: str
    seconds: float
    frames: int
    questions: tuple[str, ...]
    answers: tuple[QuestionAnswer, ...]
    parts: tuple[PartResult, ...]
    gaps: tuple[Gap, ...] = ()
    timings: Timings | None = None
    work: Mapping[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    run_s: float = 0.0
    complete: bool = True
    begins: datetime | None = None
    begins_from: str = ""

    def __repr__(self) -> str:
        answers = ", ".join(f"{answer.question!r}: {answer.p_yes:.2f}" for answer in self.answers)
        parts = f"{len(self.parts)} parts" + ("" if self.complete else ", stopped")
        return f"Analysis({self.source!r}, {self.seconds:.1f} s, {parts}, {{{answers}}})"

    def _repr_html_(self) -> str:
        """Return a table of the answers as HTML, for notebooks."""
        rows = "".join(
            f"<tr><td>{html.escape(answer.question)}</td><td>{answer.p_yes:.2f}</td>"
            f"<td>{answer.start_s:.1f} to {answer.end_s:.1f}</td></tr>"
            for answer in self.answers
        )
        return (
            f"<p>{html.escape(self.source)}, {self.seconds:.1f} s in {len(self.parts)} parts</p>"
            f"<table><tr><th>question</th><th>p(yes)</th><th>highest in seconds</th></tr>{rows}</table>"
        )

    def plot(self) -> Axes:
        """Draw p(yes) of every part over the recording's time, one line per question.

        Returns:
            matplotlib's axes.

        Raises:
            MissingPackageError: matplotlib is not installed.
        """
        try:
            from matplotlib import pyplot
        except ModuleNotFoundError as error:
            raise missing_package(error) or error from error
        _, axes = pyplot.subplots()
        edges = [result.part.start_s for result in self.parts] + [
            result.part.end_s for result in self.parts[-1:]
        ]
        for place, question in enumerate(self.questions):
            values = [
                result.answers[place].p_yes if result.answers else float("nan") for result in self.parts
            ]
            axes.stairs(values, edges, baseline=None, label=question)
        axes.set(xlabel="seconds", ylabel="p(yes)", ylim=(0, 1))
        axes.legend()
        return axes

    def time_at(self, at_s: float) -> datetime | None:
        """Return the clock time at a moment of the recording; None if the begin of the recording is unknown.

        Args:
            at_s: Seconds since the recording's first frame.
        """
        return None if self.begins is None else self.begins + timedelta(seconds=at_s)

    def rows(self) -> list[dict[str, Any]]:
        """Return a table for `pandas.DataFrame`: one row per part and question, then one row per gap.

        Returns:
            Rows with the same columns: `recording`, `question`, `start_s` and `end_s` of the part or gap,
                `p_yes`, `answers` (for a structured question, the probability of each answer), `moments_s`
                (times that the answer attended to, most attention first), `text`, `gap` (the gap's reason),
                `start_time` and `end_time` (clock times, if known). Values that do not apply are None.
        """
        empty: dict[str, Any] = dict.fromkeys(COLUMNS)

        def span(start_s: float, end_s: float) -> dict[str, Any]:
            clock = {"start_time": self.time_at(start_s), "end_time": self.time_at(end_s)}
            return {"recording": self.source, "start_s": start_s, "end_s": end_s, **clock}

        answered = [
            {
                **empty,
                **span(result.part.start_s, result.part.end_s),
                "question": answer.question,
                "p_yes": answer.p_yes,
                "answers": dict(answer.answers) or None,
                "moments_s": [time_s for time_s, _ in answer.seen_s],
                "text": answer.text,
            }
            for result in self.parts
            for answer in result.answers
        ]
        missing = [{**empty, **span(gap.start_s, gap.end_s), "gap": gap.reason} for gap in self.gaps]
        return answered + missing

    def table(self) -> DataFrame:
        """Return `rows` as a pandas data frame with numeric and time columns; values that do not apply are
        missing values.

        Example:
            >>> found = lookout.analyze("garden.mp4", ["Is a person in view?"])
            >>> found.table().query("p_yes > 0.5")[["start_s", "end_s", "question"]]

        Raises:
            AnalysisError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise AnalysisError(
                "a table needs pandas (pip install pandas); rows() returns the same rows without it"
            ) from None
        frame = pandas.DataFrame(self.rows(), columns=list(COLUMNS))
        for name in ("start_s", "end_s", "p_yes"):
            frame[name] = pandas.to_numeric(frame[name])
        for name in ("start_time", "end_time"):
            frame[name] = pandas.to_datetime(frame[name])
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Return the analysis as JSON-compatible data."""
        data = dataclasses.asdict(self)
        data["timings"] = None if self.timings is None else self.timings.summary()
        data["begins"] = self._text_at(0.0)
        data["answers"] = [
            {
                **dataclasses.asdict(answer),
                **self._span(answer.start_s, answer.end_s),
                "yes_times": self._texts(answer.yes_s),
            }
            for answer in self.answers
        ]
        data["parts"] = [
            {**result.to_dict(), **self._span(result.part.start_s, result.part.end_s)}
            for result in self.parts
        ]
        data["gaps"] = [
            {**dataclasses.asdict(gap), **self._span(gap.start_s, gap.end_s)} for gap in self.gaps
        ]
        return data

    def _span(self, start_s: float, end_s: float) -> dict[str, str | None]:
        return {"start_time": self._text_at(start_s), "end_time": self._text_at(end_s)}

    def _texts(self, spans: Sequence[tuple[float, float]]) -> list[tuple[str | None, str | None]]:
        if self.begins is None:
            return []
        return [(self._text_at(start_s), self._text_at(end_s)) for start_s, end_s in spans]

    def _text_at(self, at_s: float) -> str | None:
        time = self.time_at(at_s)
        return None if time is None else time.isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run.

    Attributes:
        decoded: Number of samples that are decoded.
        prefilled: Number of samples that are prefilled.
        done: Number of parts that are finished.
        samples: Number of all samples.
        parts: Number of all parts.
    """

    decoded: int
    prefilled: int
    done: int
    samples: int
    parts: int


def gaps_of_parts(results: Iterable[PartResult], gaps_in_file: Iterable[Gap]) -> list[Gap]:
    """Return all gaps of a recording, in time order.

    Args:
        results: The results of the recording's parts.
        gaps_in_file: Gaps that no part reports (`lookout.recordings.analysis.cutting.gaps_in_file`).
    """
    gaps = [*_joined(gap for result in results for gap in result.gaps), *gaps_in_file]
    return sorted(gaps, key=lambda gap: (gap.start_us, gap.end_us))


def _joined(gaps: Iterable[Gap]) -> list[Gap]:
    """Return the gaps; a gap that continues into the next part becomes one gap."""
    joined: list[Gap] = []
    for gap in gaps:
        if joined and (joined[-1].end_us, joined[-1].reason) == (gap.start_us, gap.reason):
            joined[-1] = Gap(joined[-1].start_us, gap.end_us, joined[-1].samples + gap.samples, gap.reason)
        else:
            joined.append(gap)
    return joined


def part_answer(question: Question, found: RecordingAnswer) -> PartAnswer:
    """Convert the engine's answer for a part. `question`: the question; `found`: the answer."""
    times = tuple((moment.time_us / 1e6, moment.share) for moment in found.evidence)
    answer = found.answer
    shares = named_shares(question.text, answer.shares)
    return PartAnswer(question.text, answer.p_yes, answer.text, times, shares)


def answer_of(question: str, place: int, results: Sequence[PartResult]) -> QuestionAnswer:
    """Combine the answers of all parts to one question: the part with the largest p(yes), and the ranges in
    which the answer is yes.

    Args:
        question: The question.
        place: Number of the question among the parts' answers.
        results: The results of all parts, in time order.

    Raises:
        CodecError: No part has answers, because no frame could be decoded.
    """
    answered = [(result.answers[place], result.part) for result in results if result.answers]
    if not answered:
        raise CodecError(Reason.NO_FRAMES, f"no frame could be decoded in any of {len(results)} parts")
    best, best_part = max(answered, key=lambda pair: pair[0].p_yes)
    yes_ranges: list[tuple[float, float]] = []
    for answer, part in answered:
        if answer.p_yes <= 0.5:
            continue
        if yes_ranges and abs(yes_ranges[-1][1] - part.start_s) < 1e-6:
            yes_ranges[-1] = (yes_ranges[-1][0], part.end_s)
        else:
            yes_ranges.append((part.start_s, part.end_s))
    return QuestionAnswer(
        question,
        best.p_yes,
        best_part.number,
        best_part.start_s,
        best_part.end_s,
        best.seen_s,
        tuple(yes_ranges),
        best.text,
        best.answers,
    )
