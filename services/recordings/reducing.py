"""Turns the outcomes of a job's parts into further parts, and finally into the job's answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lookout.errors import BadRecordError, RecordsGoneError
from lookout.past.backtests.answers import Hidden, answer_of, nothing_hidden
from lookout.recordings.jobs import answers_of, has_parts, planned_part
from lookout.runtime.worker import (
    Handler,
    Output,
    Record,
    RecordSource,
    Result,
    StoredCheckpoint,
    own_checkpoint,
)
from lookout.runtime.worker.settings import digest
from lookout.services.recordings.quotas import RunningJobs, Use, use_of
from lookout.v1.recordings_pb2 import (
    PartOutcome,
    RecordingAnswers,
    RecordingOutcome,
    RecordingPlan,
    ReduceState,
)
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import (
    ANSWERS,
    DEFAULT_TENANT,
    RECORDING_PARTS,
    RECORDING_RESULTS,
    WireError,
    received,
    tenant_of,
    to_json,
)

EVENTS = {
    "ended": "jobs that ended",
    "late": "outcomes of parts whose job had already ended",
    "repeated": "outcomes of parts that already had an outcome",
    "unknown": "outcomes of parts whose job has no plan",
}
#: why a record becomes a dead letter, counted in `lookout_dead_letters_total`
REASONS = {"bad-outcome": "an outcome that cannot be read"}


#: number of a back-test's outcomes to read at a time; each may have a megabyte
_AT_ONCE = 16


@dataclass(slots=True)
class Reduction:
    """The progress of one job.

    Attributes:
        job: The job's id.
        partition: Partition of the job's plan and outcomes.
        plan_offset: Offset of the plan; None: the plan has not arrived yet.
        parts: Total number of parts.
        offsets: Offsets of outcomes, by the part's number.
        expires_ms: When the job expires, Unix milliseconds; 0: never.
        ended: Whether the job's final answers are written.
        sent: Number of parts written so far; they are written in the plan's order.
        tenant: The job's tenant.
        use: What the job uses of its tenant's quota.
        plan: The plan; None: it is reread when needed.
    """

    job: str
    partition: int = 0
    plan_offset: int | None = None
    parts: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    expires_ms: int = 0
    ended: bool = False
    sent: int = 0
    tenant: str = DEFAULT_TENANT
    use: Use = field(default_factory=Use)
    plan: RecordingPlan | None = None

    def become(self, other: Reduction) -> None:
        """Copy all fields from another object."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))


