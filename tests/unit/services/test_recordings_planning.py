"""Jobs are planned side by side: a silent host holds up its own job, and a cancellation counts once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lookout.errors import BadRecordError
from lookout.recordings.jobs import Sources
from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.worker import Result, StoredCheckpoint
from lookout.services.recordings.__main__ import is_cancelled
from lookout.services.recordings.planning import PlanHandler
from lookout.services.recordings.tenant_threads import (
    THREADS_OF_A_TENANT,
    WAITING_OF_A_TENANT,
    TenantThreads,
)
from lookout.v1.recordings_pb2 import RecordingJob, RecordingOutcome, RecordingPlan
from lookout.wire import RECORDINGS, from_bytes, to_json
from tests.eventually import eventually
from tests.unit.services.recordings_case import FakeTopics
from tests.unit.video.segments.clips import encode


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "clip.mp4"
    path.write_bytes(encode("mp4", frames=60, speed=1))
    return path


class SilentHost:
    """Takes connections and answers none."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._socket.getsockname()[1]
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                self.connections.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        """Let everybody go."""
        if not self._thread.is_alive():
            return
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def host() -> Iterator[SilentHost]:
    host = SilentHost()
    yield host
    host.close()


@dataclass
class Planning:
    """A handler, its records, and what is committed; states live until it is started again."""

    handler: PlanHandler
    topics: FakeTopics = field(default_factory=FakeTopics)
    checkpoints: dict[str, StoredCheckpoint] = field(default_factory=dict)
    states: dict[str, object] = field(default_factory=dict)
    outcomes: dict[str, list[RecordingOutcome]] = field(default_factory=dict)

    def send(self, job: RecordingJob) -> None:
        """One record is read."""
        record = self.topics.add(RECORDINGS.name, job.id, to_json(job))
        self._commit(job.id, self.handler.handle(self._state(job.id), record))

    def erase(self, job: str) -> None:
        """The request is deleted from the topic."""
        record = self.topics.add(RECORDINGS.name, job, b"")
        self._commit(job, self.handler.handle(self._state(job), record))

    def tick(self) -> None:
        """Time passes for all jobs."""
        for job in list(self.checkpoints):
            result = self.handler.tick(self._state(job), time.time())
            if result is not None:
                self._commit(job, result)

    def row(self, job: str) -> bytes:
        """What the service that runs parts sees of a job."""
        return self.checkpoints[job].checkpoint.SerializeToString()

    def planned(self, job: str) -> RecordingPlan:
        """The plan of a job that is still being made."""

        def plan() -> RecordingPlan | None:
            self.tick()
            return self.plan(job)

        made: RecordingPlan = eventually(plan)
        return made

    def plan(self, job: str) -> RecordingPlan | None:
        """The plan of a job."""
        plans = [outcome.plan for outcome in self.outcomes.get(job, ()) if outcome.HasField("plan")]
        assert len(plans) <= 1, "a job has one plan"
        return plans[0] if plans else None

    def _state(self, job: str) -> object:
        if job not in self.states:
            self.states[job] = self.handler.load(job, self.checkpoints.get(job))
        return self.states[job]

    def _commit(self, job: str, result: Result) -> None:
        if result.forget:
            self.checkpoints.pop(job, None)
            self.states.pop(job, None)
        elif result.checkpoint is not None:
            self.checkpoints[job] = StoredCheckpoint(result.checkpoint, 1)
        for output in result.outputs:
            assert output.value is not None
            self.outcomes.setdefault(job, []).append(from_bytes(output.value, RecordingOutcome))


def handler_of(topics: FakeTopics, folder: Path, patience_s: float = 0.1) -> PlanHandler:
    fetcher = UriFetcher(("http",), ("*.example",), ("127.0.0.0/8",), resolver=lambda *_: ["127.0.0.1"])
    return PlanHandler(
        topics,
        folder,
        lambda how: 8,
        Sources([folder], fetcher=fetcher, pause=lambda _: None),
        ranges=lambda since_ms, until_ms: {},
        patience_s=patience_s,
    )


@pytest.fixture
def planning(clip: Path) -> Iterator[Planning]:
    topics = FakeTopics()
    planning = Planning(handler_of(topics, clip.parent), topics)
    yield planning
    planning.handler.close()


def of_host(host: SilentHost, identity: str, tenant: str = "slow", **fields: object) -> RecordingJob:
    uri = f"http://cctv.example:{host.port}/{identity}.mp4"
    return RecordingJob(id=identity, tenant=tenant, uris=[uri], questions=["Is it dark?"], **fields)  # type: ignore[arg-type]


