"""A round of the controller: the certificate, cameras and watches, jobs; none of them waits for another."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.client.rest import ApiException
from urllib3.exceptions import MaxRetryError

from lookout.runtime.observe import Health, Metrics
from lookout.runtime.worker import ServiceSettings
from lookout.services.controller.__main__ import Controller
from lookout.services.controller.cluster import RECORDING
from lookout.services.controller.reconcile import Reconciler
from lookout.services.controller.recordings import JobAnswers, RecordingJobs
from lookout.services.controller.settings import ControllerSettings
from lookout.wire import RECORDINGS, WATCHES
from tests.unit.services.controller_case import watch_resource
from tests.unit.services.test_controller_reconcile import MemoryApi, MemoryTopics
from tests.unit.services.test_controller_recordings import JOB, recording


class BrokenCredential:
    """A fake of a certificate's secret that the API server refuses."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.calls = 0

    def ensure(self) -> str | None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return None


class World:
    """One watch and one recording, a controller whose pauses are over at once, and what failed."""

    def __init__(self) -> None:
        self.api = MemoryApi([], [watch_resource()])
        self.api.resources[RECORDING] = [recording()]
        self.topics = MemoryTopics()
        self.refused: set[str] = set()
        self.health = Health(stall_s=1e9)
        settings = ControllerSettings(mode="local", instance="one")
        self.controller = Controller(settings, self.health, Metrics("controller"))
        self.controller.stop()
        self.reconciler = Reconciler(self.api, self.topics.view, self.publish, lambda *_: {}, lambda _: {})
        answers = JobAnswers(ServiceSettings(mode="local", instance="one"), lambda _: None)
        self.jobs = RecordingJobs(
            self.api, lambda _: None, self.publish, answers.status, self.reconciler.statuses
        )

    def publish(self, topic: str, key: str, value: bytes | None) -> None:
        if topic in self.refused:
            raise OSError(f"{topic} is away")
        self.topics.publish(topic, key, value)

    def round(self, credential: Any = None) -> None:
        self.controller._round(self.reconciler, self.jobs, credential, None)

    @property
    def reason(self) -> str:
        """Why the controller is not ready."""
        return self.health.blockers().get("reconcile", "")


@pytest.mark.parametrize("error", [ApiException(403), MaxRetryError(None, "/", None)])  # type: ignore[arg-type]
def test_a_certificate_that_fails_keeps_no_watch_and_no_job_from_its_topic(error: Exception) -> None:
    world, credential = World(), BrokenCredential(error)
    world.round(credential)
    assert list(world.topics.rows[WATCHES.name]) == ["fall"]
    assert list(world.topics.rows[RECORDINGS.name]) == [JOB]
    assert world.reason.startswith("certificate: ")
    credential.error = None
    world.round(credential)  # at once, not after the next resync
    world.round(credential)
    assert (credential.calls, world.reason) == (2, "")


def test_a_watch_that_fails_keeps_no_job_from_its_topic() -> None:
    world = World()
    world.refused = {WATCHES.name}
    world.round()
    assert list(world.topics.rows[RECORDINGS.name]) == [JOB]
    assert "watches.v1 is away" in world.reason
    world.refused = set()
    world.round()
    assert list(world.topics.rows[WATCHES.name]) == ["fall"]
    assert world.reason == ""
