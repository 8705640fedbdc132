"""Converts parts and their outcomes between messages and the types of `recordings.analysis`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lookout.recordings.analysis import Part, PartAnswer, PartResult
from lookout.text import clean
from lookout.v1.recordings_pb2 import (
    PartOutcome,
    PartSpan,
    RecordingGap,
    RecordingMoment,
    RecordingPart,
    RecordingPartAnswer,
)
from lookout.video.files import Gap
from lookout.wire.limits import REASON, RECORDING_GAPS
from lookout.wire.shares import share_messages, shares_of

#: maximum number of characters that `clean` adds to a text that it cuts off
_CUT = 40


def part_of(span: PartSpan) -> Part:
    """Return a message's part."""
    return Part(span.number, span.first, span.stop, span.start_s, span.end_s)


def span_of(part: Part) -> PartSpan:
    """Return a part's message, the inverse of `part_of`."""
    return PartSpan(
        number=part.number, first=part.first, stop=part.stop, start_s=part.start_s, end_s=part.end_s
    )


def unanswered(part: RecordingPart, reason: str) -> PartOutcome:
    """Return the outcome of a part that has no answers, for this reason."""
    return PartOutcome(
        number=part.number, recording=part.recording, span=part.span, reason=reason_text(reason)
    )


def outcome_of(part: RecordingPart, result: PartResult, model_digest: str) -> PartOutcome:
    """Return the outcome of a part that was analysed."""
    flops = result.flops
    return PartOutcome(
        number=part.number,
        recording=part.recording,
        span=part.span,
        answers=[
            RecordingPartAnswer(
                p_yes=answer.p_yes,
                text=answer.text or "",
                moments=moments(answer.seen_s),
                answers=share_messages(answer.answers),
            )
            for answer in result.answers
        ],
        frames=result.frames,
        damaged=result.damaged,
        rows=result.rows,
        kept=result.kept,
        kv_bytes=result.kv_bytes,
        tokens=result.tokens,
        tokens_total=result.tokens_total,
        flops_vision=flops.get("vision", 0),
        flops_prefill=flops.get("prefill", 0),
        flops_questions=flops.get("questions", 0),
        gaps=gap_messages(result.gaps),
        model_digest=model_digest,
    )


def result_of(outcome: PartOutcome, questions: Sequence[str]) -> PartResult:
    """Return the result in an outcome, the inverse of `outcome_of`. If the outcome has a reason instead of
    answers, the result is one gap with this reason."""
    part = part_of(outcome.span)
    gaps = tuple(gap_of(gap) for gap in outcome.gaps)
    if outcome.reason:
        gap_of_part = Gap(
            round(part.start_s * 1e6), round(part.end_s * 1e6), part.stop - part.first, outcome.reason
        )
        return PartResult(part, 0, (), gaps=(gap_of_part,))
    flops = {
        "vision": outcome.flops_vision,
        "prefill": outcome.flops_prefill,
        "questions": outcome.flops_questions,
    }
    return PartResult(
        part=part,
        frames=outcome.frames,
        answers=tuple(
            PartAnswer(
                question,
                answer.p_yes,
                answer.text or None,
                times(answer.moments),
                shares_of(answer.answers),
            )
            for question, answer in zip(questions, outcome.answers, strict=False)
        ),
        rows=outcome.rows,
        kept=outcome.kept,
        kv_bytes=outcome.kv_bytes,
        flops=flops if outcome.answers else {},
        tokens=outcome.tokens,
        tokens_total=outcome.tokens_total,
        damaged=outcome.damaged,
        gaps=gaps,
    )


def moments(seen_s: Iterable[tuple[float, float]]) -> list[RecordingMoment]:
    """Return the messages of moments, each a pair of a time in seconds and its share of attention."""
    return [RecordingMoment(time_s=time_s, share=share) for time_s, share in seen_s]


def times(messages: Iterable[RecordingMoment]) -> tuple[tuple[float, float], ...]:
    """Return the (time in seconds, share of attention) pairs in messages, the inverse of `moments`."""
    return tuple((moment.time_s, moment.share) for moment in messages)


def gap_messages(gaps: Sequence[Gap]) -> list[RecordingGap]:
    """Return the messages of gaps. If there are more gaps than a record may have, the last message combines
    all remaining gaps."""
    listed = list(gaps[:RECORDING_GAPS])
    if len(gaps) > len(listed):
        rest = gaps[RECORDING_GAPS - 1 :]
        samples = sum(gap.samples for gap in rest)
        listed[-1] = Gap(rest[0].start_us, rest[-1].end_us, samples, f"{len(rest)} gaps: {rest[0].reason}")
    return [
        RecordingGap(
            start_us=gap.start_us, end_us=gap.end_us, samples=gap.samples, reason=reason_text(gap.reason)
        )
        for gap in listed
    ]


def gap_of(message: RecordingGap) -> Gap:
    """Return a message's gap, the inverse of `gap_messages`."""
    return Gap(message.start_us, message.end_us, message.samples, message.reason)


def reason_text(reason: str) -> str:
    """Return a reason without control characters, cut off to the length that a record may have."""
    return clean(reason, REASON - _CUT)
