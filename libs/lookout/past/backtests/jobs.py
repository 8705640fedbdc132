"""Runs a back-test as a job: divides it into parts, which are ranges of tokens.v1, and computes a part."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from lookout.past.backtests.answers import Hidden, nothing_hidden, remove_hidden
from lookout.past.backtests.windows import HAD_FRAMES, PastWindows
from lookout.recordings.jobs import JobError, check_job, expiry_of
from lookout.rules import asked_question, messages
from lookout.streams.chains import (
    ChainRange,
    EpochRecords,
    PartitionLog,
    PastScope,
    computed_verdict,
    read_range,
    strides_digest,
)
from lookout.v1.recordings_pb2 import (
    BacktestJob,
    BacktestOutcome,
    BacktestPart,
    PastStream,
    RecordingJob,
    RecordingPlan,
)
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire.limits import JOB_PARTS

#: minimum number of records in a part (a few chains of a camera); less would cost more to read than to
#: compute
LEAST_RECORDS: Final = 200
#: maximum number of records in a part; its outcome has 45 bytes per window, up to 85 with the activity for
#: zones
MOST_RECORDS: Final = 10_000
#: maximum bytes of an outcome, because a record of recording.results.v1 holds 1 MiB
MOST_BYTES: Final = 900_000
_LATEST_MS: Final = 1 << 62


def scope_of(job: BacktestJob) -> PastScope:
    """Return the cameras and windows that a back-test covers."""
    since_ms = job.since.ToMilliseconds() if job.HasField("since") else 0
    until_ms = job.until.ToMilliseconds() if job.HasField("until") else _LATEST_MS
    return PastScope("*", since_ms, until_ms, job.watch.cameras, job.watch.tenant)


def plan_backtest(
    job: RecordingJob,
    ranges: Mapping[int, ChainRange],
    *,
    now_ms: int,
    most_parts: int = JOB_PARTS // 2,
) -> RecordingPlan:
    """Divide a back-test into parts.

    Args:
        job: The request.
        ranges: The records of tokens.v1 in the job's time, by partition.
        now_ms: The request's time in Kafka, Unix milliseconds.
        most_parts: Approximate maximum number of parts; it is exceeded if parts would become too large.

    Raises:
        JobError: The job is invalid, has no records, or would have too many parts.
    """
    check_job(job)
    if not ranges:
        if scope_of(job.backtest).since_ms > now_ms:
            raise JobError(
                f"since: {job.backtest.since.ToJsonString()} is in the future; choose a time in the past"
            )
        raise JobError("tokens.v1 has no records of that time; they may be past their retention")
    records = sum(span.stop - span.read_from for span in ranges.values())
    size = min(max(LEAST_RECORDS, -(-records // most_parts)), MOST_RECORDS)
    plan = RecordingPlan(job=job, expires=expiry_of(job, now_ms))
    plan.job.backtest.watch.question = asked_question(job.backtest.watch)
    for _, span in sorted(ranges.items()):
        pieces = list(_pieces(span, size))
        plan.partition_parts.append(len(pieces))
        plan.past.extend(
            BacktestPart(
                partition=piece.partition, first=piece.first, stop=piece.stop, read_from=piece.read_from
            )
            for piece in pieces
        )
    plan.parts = len(plan.past)
    if plan.parts > JOB_PARTS:
        raise JobError(
            f"the job would have {plan.parts} parts ({records} records of that time in {len(ranges)} "
            f"partitions of tokens.v1), more than the limit of {JOB_PARTS}; divide the time between several "
            "jobs"
        )
    return plan


def _pieces(span: ChainRange, size: int) -> Iterator[ChainRange]:
    """Divide a range into pieces of at most `size` records. The first piece also has the chains that began
    before the range."""
    records = span.stop - span.read_from
    count = -(-records // size)
    cuts = [span.read_from + records * number // count for number in range(count + 1)]
    for number, (begin, stop) in enumerate(pairwise(cuts)):
        yield ChainRange(span.partition, begin if number else span.first, stop, begin)


def run_part(
    part: BacktestPart,
    log: PartitionLog,
    windows: PastWindows,
    *,
    plan_digest: str,
    check: Callable[[], object] = lambda: None,
    hidden: Callable[[], Hidden] = lambda: nothing_hidden,
) -> BacktestOutcome:
    """Ask the job's question about the windows of a part, and return their outcome.

    Args:
        part: The part's range, and the job.
        log: Reads the part's partition.
        windows: Computes windows and asks the question.
        plan_digest: Digest of the planner's settings, as verdicts state it.
        check: Called after every window; an exception from it ends the part.
        hidden: Called at the end of the part; returns a function that tells whether a time range was erased.

    Raises:
        JobError: The outcome is too large for a record.
    """
    watch, scope = part.job.watch, scope_of(part.job)
    began = time.process_time()
    span = ChainRange(part.partition, part.first, part.stop, part.read_from)
    records = read_range(log, span, scope, windows.planner)
    outcome = BacktestOutcome(other_tenants=sorted(records.other_tenants))
    cost = outcome.cost
    clear = messages.rule_of(watch.rule).clear
    for epoch in records.epochs:
        numbers = records.windows[epoch.stream]
        outcome.replanned += _replanned(epoch, numbers, {plan_digest, strides_digest(windows.planner)})
        stream = PastStream(camera=epoch.camera, epoch=epoch.epoch)
        for past in windows.verdicts(epoch, watch, scope, numbers):
            check()
            past.add_cost(cost)
            verdict = _slim(past.verdict, clear)
            if past.expired:
                verdict.ClearField("outcome")
            stream.verdicts.append(verdict)
        stream.verdicts.extend(_gone(epoch, numbers))
        if stream.verdicts:
            outcome.streams.append(stream)
    # A camera may have been erased while its windows were asked.
    remove_hidden(outcome, hidden())
    cost.cpu_s = time.process_time() - began
    return _fitting(outcome)


def _slim(verdict: Verdict, clear: float) -> Verdict:
    """Return a copy of a verdict with only what rules need; `clear` is the rule's lowest p(yes) that needs
    evidence."""
    slim = Verdict(
        window=verdict.window,
        outcome=verdict.outcome,
        start=verdict.start,
        end=verdict.end,
        basis="idle" if verdict.basis == "idle" else "",
    )
    if verdict.HasField("p_yes"):
        slim.p_yes = verdict.p_yes
        if verdict.p_yes >= clear:
            slim.evidence.extend(verdict.evidence)
            slim.activity = verdict.activity
            slim.activity_rows, slim.activity_cols = verdict.activity_rows, verdict.activity_cols
    return slim


def _replanned(epoch: EpochRecords, chosen: Iterable[int], digests: Container[str]) -> int:
    """Return the number of windows that the fleet planned with other settings."""
    computed = [computed_verdict(epoch.verdicts.get(index, ())) for index in chosen]
    return sum(verdict is not None and verdict.plan_digest not in digests for verdict in computed)


def _gone(epoch: EpochRecords, chosen: Iterable[int]) -> Iterator[Verdict]:
    """Yield a verdict without an outcome for each window whose newest block is past its retention."""
    for index in chosen:
        known = epoch.verdicts.get(index)
        if index not in epoch.blocks and known and known[0].outcome in HAD_FRAMES:
            yield Verdict(window=index, start=known[0].start, end=known[0].end)


def _fitting(outcome: BacktestOutcome) -> BacktestOutcome:
    """Shrink an outcome until it fits in a record, by removing references to pictures, weakest windows first.

    Raises:
        JobError: It does not fit even without pictures.
    """
    shown = [verdict for stream in outcome.streams for verdict in stream.verdicts if verdict.evidence]
    excess = outcome.ByteSize() - MOST_BYTES
    for verdict in sorted(shown, key=lambda verdict: verdict.p_yes):
        if excess <= 0:
            break
        before = verdict.ByteSize()
        verdict.ClearField("evidence")
        excess -= before - verdict.ByteSize()
    if outcome.ByteSize() > MOST_BYTES:
        raise JobError(
            f"the outcome of the part's windows takes {outcome.ByteSize()} bytes, more than the limit of "
            f"{MOST_BYTES}; choose a shorter time"
        )
    return outcome
