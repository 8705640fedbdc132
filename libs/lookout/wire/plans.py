"""Checks that parts, plans and outcomes of recording jobs are consistent, before they are used."""

from __future__ import annotations

from lookout.v1.recordings_pb2 import BacktestPart, PartSpan, RecordingOutcome, RecordingPart, RecordingPlan
from lookout.wire.ranges import RangeError


def check_part(part: RecordingPart) -> None:
    """Check a part of a job.

    Raises:
        RangeError: The part's range is empty or runs backwards, or it has no recording or no question.
    """
    if part.HasField("backtest"):
        _check_past(part.backtest)
        if not part.backtest.HasField("job"):
            raise RangeError("lookout.v1.RecordingPart.backtest: it has a range but no job; give both")
        return
    _check_span(part.span)
    if not part.uri or not part.questions:
        raise RangeError(f"lookout.v1.RecordingPart: part {part.number} has no recording or no question")


def check_outcome(outcome: RecordingOutcome) -> None:
    """Check an outcome of a job.

    Raises:
        RangeError: The outcome's plan is inconsistent or belongs to another job.
    """
    if outcome.HasField("plan"):
        check_plan(outcome.plan)
        if outcome.plan.job.id != outcome.job:
            raise RangeError(f"an outcome of job {outcome.job!r} has the plan of job {outcome.plan.job.id!r}")


def check_plan(plan: RecordingPlan) -> None:
    """Check a plan.

    Raises:
        RangeError: The plan does not have as many parts as it states, or a part's range runs backwards.
    """
    if plan.job.HasField("backtest"):
        counted = sum(plan.partition_parts)
        # A plan of an earlier release has no ranges, because its parts were written with it.
        if plan.past and not counted == plan.parts == len(plan.past):
            raise RangeError(
                f"a plan states {plan.parts} parts, but has {len(plan.past)} ranges and "
                f"counts {counted} parts in its partitions"
            )
        for part in plan.past:
            _check_past(part)
        return
    counted = sum(recording.parts for recording in plan.recordings)
    if counted != plan.parts:
        raise RangeError(f"a plan states {plan.parts} parts, but its recordings have {counted}")
    # A plan of an earlier release has no spans either.
    if any(recording.spans for recording in plan.recordings):
        for recording in plan.recordings:
            if len(recording.spans) != recording.parts:
                raise RangeError(
                    f"a recording with {recording.parts} parts has {len(recording.spans)} spans in its plan"
                )
            for span in recording.spans:
                _check_span(span)


def _check_span(span: PartSpan) -> None:
    if not (span.first <= span.stop and span.start_s <= span.end_s):
        raise RangeError(f"samples {span.first} to {span.stop} are not a range of a recording")


def _check_past(part: BacktestPart) -> None:
    if not (part.first < part.stop and part.read_from <= part.stop):
        raise RangeError(
            f"offsets {part.first} to {part.stop}, read from {part.read_from}, are not a range of a partition"
        )