def of_file(clip: Path, identity: str, tenant: str = "quick") -> RecordingJob:
    return RecordingJob(id=identity, tenant=tenant, uris=[clip.as_uri()], questions=["Is it dark?"])


def test_a_silent_host_holds_up_its_own_jobs_alone(planning: Planning, host: SilentHost, clip: Path) -> None:
    many = WAITING_OF_A_TENANT + 20
    for number in range(many):
        planning.send(of_host(host, f"slow-{number}"))
    planning.send(of_file(clip, "quick-1"))
    assert planning.planned("quick-1").parts
    assert all(planning.plan(f"slow-{number}") is None for number in range(many))
    assert len(host.connections) <= THREADS_OF_A_TENANT, "its own jobs take turns"
    assert planning.topics.reads == 0, "those that must wait are not read again"


def test_a_job_of_a_slow_host_is_planned_once_by_whoever_owns_it(
    planning: Planning, host: SilentHost, clip: Path
) -> None:
    """The first owner is gone before its plan; the second reads the request again."""
    planning.send(of_host(host, "job"))
    assert planning.plan("job") is None
    planning.handler.close()
    planning.handler, planning.states = handler_of(planning.topics, clip.parent), {}
    host.close()
    assert "cannot be read now" in planning.planned("job").recordings[0].reason
    planning.tick()
    assert len(planning.outcomes["job"]) == 1


class TestCancelled:
    """A cancellation meets its job at every moment of its planning."""

    def test_before_it_came(self, planning: Planning, host: SilentHost) -> None:
        planning.send(of_host(host, "job", cancelled=True))
        plan = planning.plan("job")
        assert plan is not None
        assert plan.reason == "cancelled before it was planned"
        assert not host.connections

    def test_while_it_is_planned(self, planning: Planning, host: SilentHost) -> None:
        planning.send(of_host(host, "job"))
        planning.send(of_host(host, "job", cancelled=True))
        plan = planning.plan("job")
        assert plan is not None
        assert plan.reason == "cancelled before it was planned"
        planning.tick()
        assert len(planning.outcomes["job"]) == 1, "what was planned meanwhile counts no more"

    def test_after_its_plan(self, planning: Planning, clip: Path) -> None:
        planning.send(of_file(clip, "job"))
        assert planning.planned("job").parts
        cancelled = of_file(clip, "job")
        cancelled.cancelled = True
        for _ in range(2):  # twice is once
            planning.send(cancelled)
        assert [outcome.WhichOneof("what") for outcome in planning.outcomes["job"]] == ["plan", "cancelled"]
        assert is_cancelled(planning.row("job")), "its parts stop"

    @pytest.mark.parametrize("planned", [False, True])
    def test_by_another_tenant_it_goes_on(
        self, planning: Planning, host: SilentHost, clip: Path, planned: bool
    ) -> None:
        job = of_file(clip, "job") if planned else of_host(host, "job")
        planning.send(job)
        foreign = RecordingJob(
            id="job", tenant="other", uris=job.uris, questions=job.questions, cancelled=True
        )
        with pytest.raises(BadRecordError, match="already exists and asks something else"):
            planning.send(foreign)
        if planned:
            assert planning.planned("job").parts
        assert not any(outcome.cancelled for outcome in planning.outcomes.get("job", ()))
        assert not is_cancelled(planning.row("job")), "its parts go on"

    def test_and_erased_it_leaves_nothing(self, planning: Planning, host: SilentHost) -> None:
        planning.send(of_host(host, "job"))
        planning.erase("job")
        planning.tick()
        assert planning.outcomes == {}
        planning.send(of_host(host, "job", cancelled=True))  # as one that never was
        plan = planning.plan("job")
        assert plan is not None
        assert plan.reason == "cancelled before it was planned"


def test_threads_go_to_the_tenant_that_had_one_longest_ago() -> None:
    threads: TenantThreads[None] = TenantThreads()
    held, begun = threading.Event(), []

    def work(tenant: str) -> None:
        begun.append(tenant)
        held.wait()

    futures = [threads.submit(tenant, lambda tenant=tenant: work(tenant)) for tenant in "aaaabbc"]  # type: ignore[misc]
    eventually(lambda: sorted(begun) == ["a", "a", "b", "b", "c"])
    assert not threads.is_idle("a")
    held.set()
    for future in futures:
        assert future is not None
        future.result()
    assert sorted(begun) == ["a", "a", "a", "a", "b", "b", "c"]
    eventually(lambda: threads.is_idle("a"))
    threads.close()
