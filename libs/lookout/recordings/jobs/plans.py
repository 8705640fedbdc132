"""Lists a job's recordings and cuts them into parts, as `lookout analyze` does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from google.protobuf.timestamp_pb2 import Timestamp

from lookout.recordings import PrefillSettings
from lookout.recordings.analysis import AnalysisError, AnalysisSettings
from lookout.recordings.analysis.cutting import cut_parts, gaps_in_file
from lookout.recordings.jobs.outcomes import gap_messages, reason_text, span_of
from lookout.recordings.jobs.ranges import SourceError
from lookout.recordings.jobs.requests import JobError, asked_questions, check_begins, check_job
from lookout.recordings.jobs.sources import Sources
from lookout.text import clean
from lookout.v1.recordings_pb2 import (
    PlannedRecording,
    RecordingJob,
    RecordingPart,
    RecordingPlan,
    RecordingSettings,
)
from lookout.video.sandbox import open_recording
from lookout.video.segments import CodecError
from lookout.wire.begins import set_begin
from lookout.wire.limits import JOB_ANSWERS, JOB_PARTS, JOB_RECORDINGS, JOB_S, URI_CHARS

PartFrames = Callable[[AnalysisSettings], int]
"""Returns the maximum number of samples of a part for given settings (`Analyzer.part_frames`)."""
#: maximum bytes of a plan; a record of recording.results.v1 may have 1 MiB
_MOST_BYTES = 900_000


def job_digest(job: RecordingJob) -> str:
    """Return a digest of a job's request. The time of the request, and whether it was cancelled, do not
    count."""
    request = RecordingJob()
    request.CopyFrom(job)
    request.ClearField("cancelled")
    request.ClearField("requested")
    return hashlib.blake2b(request.SerializeToString(deterministic=True), digest_size=16).hexdigest()


def settings_of(message: RecordingSettings, threads: int | None = None) -> AnalysisSettings:
    """Return the settings of an analysis from the settings in a request.

    Args:
        message: The settings in the request; 0 means the default.
        threads: Decoding threads; None: as many as cores.

    Raises:
        AnalysisError: A setting is invalid.
        RecordingError: A setting of the prefill is invalid.
    """
    defaults = AnalysisSettings()
    prefill = PrefillSettings(
        group_frames=message.group_frames or defaults.prefill.group_frames,
        rho=message.rho or defaults.prefill.rho,
    )
    return AnalysisSettings(
        fps=message.fps or defaults.fps,
        start_s=message.start_s,
        end_s=message.end_s if message.HasField("end_s") else None,
        prefill=prefill,
        part_frames=message.part_frames or None,
        prune=message.prune,
        policy=message.policy or None,
        threads=threads,
        describe=message.describe,
    )


def settings_message(settings: AnalysisSettings) -> RecordingSettings:
    """Return the settings of an analysis as a message, the inverse of `settings_of`. Settings that only apply
    to this machine, such as `threads`, are omitted.

    Raises:
        AnalysisError: The policy is an object, but a fleet knows policies only by name.
    """
    if not isinstance(settings.policy, str | None):
        raise AnalysisError(
            "policy: a fleet accepts policies only by name: give a name in lookout.pruning.POLICIES"
        )
    return RecordingSettings(
        fps=settings.fps,
        start_s=settings.start_s,
        end_s=settings.end_s,
        group_frames=settings.prefill.group_frames,
        rho=settings.prefill.rho,
        part_frames=settings.part_frames or 0,
        prune=settings.prune,
        policy=settings.policy or "",
        describe=settings.describe,
    )


def refused(job: RecordingJob, reason: str) -> RecordingPlan:
    """Return the plan of a rejected job."""
    return RecordingPlan(job=job, reason=reason_text(reason))


def expiry_of(job: RecordingJob, now_ms: int) -> Timestamp:
    """Return the time at which a job ends even if it is not finished.

    Args:
        job: The request.
        now_ms: When Kafka received the request, Unix milliseconds.
    """
    asked_ms = min(job.requested.ToMilliseconds(), now_ms) if job.HasField("requested") else now_ms
    expiry = Timestamp()
    expiry.FromMilliseconds(asked_ms + round(1000 * (job.expires_s or JOB_S)))
    return expiry


def plan_job(job: RecordingJob, sources: Sources, part_frames: PartFrames, *, now_ms: int) -> RecordingPlan:
    """Return the plan of a job: its recordings, each cut into parts. A recording that cannot be read is in
    the plan with the reason.

    Args:
        job: The request.
        sources: Opens the recordings.
        part_frames: Returns the maximum number of samples of a part.
        now_ms: When Kafka received the request, Unix milliseconds.

    Raises:
        JobError: The job is invalid or too large.
        TransientError: A host does not answer.
    """
    check_job(job)
    settings = settings_of(job.settings, threads=1)
    plan = RecordingPlan(job=job, expires=expiry_of(job, now_ms))
    plan.job.questions[:] = asked_questions(job)
    uris = _listed(job, sources)
    check_begins(job, len(uris))
    for uri in uris:
        recording = _cut(uri, sources, part_frames, settings, job.tenant)
        plan.recordings.append(recording)
        plan.parts += recording.parts
        plan.seconds += sum(span.end_s - span.start_s for span in recording.spans)
        _check_size(plan.parts, len(job.questions))
    if plan.ByteSize() > _MOST_BYTES:
        raise JobError(
            f"the job's plan has {plan.ByteSize()} bytes for {len(plan.recordings)} recordings; the limit is "
            f"{_MOST_BYTES}: ask about fewer recordings"
        )
    return plan


def has_parts(plan: RecordingPlan) -> bool:
    """Whether a plan contains its parts. Plans of an earlier release do not, because that release wrote parts
    in separate records."""
    return bool(plan.past) or any(recording.spans for recording in plan.recordings)


def planned_part(plan: RecordingPlan, number: int, home: int) -> RecordingPart:
    """Return a part of a job.

    Args:
        plan: The job's plan.
        number: Number of the part in the job.
        home: The partition in which the job's outcomes are collected.
    """
    job = plan.job
    part = RecordingPart(job=job.id, number=number, expires=plan.expires, home=home)
    if job.HasField("backtest"):
        part.span.number = number
        part.backtest.CopyFrom(plan.past[number])
        part.backtest.job.CopyFrom(job.backtest)
        if job.tenant:  # a job of a tenant may read only this tenant's cameras
            part.backtest.job.watch.tenant = job.tenant
        # Labels are compared later, with the windows of all parts together.
        part.backtest.job.ClearField("labels")
        return part
    first = 0
    for place, recording in enumerate(plan.recordings):
        if number < first + recording.parts:
            part.recording, part.uri, part.mark = place, recording.uri, recording.mark
            part.span.CopyFrom(recording.spans[number - first])
            break
        first += recording.parts
    part.questions.extend(job.questions)
    part.settings.CopyFrom(job.settings)
    return part


def _listed(job: RecordingJob, sources: Sources) -> list[str]:
    """Return the URIs of all recordings of a job, with folders replaced by their files. A URI that cannot be
    listed is included, because opening it later gives the reason.

    Raises:
        JobError: There are too many recordings, or a URI is too long.
    """
    uris: dict[str, None] = {}
    for uri in job.uris:
        try:
            uris.update(dict.fromkeys(sources.listed(uri)))
        except SourceError:
            uris[uri] = None
        if len(uris) > JOB_RECORDINGS:
            raise JobError(
                f"uris: the job has {len(uris)} recordings up to {clean(uri, 200)}; the limit is "
                f"{JOB_RECORDINGS}: ask about fewer"
            )
    if long := next((uri for uri in uris if len(uri) > URI_CHARS), None):
        raise JobError(f"uris: {clean(long, 200)} has {len(long)} characters; the limit is {URI_CHARS}")
    return list(uris)


def _cut(
    uri: str, sources: Sources, part_frames: PartFrames, settings: AnalysisSettings, tenant: str
) -> PlannedRecording:
    """Return the plan of one recording: its parts, or the reason why it cannot be read."""
    try:
        with (
            sources.open(uri, asker=tenant) as source,
            open_recording(source.data, sandbox=True, workers=1) as reader,
        ):
            _, parts = cut_parts(reader, settings, part_frames(settings))
            source.check()
            facts = reader.facts
            planned = PlannedRecording(
                uri=uri,
                seconds=facts.duration_us / 1e6,
                frames=facts.frames,
                parts=len(parts),
                gaps=gap_messages(gaps_in_file(reader, settings)),
                mark=source.mark,
                spans=map(span_of, parts),
            )
            set_begin(planned, facts.begins)
            return planned
    except (CodecError, AnalysisError, SourceError) as error:
        return PlannedRecording(uri=uri, reason=reason_text(str(error)))


def _check_size(parts: int, questions: int) -> None:
    if parts > JOB_PARTS or parts * questions > JOB_ANSWERS:
        raise JobError(
            f"the job has {parts} parts or more and {questions} questions; the limits are {JOB_PARTS} parts "
            f"and {JOB_ANSWERS} answers (parts times questions): ask about a shorter time or fewer recordings"
        )
