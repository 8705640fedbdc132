"""Recording resources become jobs, and their status tells what came of them."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.rest import ApiException

from lookout.pruning import POLICIES
from lookout.runtime.worker import ServiceSettings
from lookout.services.controller.cluster import FINALIZER, GROUP, RECORDING, VERSION, Resources
from lookout.services.controller.recordings import SHOWN, JobAnswers, RecordingJobs, job_id, job_of
from lookout.services.controller.rounds import ResourceApi, RoundError
from lookout.services.controller.statuses import StatusQueue
from lookout.v1.recordings_pb2 import (
    RecordingAnswer,
    RecordingAnswers,
    RecordingJob,
    RecordingQuestionAnswer,
)
from lookout.wire import RECORDINGS, from_json, to_json
from lookout.wire.ranges import RangeError
from tests.eventually import eventually
from tests.unit.services.controller_case import CREATED
from tests.unit.services.test_controller_reconcile import MemoryApi, MemoryTopics, OutdatedApi

JOB = "monday-0123abcd"
CRD = Path(__file__).parents[3] / "charts/lookout/crds/recordings.yaml"
SPEC = {"recordings": ["file:///recordings/yard"], "questions": ["Is a person in view?"], "endSeconds": 60}


def recording(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "monday", "uid": "0123abcd-ffff", "generation": 1, "creationTimestamp": CREATED}
    return {"metadata": metadata, "spec": {**SPEC, **spec}}


class World:
    """One resource, fake API (unless one is given) and topics, and answers as the topic brings them."""

    def __init__(
        self, api: ResourceApi | None = None, memory: type[MemoryApi] = MemoryApi, **spec: Any
    ) -> None:
        self.now = 0.0
        self.resource = recording(**spec)
        self.api = memory([], [])
        self.api.resources[RECORDING] = [self.resource]
        self.topics = MemoryTopics()
        self.answers = JobAnswers(ServiceSettings(mode="local", instance="one"), self.told)
        api = api or self.api
        self.jobs = RecordingJobs(
            api,
            lambda job: self.topics.rows.get(RECORDINGS.name, {}).get(job),
            self.topics.publish,
            self.answers.status,
            StatusQueue(api.set_status, writes_s=20, resource_s=10, clock=lambda: self.now),
            round_s=2,
            clock=lambda: self.now,
        )
        self.jobs.reconcile()

    def told(self, job: str) -> None:
        """Something new is known of a job."""
        self.jobs.mark_job(job)

    @property
    def request(self) -> RecordingJob:
        """The job in the topic."""
        return from_json(self.topics.rows[RECORDINGS.name][JOB], RecordingJob)

    @property
    def status(self) -> dict[str, Any]:
        """The resource's."""
        status: dict[str, Any] = self.resource["status"]
        return status

    def condition(self, name: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        (found,) = [row for row in self.status["conditions"] if row["type"] == name]
        return found["status"], found["reason"]

    def answer(self, state: RecordingAnswers.State, done: int = 0, count: int = 0, **fields: Any) -> None:
        """A record of answers.v1."""
        question = RecordingQuestionAnswer(question=SPEC["questions"][0], p_yes=0.93, start_s=10, end_s=20)
        rows = [RecordingAnswer(uri=f"file:///{n}.mp4", answers=[question]) for n in range(count)]
        answers = RecordingAnswers(id=JOB, state=state, parts=4, done=done, recordings=rows, **fields)
        self.now += 1.5  # one resource's status is written once a second at most
        self.answers.take(JOB, to_json(answers))
        self.jobs.work_off()


def test_a_resource_becomes_one_job_and_its_status_follows_it() -> None:
    world = World()
    request = world.request
    assert (list(request.uris), list(request.questions)) == (SPEC["recordings"], SPEC["questions"])
    assert (request.settings.end_s, request.cancelled) == (60, False)
    assert FINALIZER in world.resource["metadata"]["finalizers"]
    assert (world.status["job"], world.status["state"]) == (JOB, "waiting")
    assert world.condition("Accepted") == ("True", "Published")
    assert world.condition("Finished") == ("False", "Waiting")
    world.topics.publish(RECORDINGS.name, JOB, b"{}")
    world.jobs.reconcile()  # it is there: another record would be another request
    assert world.topics.rows[RECORDINGS.name][JOB] == b"{}"
    world.answer(RecordingAnswers.STATE_RUNNING, 1)
    assert (world.status["state"], world.status["done"], world.status["parts"]) == ("running", 1, 4)
    world.answer(RecordingAnswers.STATE_DONE, 4, SHOWN + 5)
    assert world.condition("Finished") == ("True", "Done")
    assert len(world.status["results"]) == SHOWN
    assert world.status["results"][0]["answers"] == [
        {"question": "Is a person in view?", "pYes": 0.93, "startSeconds": 10.0, "endSeconds": 20.0}
    ]


def test_a_resource_says_when_its_recording_begins() -> None:
    settings = job_of(recording(begins="2026-05-01T13:30:00+02:00")).settings
    assert (settings.begins.ToJsonString(), settings.begins_offset_min) == ("2026-05-01T11:30:00Z", 120)
    assert job_of(recording(begins="2026-05-01t11:30:00z")).settings.begins == settings.begins
    assert not job_of(recording()).settings.HasField("begins")
    with pytest.raises(RangeError, match="begins: 2026-06-30T23:59:60Z is not a valid time"):
        job_of(recording(begins="2026-06-30T23:59:60Z"))


def test_a_job_is_of_the_resource_s_tenant() -> None:
    assert World(tenant="acme").request.tenant == "acme"
    assert World().request.tenant == ""


def test_a_resource_names_any_policy_that_a_recording_can_follow() -> None:
    assert World(policy="default").request.settings.policy == "default"
    crd = yaml.safe_load(CRD.read_text())
    (version,) = crd["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    names = [name for name, line in POLICIES.items() if line.policy.gathers is None]
    assert spec["policy"]["enum"] == names


def test_progress_is_written_now_and_then_and_an_end_at_once() -> None:
    world = World()
    world.answer(RecordingAnswers.STATE_RUNNING, 1)
    writes = world.api.status_writes
    for done in (2, 3):
        world.answer(RecordingAnswers.STATE_RUNNING, done)
    assert world.api.status_writes == writes
    world.now += 11
    world.jobs.work_off()
    assert (world.api.status_writes, world.status["done"]) == (writes + 1, 3)
    world.answer(RecordingAnswers.STATE_EXPIRED, 3, reason="too late")
    assert (world.api.status_writes, world.status["reason"]) == (writes + 2, "too late")


def test_a_job_nothing_of_which_can_be_read_says_why() -> None:
    world = World()
    unread = RecordingAnswer(uri="file:///gone.mp4", reason="no such file")
    state = RecordingAnswers.STATE_REFUSED
    world.answers.take(JOB, to_json(RecordingAnswers(id=JOB, state=state, recordings=[unread])))
    world.now += 1.5
    world.jobs.work_off()
    assert world.condition("Finished") == ("True", "Refused")
    assert [row["message"] for row in world.status["conditions"] if row["type"] == "Finished"] == [
        "no such file"
    ]


def test_deleting_a_resource_cancels_its_job_and_lets_it_go() -> None:
    world = World()
    world.resource["metadata"]["deletionTimestamp"] = CREATED
    world.jobs.reconcile()
    assert world.request.cancelled
    assert world.resource["metadata"]["finalizers"] == []
    before = copy.deepcopy(world.topics.rows)
    world.jobs.reconcile()
    assert world.topics.rows == before


def test_a_resource_that_is_deleted_while_it_is_added_leaves_no_job() -> None:
    world = World(memory=OutdatedApi)
    assert world.topics.rows == {}
    world.api.outdated = False  # type: ignore[attr-defined]
    world.jobs.work_off()
    assert world.request.id == JOB


def test_a_resource_that_went_without_a_word_takes_its_job_along() -> None:
    world = World()
    world.api.resources[RECORDING] = []
    world.jobs.mark(RECORDING, "monday")
    world.jobs.work_off()
    assert world.request.cancelled


def test_a_resource_made_again_cancels_the_job_of_one_that_went_without_a_word() -> None:
    world = World()
    again = recording()
    again["metadata"]["uid"] = "456789ab-ffff"
    world.api.resources[RECORDING] = [again]
    world.jobs.mark(RECORDING, "monday")
    world.jobs.work_off()
    assert world.request.cancelled
    assert set(world.topics.rows[RECORDINGS.name]) == {JOB, job_id(again)}


def test_what_cannot_be_followed_is_told_and_nothing_is_published() -> None:
    world = World(fps=1e9)
    assert world.condition("Accepted") == ("False", "Invalid")
    assert "fps" in world.status["conditions"][0]["message"]
    assert world.topics.rows == {}


def test_a_failure_is_told_and_tried_again() -> None:
    world = World()
    real, world.jobs._publish = world.jobs._publish, lambda *_: (_ for _ in ()).throw(OSError("away"))
    world.topics.rows.clear()
    world.now += 1
    with pytest.raises(RoundError, match="Recording monday: OSError: away"):
        world.jobs.reconcile()
    assert world.condition("Accepted") == ("False", "Failed")
    assert world.condition("Finished") == ("False", "Waiting")
    world.jobs._publish = real
    world.now += 1
    world.jobs.work_off()
    assert world.request.id == JOB
    assert world.condition("Accepted") == ("True", "Published")


def test_a_recording_that_fails_stops_no_other_and_a_long_round_goes_on_in_the_next() -> None:
    world = World()
    names = [f"job{number}" for number in range(4)]
    others = [recording() for _ in names]
    for name, resource in zip(names, others, strict=True):
        resource["metadata"]["name"] = name
    world.api.resources[RECORDING] = others

    def publish(topic: str, key: str, value: bytes | None) -> None:
        world.now += 1
        if key.startswith("job0"):
            raise OSError("away")
        world.topics.publish(topic, key, value)

    world.jobs._publish = publish
    with pytest.raises(RoundError, match="2 failures, the first: Recording job0"):
        world.jobs.reconcile()
    assert {key.split("-")[0] for key in world.topics.rows[RECORDINGS.name]} == {"monday", "job1"}
    with pytest.raises(RoundError):
        world.jobs.work_off()
    assert {key.split("-")[0] for key in world.topics.rows[RECORDINGS.name]} >= {"job1", "job2", "job3"}


def test_statuses_of_recordings_keep_to_the_rate_of_all() -> None:
    world = World()
    world.now += 100
    many = [recording() for _ in range(50)]
    for number, resource in enumerate(many):
        resource["metadata"]["name"] = f"job{number}"
    world.api.resources[RECORDING] = many
    before = world.api.status_writes
    world.jobs.reconcile()
    assert world.api.status_writes - before == 20
    world.now += 1
    world.jobs.work_off()
    assert world.api.status_writes - before == 40


def test_bytes_that_are_no_answers_are_left_out() -> None:
    world = World()
    world.answers.take(JOB, b"\xff")
    assert world.answers.status(JOB) is None
    world.answer(RecordingAnswers.STATE_RUNNING, 2)
    world.answers.take(JOB, None)
    assert world.answers.status(JOB) is None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_real_api_server_holds_the_schema_and_the_status(tmp_path: Path) -> None:
    """The API server for custom resources alone, which takes minutes to build the first time."""
    from tests.api_server import NAMESPACE, ApiServer

    with ApiServer(tmp_path) as server:
        config.load_kube_config(str(server.kubeconfig))
        api = client.CustomObjectsApi()
        where = (GROUP, VERSION, NAMESPACE, RECORDING.plural)
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Recording", "metadata": {"name": "monday"}}
        for wrong in ({"questions": []}, {"startSeconds": 60}, {"fps": 0}, {"recordings": [""]}):
            with pytest.raises(ApiException, match="422"):
                api.create_namespaced_custom_object(*where, {**body, "spec": {**SPEC, **wrong}})
        eventually(lambda: api.list_namespaced_custom_object(*where)["items"] == [])
        api.create_namespaced_custom_object(*where, {**body, "spec": SPEC})
        with pytest.raises(ApiException, match="asked once"):
            api.patch_namespaced_custom_object(*where, "monday", {"spec": {"fps": 4}})
        resources = Resources(NAMESPACE)
        world = World(resources)
        stopped = threading.Event()
        follower = threading.Thread(target=resources.follow, args=(RECORDING, world.jobs.mark, stopped))
        follower.start()
        try:
            eventually(lambda: resources.get(RECORDING, "monday") is not None)
            world.jobs.work_off()
            job = job_id(api.get_namespaced_custom_object(*where, "monday"))
            answers = RecordingAnswers(id=job, state=RecordingAnswers.STATE_DONE, parts=1, done=1)
            world.answers.take(job, to_json(answers))
            world.now += 60
            world.jobs.work_off()
            status = api.get_namespaced_custom_object(*where, "monday")["status"]
            assert (status["state"], status["job"], status["parts"]) == ("done", job, 1)
            api.delete_namespaced_custom_object(*where, "monday")

            def gone() -> bool:
                world.jobs.work_off()
                return not api.list_namespaced_custom_object(*where)["items"]

            eventually(gone)
            assert from_json(world.topics.rows[RECORDINGS.name][job], RecordingJob).cancelled
        finally:
            stopped.set()
            # Its watch ends with the next event.
            other = {**body, "metadata": {"name": "tuesday"}, "spec": SPEC}
            api.create_namespaced_custom_object(*where, other)
            follower.join()
