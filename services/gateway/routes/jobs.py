"""Jobs about recordings, and back-tests."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from sqlalchemy import Connection
from starlette.responses import Response

from lookout.recordings.jobs.requests import check_job
from lookout.services.gateway.guard import Operator, Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, body_of, route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.writes import Asked, Asking, entry
from lookout.v1.gateway_pb2 import JobList, JobView
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob
from lookout.wire import ANSWERS, RECORDINGS, from_json, to_json
from lookout.wire.message_json import enum_name

router = APIRouter(prefix="/v1", tags=["jobs"])
_Id = Annotated[str, Path(max_length=100)]
_Body = Annotated[RecordingJob, Depends(body_of(RecordingJob))]


@router.get("/recordings", **route(JobList))
def list_recordings(request: Request, principal: Viewer) -> Response:
    """List jobs about recordings, without their answers."""
    return answer(_jobs(parts_of(request), principal, backtests=False))


@router.get("/backtests", **route(JobList))
def list_backtests(request: Request, principal: Viewer) -> Response:
    """List back-tests, without their answers."""
    return answer(_jobs(parts_of(request), principal, backtests=True))


@router.get("/recordings/{identity}", **route(JobView))
@router.get("/backtests/{identity}", **route(JobView))
def get_job(request: Request, principal: Viewer, identity: _Id) -> Response:
    """Return a job with its answers."""
    return answer(job_of(parts_of(request), principal, identity))


@router.post("/recordings", **route(JobView, takes=RecordingJob, status=202))
def ask_recordings(request: Request, principal: Operator, asked: Asked, job: _Body) -> Response:
    """Start a job that asks questions about recordings that the fleet can read."""
    if job.HasField("backtest"):
        raise ProblemError(400, "backtest: send it to /v1/backtests")
    return _ask(parts_of(request), principal, asked, job)


@router.post("/backtests", **route(JobView, takes=RecordingJob, status=202))
def ask_past(request: Request, principal: Operator, asked: Asked, job: _Body) -> Response:
    """Start a back-test, which asks a question about what the cameras have seen."""
    if not job.HasField("backtest"):
        raise ProblemError(400, "backtest: missing; send jobs about recordings to /v1/recordings")
    watch = job.backtest.watch
    watch.id, watch.version = watch.id or "backtest", watch.version or 1
    watch.tenant = watch.tenant or job.tenant
    if not principal.owns_watch(watch):
        raise ProblemError(403, "backtest.watch: the watch asks cameras that you may not see; choose yours")
    return _ask(parts_of(request), principal, asked, job)


@router.delete("/recordings/{identity}", **route(JobView, status=202))
@router.delete("/backtests/{identity}", **route(JobView, status=202))
def cancel(request: Request, principal: Operator, asked: Asked, identity: _Id) -> Response:
    """Cancel a job. Parts that have no answer yet will not get one."""
    parts = parts_of(request)
    view = job_of(parts, principal, identity)
    job = RecordingJob()
    job.CopyFrom(view.request)
    job.cancelled = True
    with parts.writes.once(principal, asked, RECORDINGS.name) as written:
        if written is None:
            audit = entry("job.cancel", identity, tenant=job.tenant)
            parts.writes.write(principal, asked, RECORDINGS.name, {identity: to_json(job)}, audit)
    return answer(job_of(parts, principal, identity), 202)


def _ask(parts: Parts, principal: Principal, asked: Asking, job: RecordingJob) -> Response:
    if principal.tenants and job.tenant not in principal.tenants:
        raise ProblemError(403, f"tenant: choose one of {', '.join(principal.tenants)}")
    if principal.cameras and not job.HasField("backtest"):
        raise ProblemError(403, "jobs about recordings need a caller who may see every camera")
    with parts.writes.once(principal, asked, RECORDINGS.name) as written:
        if written is not None:
            return answer(job_of(parts, principal, written), 202)
        job.id = job.id or f"{time.strftime('%Y-%m-%d')}-{secrets.token_hex(4)}"
        job.cancelled = False
        job.requested.GetCurrentTime()
        check_job(job)
        with parts.database.reading() as connection:
            if queries.document(connection, RECORDINGS.name, job.id) is not None:
                raise ProblemError(409, f"id: job {job.id} already exists; choose another id, or give none")
        audit = entry("job.ask", job.id, tenant=job.tenant)
        parts.writes.write(principal, asked, RECORDINGS.name, {job.id: to_json(job)}, audit)
    return answer(job_of(parts, principal, job.id), 202)


def _sees(principal: Principal, job: RecordingJob) -> bool:
    """Return whether a caller may see a job, whose tenant must be one of the caller's. A caller limited to
    some cameras sees only back-tests whose watch covers no other cameras.
    """
    if not principal.sees_tenant(job.tenant):
        return False
    return not principal.cameras or (job.HasField("backtest") and principal.owns_watch(job.backtest.watch))


def _view(connection: Connection, job: RecordingJob, *, whole: bool) -> JobView:
    view = JobView(request=job, state="cancelled" if job.cancelled else "waiting")
    row = queries.document(connection, ANSWERS.name, job.id)
    if row is not None:
        answers = from_json(row.body, RecordingAnswers)
        view.state = enum_name("State", RecordingAnswers.State.Name(answers.state))
        if whole:
            view.answers.CopyFrom(answers)
        else:
            view.answers.id, view.answers.state = answers.id, answers.state
            view.answers.parts, view.answers.done = answers.parts, answers.done
    return view


def _jobs(parts: Parts, principal: Principal, *, backtests: bool) -> JobList:
    with parts.database.reading() as connection:
        jobs = [from_json(row.body, RecordingJob) for row in queries.documents(connection, RECORDINGS.name)]
        return JobList(
            jobs=[
                _view(connection, job, whole=False)
                for job in jobs
                if job.HasField("backtest") == backtests and _sees(principal, job)
            ]
        )


def job_of(parts: Parts, principal: Principal, identity: str) -> JobView:
    """Return a job with its answers.

    Raises:
        ProblemError: The job does not exist, or the caller may not see it.
    """
    with parts.database.reading() as connection:
        row = queries.document(connection, RECORDINGS.name, identity)
        job = None if row is None else from_json(row.body, RecordingJob)
        if job is None or not _sees(principal, job):
            raise not_found("job", identity)
        return _view(connection, job, whole=True)
