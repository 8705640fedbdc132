"""Checks the request of a job. The command line and the planning service use the same checks."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from lookout.errors import LookoutError
from lookout.recordings.jobs.begins import begin_of
from lookout.rules import RuleError, check_watch
from lookout.text import clean, question_text
from lookout.v1.recordings_pb2 import RecordingJob
from lookout.wire import WireError, check_tenant, is_camera_id
from lookout.wire.limits import JOB_BYTES
from lookout.wire.ranges import RangeError, check_ranges


class JobError(LookoutError, ValueError):
    """The job is invalid."""


def check_job(job: RecordingJob) -> None:
    """Check everything in a job that can be checked without a model or a recording.

    Raises:
        JobError: The job is invalid. The error names the field.
    """
    try:
        check_ranges(job)
    except RangeError as error:
        raise JobError(str(error)) from None
    if not is_camera_id(job.id) or len(job.id.encode()) > JOB_BYTES or "/" in job.id:
        raise JobError(f"id {clean(job.id, 60)!r}: give printable text of 1 to {JOB_BYTES} bytes without '/'")
    try:
        check_tenant(job.tenant)
    except WireError as error:
        raise JobError(str(error)) from None
    if job.HasField("backtest"):
        _check_backtest(job)
        return
    if not job.uris or not all(uri.strip() for uri in job.uris):
        raise JobError("uris: give at least one recording, and no empty URI")
    if not job.questions:
        raise JobError("questions: give at least one")
    asked_questions(job)
    settings = job.settings
    if settings.HasField("end_s") and settings.end_s <= settings.start_s:
        raise JobError(f"settings: the range from {settings.start_s:g} s to {settings.end_s:g} s is empty")
    check_begins(job, len(job.uris))


def asked_questions(job: RecordingJob) -> list[str]:
    """Return a job's questions about recordings, each on one line.

    Raises:
        JobError: A question is invalid (`question_text`).
    """
    return [question_text(question, JobError) for question in job.questions]


def check_begins(job: RecordingJob, recordings: int) -> None:
    """Check the time of the first frame (`begins`), if a request gives one.

    Args:
        job: The request.
        recordings: Number of recordings of the job that are known so far.

    Raises:
        JobError: The time is invalid, or there are several recordings.
    """
    settings = job.settings
    if not settings.HasField("begins"):
        return
    if begin_of(settings) is None:
        raise JobError("settings: begins: give a time between 1970 and 2200")
    if recordings > 1:
        raise JobError(
            f"settings: begins applies to one recording, but the job names {recordings}: send one job "
            "per recording"
        )


def _check_backtest(job: RecordingJob) -> None:
    if job.uris or job.questions or job.HasField("settings"):
        raise JobError("backtest: give a watch, but no uris, questions or settings")
    backtest = job.backtest
    try:
        check_watch(backtest.watch)
    except RuleError as error:
        raise JobError(f"backtest: watch: {error}") from None
    if job.tenant and backtest.watch.tenant not in ("", job.tenant):
        raise JobError(
            f"backtest: watch: tenant '{backtest.watch.tenant}': a job of tenant '{job.tenant}' may only "
            "read cameras of its own tenant"
        )
    if (
        backtest.HasField("since")
        and backtest.HasField("until")
        and _ms(backtest.since) >= _ms(backtest.until)
    ):
        raise JobError("backtest: the time from `since` to `until` is empty: `since` must be before `until`")


def _ms(moment: Timestamp) -> int:
    return moment.ToMilliseconds()
