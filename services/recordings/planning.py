"""Turns requests for jobs into plans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait as wait_for
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from lookout import models
from lookout.errors import BadRecordError, RecordsGoneError, TransientError
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
    RecordSource,
    Result,
    StoredCheckpoint,
    own_checkpoint,
)
from lookout.runtime.worker.settings import digest
from lookout.services.recordings.quotas import JobQuota, RunningJobs, Use, quota_of, use_of
from lookout.services.recordings.tenant_threads import TenantThreads
from lookout.v1.recordings_pb2 import PlanState, RecordingJob, RecordingOutcome, RecordingPlan
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import RECORDING_RESULTS, RECORDINGS, WireError, received, tenant_of

if TYPE_CHECKING:
    from lookout.streams.chains import ChainRange

_log = structlog.get_logger(__name__)
Ranges = Callable[[int, int], "Mapping[int, ChainRange]"]
#: maximum difference between a camera's clock and Kafka's, in seconds
_SLACK_S = 600.0
#: maximum time in seconds for which a request waits for its plan; then planning continues in the background
PATIENCE_S: Final = 0.5
_CANCELLED_EARLY: Final = "cancelled before it was planned"
EVENTS = {
    "planned": "jobs cut into parts",
    "refused": "jobs that were rejected",
    "cancelled": "jobs that were cancelled",
    "repeated": "requests that had been received before",
}
#: why a record becomes a dead letter, counted in `lookout_dead_letters_total`
REASONS = {
    "bad-job": "a request that cannot be read",
    "job-exists": "a second, different request under the same id",
}


@dataclass(slots=True)
class JobState:
    """The planning state of one job.

    Attributes:
        job: The job's id.
        digest: Digest of the request; empty if there was none.
        cancelled: Whether the job is cancelled.
        refused: Whether the job was rejected. If so, it has no parts, and another request may use its id.
        request_offset: Offset of the request if it is not planned yet; None: it is planned.
        partition: The request's partition.
        tenant: The request's tenant.
    """

    job: str
    digest: str = ""
    cancelled: bool = False
    refused: bool = False
    request_offset: int | None = None
    partition: int = 0
    tenant: str = ""

    @property
    def stands(self) -> bool:
        """Whether the job has parts or may still get some, so that no other request can use its id."""
        return bool(self.digest) and not self.refused


class PlanHandler(Handler[JobState]):
    """Plans jobs.

    Recordings' hosts may be slow or not answer. Planning that takes long therefore runs on threads that
    tenants share, and the plan is written at a later tick. Until then the checkpoint holds the request's
    offset, and other jobs continue.

    Args:
        records: Rereads requests.
        folder: The folder of the model's checkpoint.
        part_frames: Returns the most samples per part for given settings.
        sources: Opens recordings.
        ranges: Returns the offset ranges of tokens.v1 for a span of Kafka's time (Unix milliseconds), by
            partition.
        reach_s: Maximum seconds by which a chain of windows may begin before one of its windows.
        stride_s: Seconds of footage per record of tokens.v1.
        quotas: Quotas by tenant; None: no job is rejected for its size.
        running_jobs: The running jobs, which count towards quotas; None: they do not count.
        patience_s: Maximum seconds for which a request is planned synchronously.
        retry_limit_s: Seconds for which planning is retried while a dependency is unavailable.
        clock: Unix seconds.
    """

    config_digest = digest("recordings-plan", 1)
    events = EVENTS
    reasons = REASONS
    tick_every = 5.0

    def __init__(
        self,
        records: RecordSource,
        folder: Path,
        part_frames: PartFrames,
        sources: Sources,
        *,
        ranges: Ranges,
        reach_s: float = 0.0,
        stride_s: float = 0.0,
        quotas: Mapping[str, JobQuota] | None = None,
        running_jobs: RunningJobs | None = None,
        patience_s: float = PATIENCE_S,
        retry_limit_s: float = 3600.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._part_frames, self._sources = folder, part_frames, sources
        self._ranges, self._reach_ms = ranges, round(1000 * (reach_s + _SLACK_S))
        self._stride_s, self._quotas, self._running_jobs = stride_s, quotas or {}, running_jobs
        self._clock, self._counting = clock, threading.Lock()
        self._records, self._patience_s, self._retry_limit_s = records, patience_s, retry_limit_s
        self._threads: TenantThreads[RecordingPlan] = TenantThreads()
        self._plans: dict[str, Future[RecordingPlan]] = {}  # plans in progress, by job

    def load(self, camera: str, stored: StoredCheckpoint | None) -> JobState:
        """Build a job's state from its checkpoint."""
        own = stored.own(PlanState) if stored is not None else None
        if own is None:
            return JobState(camera)
        offset = own.request_offset if own.HasField("request_offset") else None
        assert stored is not None
        return JobState(camera, own.digest, own.cancelled, own.refused, offset, stored.partition, own.tenant)

    def handle(self, state: JobState, record: Record) -> Result:
        """Plan a request, forward a cancellation, or ignore a repeated request."""
        if not record.value:  # the request was deleted
            self._drop(state.job)
            return Result(forget=True)
        job = _job(record)
        digest = job_digest(job)
        if not state.stands:
            return self._begin(state, job, digest, record)
        if digest != state.digest:
            raise BadRecordError(
                "job-exists", f"job {job.id} already exists and asks something else: choose another id"
            )
        if not job.cancelled or state.cancelled:
            return Result(counts={"repeated": 1})
        if state.request_offset is not None:
            self._drop(job.id)
            return _result(state, digest, refused(job, _CANCELLED_EARLY), True)
        state.cancelled = True
        outcome = RecordingOutcome(job=job.id, cancelled=True)
        return Result([_to_reduce(outcome)], checkpoint=_checkpoint(state), counts={"cancelled": 1})

    def tick(self, state: JobState, now: float) -> Result | None:
        """Write a plan that has been finished, or start planning a request that had to wait."""
        if state.request_offset is None:
            return None
        future = self._plans.get(state.job)
        if future is None and self._threads.has_room(tenant_of(state.tenant)):
            future = self._read_and_plan(state)
        return self._finish(state, state.digest, future)

    def passed(self, state: JobState, record_ms: int) -> Result | None:
        """Do the same as `tick` while requests keep arriving."""
        return self.tick(state, 0.0)

    def released(self, camera: str, partition: int) -> None:
        """Stop planning a job that now belongs to another worker."""
        self._drop(camera)

    def close(self) -> None:
        """Stop planning."""
        self._threads.close()

    def _begin(self, state: JobState, job: RecordingJob, asked: str, record: Record) -> Result:
        """Plan a request at once if that is fast; otherwise store in the checkpoint that it is not planned
        yet.
        """
        if job.cancelled:
            return _result(state, asked, refused(job, _CANCELLED_EARLY), True)
        alone = self._threads.is_idle(tenant_of(job.tenant))
        future = self._submit(job, record)
        if future is not None and alone:
            wait_for([future], self._patience_s)
        if (result := self._finish(state, asked, future)) is not None:
            return result
        state.digest, state.cancelled, state.refused = asked, False, False
        state.request_offset, state.partition, state.tenant = record.offset, record.partition, job.tenant
        return Result(checkpoint=_checkpoint(state))

    def _submit(self, job: RecordingJob, record: Record) -> Future[RecordingPlan] | None:
        future = self._threads.submit(tenant_of(job.tenant), partial(self._planned, job, record))
        if future is not None:
            self._plans[job.id] = future
        return future

    def _read_and_plan(self, state: JobState) -> Future[RecordingPlan] | None:
        """Reread a waiting request and start planning it. It was waiting because another worker left it, or
        because too many of its tenant's requests were waiting.
        """
        assert state.request_offset is not None
        try:
            (record,) = self._records.read(RECORDINGS.name, state.partition, [state.request_offset])
            return self._submit(_job(record), record)
        except (RecordsGoneError, BadRecordError) as error:
            future: Future[RecordingPlan] = Future()
            future.set_result(refused(RecordingJob(id=state.job), f"its request is gone ({error})"))
            return future

    def _finish(self, state: JobState, asked: str, future: Future[RecordingPlan] | None) -> Result | None:
        """Return the result with the plan; None if the plan is not ready or failed and will be made again
        later.
        """
        if future is None or not future.done():
            return None
        self._plans.pop(state.job, None)
        try:
            plan = future.result()
        except TransientError as error:
            _log.warning("planning a job failed; trying again later", job=state.job, error=str(error))
            return None
        return _result(state, asked, self._within_quota(plan), False)

    def _drop(self, job: str) -> None:
        if (future := self._plans.pop(job, None)) is not None:
            future.cancel()

    def rejected(self, state: JobState, record: Record, reason: DeadLetter) -> Result | None:
        """Answer a request that becomes a dead letter, unless its id belongs to an existing job, whose answer
        stays.
        """
        if state.stands:
            return None
        plan = refused(RecordingJob(id=state.job), f"{reason.reason}: {reason.detail}")
        result = _result(state, reason.reason, plan, False)
        return Result(result.outputs, result.checkpoint)

    def forget(self, state: JobState) -> Result | None:
        """Delete the request of a job that ended long ago."""
        return Result([Output(RECORDINGS.name, state.job, None)])

    def _planned(self, job: RecordingJob, record: Record) -> RecordingPlan:
        try:
            if job.HasField("backtest"):
                return self._backtest(job, record)
            for question in job.questions:
                models.check_question(self._folder, question, text=job.settings.describe > 0, anyway=True)
            return plan_job(job, self._sources, self._part_frames, now_ms=self._now_ms(record))
        except (JobError, QuestionError, RecordingError, AnalysisError) as error:
            return refused(job, str(error))
        except TransientError as error:
            if self._clock() - self._now_ms(record) / 1000 < self._retry_limit_s:
                raise
            return refused(job, f"unavailable for {self._retry_limit_s:g} s: {error}")
        except Exception as error:  # whatever fails, the job gets an answer
            _log.exception("planning a job failed unexpectedly", job=job.id)
            return refused(job, f"internal-error: {type(error).__name__}: {error}")

    def _within_quota(self, plan: RecordingPlan) -> RecordingPlan:
        """Return the plan, or a rejection if the tenant's jobs together would exceed its quota."""
        if not plan.parts:
            return plan
        job, tenant, use = plan.job, tenant_of(plan.job.tenant), use_of(plan)
        # Locked, so that of two concurrent requests, the second counts the first.
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
    """Return the result that writes a plan. The role `reduce` then writes the plan's parts."""
    state.digest, state.cancelled, state.refused = asked, cancelled, not plan.parts
    state.request_offset = None
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
    own = PlanState(
        digest=state.digest[:64],
        cancelled=state.cancelled,
        refused=state.refused,
        request_offset=state.request_offset,
        tenant="" if state.request_offset is None else state.tenant,
    )
    return own_checkpoint(own)
