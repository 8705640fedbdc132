"""A request becomes a plan."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lookout import models
from lookout.errors import BadRecordError
from lookout.models import QuestionError
from lookout.recordings import RecordingError
from lookout.recordings.analysis import AnalysisError
from lookout.recordings.jobs import JobError, Sources, check_job, job_digest, plan_job, refused
from lookout.recordings.jobs.plans import PartFrames
from lookout.runtime.worker import (
    DeadLetter,
    Handler,
    Output,
    Record,
    Result,
    StoredCheckpoint,
    own_checkpoint,
)
from lookout.runtime.worker.settings import digest
from lookout.services.recordings.quotas import JobQuota, RunningJobs, Use, quota_of, use_of
from lookout.v1.recordings_pb2 import PlanState, RecordingJob, RecordingOutcome, RecordingPlan
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import RECORDING_RESULTS, RECORDINGS, WireError, received, tenant_of

if TYPE_CHECKING:
    from lookout.streams.chains import ChainRange

Ranges = Callable[[int, int], "Mapping[int, ChainRange]"]
#: how far clocks of cameras may be from Kafka's
_SLACK_S = 600.0
EVENTS = {
    "planned": "jobs cut into parts",
    "refused": "jobs that are not followed",
    "cancelled": "jobs that were cancelled",
    "repeated": "requests that were known already",
}


@dataclass(slots=True)
class JobState:
    """What is known of one job.

    Attributes:
        job: Its id.
        digest: Of what it asks; empty before it was planned.
        cancelled: It is cancelled.
        refused: It has no parts, so another request may take its id.
    """

    job: str
    digest: str = ""
    cancelled: bool = False
    refused: bool = False

    @property
    def stands(self) -> bool:
        """Whether it has parts."""
        return bool(self.digest) and not self.refused


class PlanHandler(Handler[JobState]):
    """Plans jobs.

    Args:
        folder: The model's checkpoint.
        part_frames: How many samples of a part the model reads at once.
        sources: Where recordings are read.
        ranges: What tokens.v1 has of a time of Kafka (Unix milliseconds), by partition.
        reach_s: How far before a time a chain of windows may have begun, seconds.
        stride_s: Seconds of footage behind a record of tokens.v1.
        quotas: By tenant; None: no job is refused for its size.
        running_jobs: The jobs that run; None: there are none.
        clock: Unix seconds.
    """

    config_digest = digest("recordings-plan", 1)
    events = EVENTS

    def __init__(
        self,
        folder: Path,
        part_frames: PartFrames,
        sources: Sources,
        *,
        ranges: Ranges,
        reach_s: float = 0.0,
        stride_s: float = 0.0,
        quotas: Mapping[str, JobQuota] | None = None,
        running_jobs: RunningJobs | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._part_frames, self._sources = folder, part_frames, sources
        self._ranges, self._reach_ms = ranges, round(1000 * (reach_s + _SLACK_S))
        self._stride_s, self._quotas, self._running_jobs = stride_s, quotas or {}, running_jobs
        self._clock, self._counting = clock, threading.Lock()

    def load(self, camera: str, stored: StoredCheckpoint | None) -> JobState:
        """What is known of a job."""
        own = stored.own(PlanState) if stored is not None else None
        if own is None:
            return JobState(camera)
        return JobState(camera, own.digest, own.cancelled, own.refused)

    def handle(self, state: JobState, record: Record) -> Result:
        """Plan a request, pass its cancellation on, or leave out what is known."""
        if not record.value:  # it was deleted
            return Result(forget=True)
        job = _job(record)
        asked = job_digest(job)
        if not state.stands:
            return _result(state, asked, self._within_quota(self._planned(job, record)), job.cancelled)
        if asked != state.digest:
            raise BadRecordError("job-exists", f"job {job.id} asks something else already: give another id")
        if not job.cancelled or state.cancelled:
            return Result(counts={"repeated": 1})
        state.cancelled = True
        outcome = RecordingOutcome(job=job.id, cancelled=True)
        return Result([_to_reduce(outcome)], checkpoint=_checkpoint(state), counts={"cancelled": 1})

    def rejected(self, state: JobState, record: Record, reason: DeadLetter) -> Result | None:
        """The answer of a request that becomes a dead letter says so; that of a job that exists stays."""
        if state.stands:
            return None
        plan = refused(RecordingJob(id=state.job), f"{reason.reason}: {reason.detail}")
        result = _result(state, reason.reason, plan, False)
        return Result(result.outputs, result.checkpoint)

    def forget(self, state: JobState) -> Result | None:
        """A job that is long over leaves the topic of requests."""
        return Result([Output(RECORDINGS.name, state.job, None)])

    def _planned(self, job: RecordingJob, record: Record) -> RecordingPlan:
        if job.cancelled:
            return refused(job, "cancelled before it was planned")
        try:
            if job.HasField("backtest"):
                return self._backtest(job, record)
            for question in job.questions:
                models.check_question(self._folder, question, text=job.settings.describe > 0, anyway=True)
            return plan_job(job, self._sources, self._part_frames, now_ms=self._now_ms(record))
        except (JobError, QuestionError, RecordingError, AnalysisError) as error:
            return refused(job, str(error))

    def _within_quota(self, plan: RecordingPlan) -> RecordingPlan:
        """A plan, refused where its tenant's jobs would use too much together."""
        if not plan.parts:
            return plan
        job, tenant, use = plan.job, tenant_of(plan.job.tenant), use_of(plan)
        # Two requests are looked at one after the other: the second one counts the first.
        with self._counting:
            running = Use() if self._running_jobs is None else self._running_jobs.running(tenant, job.id)
            if fault := quota_of(self._quotas, tenant).fault(tenant, running, use):
                return refused(job, fault)
            if self._running_jobs is not None:
                self._running_jobs.begin(job.id, tenant, use)
        return plan

    def _backtest(self, job: RecordingJob, record: Record) -> RecordingPlan:
        from lookout.past.backtests.jobs import plan_backtest, scope_of

        check_job(job)
        models.check_question(self._folder, job.backtest.watch.question, anyway=True)
        scope = scope_of(job.backtest)
        since_ms = max(0, scope.since_ms - self._reach_ms)
        ranges = self._ranges(since_ms, scope.until_ms + self._reach_ms)
        plan = plan_backtest(job, ranges, now_ms=self._now_ms(record))
        plan.seconds = self._stride_s * sum(span.stop - span.read_from for span in ranges.values())
        return plan

    def _now_ms(self, record: Record) -> int:
        return record.timestamp_ms or round(self._clock() * 1000)


def _result(state: JobState, asked: str, plan: RecordingPlan, cancelled: bool) -> Result:
    """A plan; the service that collects outcomes writes its parts."""
    state.digest, state.cancelled, state.refused = asked, cancelled, not plan.parts
    outcome = RecordingOutcome(job=state.job, plan=plan)
    event = "refused" if plan.reason else "planned"
    return Result([_to_reduce(outcome)], checkpoint=_checkpoint(state), counts={event: 1})


def _job(record: Record) -> RecordingJob:
    try:
        return received(RecordingJob, record)
    except WireError as error:
        raise BadRecordError("bad-job", str(error)) from error


def _to_reduce(outcome: RecordingOutcome) -> Output:
    return Output(RECORDING_RESULTS.name, outcome.job, outcome.SerializeToString())


def _checkpoint(state: JobState) -> Checkpoint:
    own = PlanState(digest=state.digest[:64], cancelled=state.cancelled, refused=state.refused)
    return own_checkpoint(own)
