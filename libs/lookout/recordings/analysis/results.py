"""Results of an analysis as plain data: parts with their answers, and the whole recording."""

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

    # they import torch, which reading answers does not need
    from lookout.models.engines import Question
    from lookout.models.engines.transformers.prefill import RecordingAnswer


@dataclass(frozen=True, slots=True)
class Part:
    """Samples [first, stop) of a recording, which are prefilled and asked on their own.

    Attributes:
        number: Number of the part in its recording, from 0.
        first: Number of the part's first sample.
        stop: Number of the sample after its last one.
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
        p_yes: Probability of yes.
        text: A description, if it was requested and the answer is yes.
        seen_s: Times in seconds, each with its share of the answer's attention, largest share first.
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
        frames: Samples that were decoded.
        answers: The answers, in the order of the questions.
        rows: Prompt rows prefilled.
        kept: KV entries kept, per layer and KV head.
        kv_bytes: Size of the KV at the end of the part.
        flops: FLOPs of prefill and questions, by stage.
        tokens: Visual tokens that were encoded.
        tokens_total: Visual tokens that whole frames would have.
        damaged: Number of samples among `frames` that are affected by damage in the file.
        gaps: What could not be decoded.
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
        """Build a result from the data of `to_dict`."""
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
        p_yes: The largest probability of any part.
        part: The part with that probability.
        start_s: That part's begin.
        end_s: That part's end.
        seen_s: The times on which the answer is based, each with its share of the answer's attention.
        yes_s: Ranges of parts whose probability is above a half.
        text: A description, if it was requested and the answer is yes.
        answers: For a structured question, the probability of each allowed answer in that part; else empty.
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
        source: Path or URL.
        seconds: Length of the recording.
        frames: Frames of the recording.
        questions: The questions.
        answers: The answers, in the order of the questions.
        parts: Every part, in order.
        gaps: What could not be decoded.
        timings: t_dec, t_prefill, t_total, the bound of Equation 3 and the efficiency of this run; None if no
            part was left to do.
        work: Counts of the decoding: packets, frames decoded, and so on.
        wall_s: Duration of this run in seconds.
        run_s: Seconds of the recording that this run answered: fewer than `seconds` for a time range, or
            after an interrupted run.
        complete: False if the run was stopped.
        begins: When the recording's first frame was taken; None: unknown.
        begins_from: The source of that time: `given` or `file`; empty: unknown.
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
        """Return a table of the answers, for notebooks."""
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
        """Return the clock time at a moment of the recording; None if nobody knows when the recording begins.

        Args:
            at_s: Seconds since the recording's first frame.
        """
        return None if self.begins is None else self.begins + timedelta(seconds=at_s)

    def rows(self) -> list[dict[str, Any]]:
        """Return a table for `pandas.DataFrame`: one row per part and question, then one row per gap.

        Returns:
            Rows with the same columns: `recording`, `question`, `start_s` and `end_s` of the part or gap,
                `p_yes`, `answers` (for a structured question, the probability of each answer), `moments_s`
                (times on which the answer is based, the most important first), `text`, `gap` (its reason),
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
        """Return `rows` as a data frame with typed numbers and times; values that do not apply are missing.

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
        out = dataclasses.asdict(self)
        out["timings"] = None if self.timings is None else self.timings.summary()
        out["begins"] = self._text_at(0.0)
        out["answers"] = [
            {
                **dataclasses.asdict(answer),
                **self._span(answer.start_s, answer.end_s),
                "yes_times": self._texts(answer.yes_s),
            }
            for answer in self.answers
        ]
        out["parts"] = [
            {**result.to_dict(), **self._span(result.part.start_s, result.part.end_s)}
            for result in self.parts
        ]
        out["gaps"] = [{**dataclasses.asdict(gap), **self._span(gap.start_s, gap.end_s)} for gap in self.gaps]
        return out

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
    """Progress of a run. `decoded` and `prefilled` count samples, `done` counts parts; `samples` and `parts`
    are the totals."""

    decoded: int
    prefilled: int
    done: int
    samples: int
    parts: int


def gaps_of_parts(results: Iterable[PartResult], gaps_in_file: Iterable[Gap]) -> list[Gap]:
    """Return what a recording does not show, in order.

    Args:
        results: The results of the recording's parts.
        gaps_in_file: Gaps that no part reports (`lookout.recordings.analysis.cutting.gaps_in_file`).
    """
    gaps = [*_joined(gap for result in results for gap in result.gaps), *gaps_in_file]
    return sorted(gaps, key=lambda gap: (gap.start_us, gap.end_us))


def _joined(gaps: Iterable[Gap]) -> list[Gap]:
    """Join gaps that continue into the next part."""
    out: list[Gap] = []
    for gap in gaps:
        if out and (out[-1].end_us, out[-1].reason) == (gap.start_us, gap.reason):
            out[-1] = Gap(out[-1].start_us, gap.end_us, out[-1].samples + gap.samples, gap.reason)
        else:
            out.append(gap)
    return out


def part_answer(question: Question, found: RecordingAnswer) -> PartAnswer:
    """Convert the engine's answer to a question about a part."""
    times = tuple((moment.time_us / 1e6, moment.share) for moment in found.evidence)
    answer = found.answer
    shares = named_shares(question.text, answer.shares)
    return PartAnswer(question.text, answer.p_yes, answer.text, times, shares)


def answer_of(question: str, place: int, results: Sequence[PartResult]) -> QuestionAnswer:
    """Combine a question's answers over all parts: the part with the largest probability, and the ranges with
    the answer yes."""
    answered = [(result.answers[place], result.part) for result in results if result.answers]
    if not answered:
        raise CodecError(Reason.NO_FRAMES, f"no frame could be decoded in any of {len(results)} parts")
    best, part = max(answered, key=lambda each: each[0].p_yes)
    yes: list[tuple[float, float]] = []
    for reply, where in answered:
        if reply.p_yes <= 0.5:
            continue
        if yes and abs(yes[-1][1] - where.start_s) < 1e-6:
            yes[-1] = (yes[-1][0], where.end_s)
        else:
            yes.append((where.start_s, where.end_s))
    return QuestionAnswer(
        question,
        best.p_yes,
        part.number,
        part.start_s,
        part.end_s,
        best.seen_s,
        tuple(yes),
        best.text,
        best.answers,
    )