class ReduceHandler(Handler[Reduction]):
    """Collects the outcomes of parts, and writes further parts. The checkpoint holds only the outcomes'
    offsets; the outcomes are reread at the end.

    Only a few parts of a job are written at a time, and each outcome releases the next part. So jobs take
    turns, and a small job does not wait for a large one to end.

    Args:
        records: Rereads plans and outcomes.
        partitions: Number of partitions of the topic of parts.
        most_parts: Maximum number of parts of one tenant that are queued or running at a time. The tenant's
            jobs share this limit, but each may always have one part.
        running_jobs: The running jobs; None: each job counts as its tenant's only one.
        hidden: Returns the current erasures.
        tick_every: Seconds between checks for expired jobs.
        clock: Unix seconds.
    """

    config_digest = digest("recordings-reduce", 1)
    events = EVENTS
    reasons = REASONS

    def __init__(
        self,
        records: RecordSource,
        *,
        partitions: int,
        most_parts: int,
        running_jobs: RunningJobs | None = None,
        hidden: Callable[[], Hidden] = lambda: nothing_hidden,
        tick_every: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records, self._clock, self._hidden = records, clock, hidden
        self._partitions, self._most_parts, self._running_jobs = partitions, most_parts, running_jobs
        self.tick_every = tick_every

    def load(self, camera: str, stored: StoredCheckpoint | None) -> Reduction:
        """Build a job's progress from its checkpoint."""
        own = stored.own(ReduceState) if stored is not None else None
        if stored is None or own is None:
            return Reduction(camera)
        return Reduction(
            camera,
            stored.partition,
            own.plan_offset,
            own.parts,
            dict(zip(own.numbers, own.offsets, strict=True)),
            own.expires.ToMilliseconds() if own.HasField("expires") else 0,
            own.ended,
            own.sent,
            tenant_of(own.tenant),
            Use(1, own.parts, own.seconds, own.questions),
        )

    def handle(self, state: Reduction, record: Record) -> Result:
        """Take a plan, a part's outcome, or a cancellation."""
        # Rereading outcomes may fail and be retried, so the state changes only after success.
        after = replace(state, offsets=dict(state.offsets))
        result = self._handled(after, record)
        state.become(after)
        return result

    def _handled(self, state: Reduction, record: Record) -> Result:
        try:
            outcome = received(RecordingOutcome, record)
        except WireError as error:
            raise BadRecordError("bad-outcome", str(error)) from error
        kind = outcome.WhichOneof("what")
        if kind == "plan":
            return self._begin(state, record, outcome.plan)
        if state.plan_offset is None:
            return Result(counts={"unknown": 1})
        if state.ended:
            return Result(counts={"late": 1})
        if kind == "part":
            place = outcome.place if outcome.HasField("place") else None
            return self._take(state, record, outcome.part.number, place)
        return self._end(state, RecordingAnswers.STATE_CANCELLED)

    def tick(self, state: Reduction, now: float) -> Result | None:
        """End an expired job with the answers so far, or write further parts of a job whose share has
        grown.

        The share grows when other jobs of the tenant end.
        """
        if state.ended or state.plan_offset is None:
            return None
        after = replace(state)
        if state.expires_ms and now * 1000 > state.expires_ms:
            result = self._end(after, RecordingAnswers.STATE_EXPIRED)
        else:
            result = self._progress(after)
            if after.sent == state.sent and not after.ended:
                state.plan = after.plan
                return None
        state.become(after)
        return result

    def forget(self, state: Reduction) -> Result | None:
        """Delete the answers of a job that ended long ago."""
        return Result([Output(ANSWERS.name, state.job, None)])

    def _begin(self, state: Reduction, record: Record, plan: RecordingPlan) -> Result:
        refused = state.ended and not state.parts  # the job was rejected, so another request may use its id
        if state.plan_offset is not None and not refused:
            return Result(counts={"repeated": 1})
        state.ended, state.sent, state.plan = False, 0, plan
        state.partition, state.plan_offset, state.parts = record.partition, record.offset, plan.parts
        state.expires_ms = plan.expires.ToMilliseconds() if plan.HasField("expires") else 0
        state.tenant, state.use = tenant_of(plan.job.tenant), use_of(plan)
        if plan.reason and plan.job.cancelled:
            return self._end(state, RecordingAnswers.STATE_CANCELLED)
        if not plan.parts:
            return self._end(state, RecordingAnswers.STATE_REFUSED)
        return self._progress(state)

    def _take(self, state: Reduction, record: Record, number: int, place: int | None) -> Result:
        if number in state.offsets or number >= state.parts:
            return Result(counts={"repeated": 1})
        state.offsets[number] = record.offset
        if len(state.offsets) == state.parts:
            return self._end(state, RecordingAnswers.STATE_DONE)
        return self._progress(state, place)

    def _parts(self, state: Reduction, freed: int | None = None) -> list[Output]:
        """Return the parts to write next.

        Args:
            state: The job's progress.
            freed: Partition in which a part just ended. The next part goes there, so that a fast worker gets
                more parts.
        """
        if state.sent >= state.parts:
            return []
        assert state.plan_offset is not None
        if state.plan is None:
            (first,) = self._read(state, [state.plan_offset])
            state.plan = first.plan
        if not has_parts(state.plan):  # its parts were written together with the plan
            state.sent = state.parts
            return []
        begin = state.sent
        state.sent = max(begin, min(state.parts, len(state.offsets) + self._share(state)))
        outputs = []
        for number in range(begin, state.sent):
            part = planned_part(state.plan, number, state.partition)
            # Neighbouring parts go to different partitions, so that all workers share a recording.
            place, freed = (state.partition + number) % self._partitions if freed is None else freed, None
            key = f"{part.job}/{part.number}"
            outputs.append(Output(RECORDING_PARTS.name, key, part.SerializeToString(), partition=place))
        return outputs

    def _share(self, state: Reduction) -> int:
        """Return how many parts of a job may be queued or running now."""
        if self._running_jobs is None:
            return self._most_parts
        return max(1, self._most_parts // (1 + self._running_jobs.running(state.tenant, state.job).jobs))

    def _progress(self, state: Reduction, freed: int | None = None) -> Result:
        try:
            parts = self._parts(state, None if freed is None or freed >= self._partitions else freed)
        except RecordsGoneError:  # retention removed the plan
            return self._end(state, RecordingAnswers.STATE_EXPIRED)
        answers = RecordingAnswers(
            id=state.job, state=RecordingAnswers.STATE_RUNNING, parts=state.parts, done=len(state.offsets)
        )
        return self._result(state, answers, {}, parts)

    def _end(self, state: Reduction, how: RecordingAnswers.State) -> Result:
        """Write a job's final answers, from its plan and the outcomes so far."""
        assert state.plan_offset is not None
        try:
            answers = self._answers(state, how)
        except RecordsGoneError as error:
            answers = RecordingAnswers(id=state.job, state=how, parts=state.parts, reason=str(error))
        state.ended, state.plan = True, None
        state.offsets = {}
        return self._result(state, answers, {"ended": 1})

    def _answers(self, state: Reduction, how: RecordingAnswers.State) -> RecordingAnswers:
        assert state.plan_offset is not None
        (first,) = self._read(state, [state.plan_offset])
        plan = first.plan
        if not plan.job.HasField("backtest") or plan.reason:
            outcomes = [outcome.part for outcome in self._read(state, state.offsets.values())]
            return answers_of(plan, {outcome.number: outcome for outcome in outcomes}, how)

        def parts(numbers: Sequence[int]) -> Iterator[PartOutcome]:
            offsets = sorted(state.offsets[number] for number in numbers if number in state.offsets)
            for begin in range(0, len(offsets), _AT_ONCE):
                for outcome in self._read(state, offsets[begin : begin + _AT_ONCE]):
                    yield outcome.part

        return RecordingAnswers(
            id=state.job,
            state=how,
            parts=state.parts,
            done=len(state.offsets),
            backtest=answer_of(plan, parts, hidden=self._hidden()),
        )

    def _read(self, state: Reduction, offsets: Iterable[int]) -> list[RecordingOutcome]:
        records = self._records.read(RECORDING_RESULTS.name, state.partition, list(offsets))
        return [received(RecordingOutcome, record) for record in records]

    def _result(
        self,
        state: Reduction,
        answers: RecordingAnswers,
        counts: Mapping[str, int],
        parts: Sequence[Output] = (),
    ) -> Result:
        answers.updated.FromMilliseconds(round(self._clock() * 1000))
        output = Output(ANSWERS.name, state.job, to_json(answers))
        return Result([output, *parts], checkpoint=_checkpoint(state), counts=counts)


def _checkpoint(state: Reduction) -> Checkpoint:
    own = ReduceState(
        plan_offset=state.plan_offset or 0,
        parts=state.parts,
        numbers=list(state.offsets),
        offsets=list(state.offsets.values()),
        ended=state.ended,
        sent=state.sent,
        tenant=state.tenant,
        seconds=state.use.seconds,
        questions=state.use.questions,
    )
    if state.expires_ms:
        own.expires.FromMilliseconds(state.expires_ms)
    return own_checkpoint(own)
