"""Recording resources: each becomes a job about recordings, and its status shows the job's progress and
answers.

`spec` never changes, so a resource is exactly one job. The job's id is the resource's name plus the start of
its uid, because a job that ended keeps its id. Deleting the resource cancels the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from lookout.runtime.observe import logs
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.topic_reader import BEGINNING
from lookout.services.controller.cluster import RECORDING, Kind
from lookout.services.controller.convert import Condition
from lookout.services.controller.following import Follower
from lookout.services.controller.reconcile import Publish
from lookout.services.controller.rounds import Resource, ResourceApi, Rounds, is_held
from lookout.services.controller.statuses import StatusQueue
from lookout.text import clean
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob, RecordingSettings
from lookout.wire import ANSWERS, RECORDINGS, WireError, from_json, key_text, to_json
from lookout.wire.begins import set_begin
from lookout.wire.ranges import RangeError, check_ranges

#: maximum number of recordings whose answers the status shows; etcd limits a Kubernetes object to 1.5 MB
SHOWN: Final = 20
_UID: Final = 8
_NAME: Final = 80  # maximum length of the resource's name; with it, a job's id has at most 100 bytes
_STATES: Final = {
    RecordingAnswers.STATE_RUNNING: "running",
    RecordingAnswers.STATE_DONE: "done",
    RecordingAnswers.STATE_REFUSED: "refused",
    RecordingAnswers.STATE_CANCELLED: "cancelled",
    RecordingAnswers.STATE_EXPIRED: "expired",
}


def job_id(resource: Resource) -> str:
    """Return the id of a resource's job."""
    metadata = resource["metadata"]
    return f"{metadata['name'][:_NAME]}-{metadata['uid'][:_UID]}"


def job_of(resource: Resource) -> RecordingJob:
    """Return the job that a resource requests. What the schema cannot check is checked when the job is
    planned.

    Raises:
        RangeError: A number is outside its range; the text names the field.
    """
    spec = resource["spec"]
    settings = RecordingSettings(
        fps=float(spec.get("fps", 0)),
        start_s=float(spec.get("startSeconds", 0)),
        part_frames=int(spec.get("partFrames", 0)),
        describe=int(spec.get("describeTokens", 0)),
        prune=bool(spec.get("prune", False)),
        policy=spec.get("policy", ""),
    )
    if "endSeconds" in spec:
        settings.end_s = float(spec["endSeconds"])
    if "begins" in spec:
        set_begin(settings, _moment(spec["begins"]))
    job = RecordingJob(
        id=job_id(resource),
        uris=spec.get("recordings", ()),
        questions=spec.get("questions", ()),
        settings=settings,
        expires_s=float(spec.get("expiresSeconds", 0)),
        tenant=spec.get("tenant", ""),
    )
    job.requested.FromDatetime(datetime.fromisoformat(resource["metadata"]["creationTimestamp"]))
    check_ranges(job)
    return job


def _moment(text: str) -> datetime:
    """Parse a time as the schema allows it: with an offset, upper- or lower-case letters, and seconds up to
    60.

    Raises:
        RangeError: The text is not a time.
    """
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError:
        raise RangeError(f"begins: {clean(text, 60)} is not a valid time") from None


def status_of(answers: RecordingAnswers) -> dict[str, Any]:
    """Return the status of a Recording resource, without conditions, from its job's answers."""
    state = _STATES.get(answers.state, "running")
    # If none of a job's recordings can be read, the job itself has no reason, so take a recording's.
    reasons = [answers.reason, *(recording.reason for recording in answers.recordings)]
    reason = next(filter(None, reasons), "") if state == "refused" else answers.reason
    return {
        "state": state,
        "parts": answers.parts,
        "done": answers.done,
        "reason": clean(reason, 500),
        "results": [
            {
                "recording": clean(recording.uri, 500),
                "reason": clean(recording.reason, 500),
                "answers": [
                    {
                        "question": clean(answer.question, 200),
                        "pYes": round(answer.p_yes, 4),
                        "startSeconds": round(answer.start_s, 3),
                        "endSeconds": round(answer.end_s, 3),
                    }
                    for answer in recording.answers
                ],
            }
            for recording in answers.recordings[:SHOWN]
        ],
    }


class JobAnswers(Follower):
    """Follows answers.v1 from its beginning on a separate thread, and keeps what jobs' statuses need.

    Args:
        settings: How Kafka is reached.
        changed: Called on that thread with a job's id whenever the job's answers change.
    """

    def __init__(self, settings: ServiceSettings, changed: Callable[[str], object]) -> None:
        super().__init__(
            settings,
            "answers",
            {ANSWERS.name: BEGINNING},
            lambda message: self.take(key_text(message.key()), message.value()),
        )
        self._changed = changed
        self._statuses: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def status(self, job: str) -> dict[str, Any] | None:
        """Return a job's status; None if it has no answers yet."""
        with self._lock:
            return self._statuses.get(job)

    def take(self, key: str, value: bytes | None) -> None:
        """Take a record of answers.v1."""
        try:
            status = status_of(from_json(value, RecordingAnswers)) if value else None
        except WireError:
            return
        with self._lock:
            if status is None:
                self._statuses.pop(key, None)
            else:
                self._statuses[key] = status
        self._changed(key)


class RecordingJobs(Rounds):
    """Creates, cancels and follows the jobs of Recording resources.

    Args:
        api: The Kubernetes API.
        request: Returns a job's newest record in recordings.v1; None if there is none.
        publish: As for `Reconciler`.
        answers: Returns a job's status; None if it has no answers yet.
        statuses: The queue of statuses, shared with cameras and watches.
        round_s: Longest time of one round, in seconds.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        api: ResourceApi,
        request: Callable[[str], bytes | None],
        publish: Publish,
        answers: Callable[[str], Mapping[str, Any] | None],
        statuses: StatusQueue,
        *,
        round_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request, self._publish, self._answers = request, publish, answers
        super().__init__(api, (RECORDING,), statuses, round_s=round_s, clock=clock)
        self._names: dict[str, str] = {}  # resources' names by job
        self._log = logs.get("recordings")

    def mark_job(self, job: str) -> None:
        """Have the next round update a job's resource. Callable from any thread."""
        if (name := self._names.get(job)) is not None:
            self.mark(RECORDING, name)

    def update(self, kind: Kind, resource: Resource) -> None:
        """See `Rounds.update`."""
        metadata, job = resource["metadata"], job_id(resource)
        name = metadata["name"]
        if metadata.get("deletionTimestamp"):
            if is_held(resource):
                self.remove(RECORDING, name)
                self._cancel(job)
                self.let_go(RECORDING, resource)
            self.statuses.forget((RECORDING.name, name))
            return
        if not self.hold(RECORDING, resource):
            return
        if job not in self._names:
            self.remove(RECORDING, name)  # an earlier resource of this name whose deletion went unnoticed
            self._names[job] = name
        try:
            wanted = job_of(resource)
        except (ValueError, TypeError) as error:
            why = clean(error, 1000)
            invalid = [Condition("Accepted", False, "Invalid", why)]
            self.tell(RECORDING, resource, {"conditions": invalid})
            return
        answers = self._answers(job)
        if answers is None and self._request(job) is None:
            self._publish(RECORDINGS.name, job, to_json(wanted))
            self._log.info("published", name=name, job=job)
        status = {"job": job, **(answers or {"state": "waiting", "parts": 0, "done": 0})}
        over = status["state"] not in ("waiting", "running")
        conditions = [
            Condition("Accepted", True, "Published"),
            Condition("Finished", over, status["state"].capitalize(), status.get("reason", "")),
        ]
        self.tell(RECORDING, resource, {**status, "conditions": conditions})

    def remove(self, kind: Kind, name: str) -> None:
        """Cancel a deleted resource's jobs."""
        for job in [job for job, known in self._names.items() if known == name]:
            self._cancel(job)
            del self._names[job]

    def _cancel(self, job: str) -> None:
        """Request a job's cancellation, unless that was done already."""
        value = self._request(job)
        if value is None:
            return
        try:
            request = from_json(value, RecordingJob)
        except WireError:
            return
        if not request.cancelled:
            request.cancelled = True
            self._publish(RECORDINGS.name, job, to_json(request))
            self._log.info("cancelled", job=job)
