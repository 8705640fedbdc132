"""Floods of resources against a real API server: the controller keeps its rates and looks after others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from lookout.services.controller.cluster import GROUP, VERSION, WATCH, Resources
from lookout.services.controller.reconcile import Reconciler
from lookout.services.controller.rounds import RoundError
from lookout.v1.watches_pb2 import Watch
from lookout.wire import WATCHES, from_json
from tests.eventually import eventually
from tests.unit.services.controller_case import QUESTION
from tests.unit.services.test_controller_reconcile import MemoryTopics

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
WRITES_S = 20.0


class World:
    """A controller over the API server, and somebody who may write Watches of its namespace."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        config.load_kube_config(str(kubeconfig))
        self._api, self._where = client.CustomObjectsApi(), (GROUP, VERSION, namespace, WATCH.plural)
        self.resources, self.topics, self.now = Resources(namespace), MemoryTopics(), 0.0
        self.reconciler = Reconciler(
            self.resources,
            self.topics.view,
            self.topics.publish,
            lambda *_: {"openIncidents": 0},
            lambda _: {},
            status_writes_s=WRITES_S,
            clock=lambda: self.now,
        )
        self._stopped = threading.Event()
        self._follower = threading.Thread(
            target=self.resources.follow, args=(WATCH, self.reconciler.mark, self._stopped)
        )
        self._follower.start()

    def close(self) -> None:
        """Stop following; the watch ends with the next event."""
        self._stopped.set()
        self.create(f"last-{time.time_ns()}")
        self._follower.join()

    def create(self, name: str, **spec: Any) -> dict[str, Any]:
        """A Watch."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": WATCH.name,
            "metadata": {"name": name},
            "spec": {"question": QUESTION, **spec},
        }
        created: dict[str, Any] = self._api.create_namespaced_custom_object(*self._where, body)
        return created

    def change(self, name: str, body: dict[str, Any]) -> None:
        """Merge into a Watch."""
        self._api.patch_namespaced_custom_object(
            *self._where, name, body, _content_type="application/merge-patch+json"
        )

    def status(self, name: str) -> dict[str, Any]:
        """What the controller says of a Watch."""
        found = self._api.get_namespaced_custom_object(*self._where, name)
        status: dict[str, Any] = found.get("status", {})
        return status

    def write_status(self, name: str, number: int) -> None:
        """Somebody else's opinion of a Watch's status."""
        self._api.patch_namespaced_custom_object_status(
            *self._where,
            name,
            {"status": {"version": number, "conditions": []}},
            _content_type="application/merge-patch+json",
        )

    def turn(self) -> None:
        """One round, a second later. What one resource causes must not end it."""
        self.now += 1.0
        try:
            self.reconciler.work_off()
        except RoundError as error:
            raise AssertionError("a round failed") from error

    def published(self, name: str) -> str | None:
        """The question that the fleet is asked for a Watch."""
        value = self.topics.rows.get(WATCHES.name, {}).get(name)
        return None if value is None else from_json(value, Watch).question


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The API server for custom resources alone, which takes minutes to build the first time."""
    from tests.api_server import NAMESPACE, ApiServer

    with ApiServer(tmp_path_factory.mktemp("api")) as server:
        yield server.kubeconfig, NAMESPACE


@pytest.fixture
def world(server: tuple[Path, str]) -> Iterator[World]:
    world = World(*server)
    yield world
    world.close()


def test_a_watch_that_changes_all_the_time_holds_up_no_other(world: World) -> None:
    """Twenty Watches are changed as fast as the API server takes it; one is made meanwhile."""
    names = [f"busy-{number}" for number in range(20)]
    for name in names:
        world.create(name)
    ends, changes = threading.Event(), [0] * len(names)

    def flood(place: int) -> None:
        for number in count():
            if ends.is_set():
                return
            world.change(names[place], {"spec": {"question": f"{QUESTION[:-1]} {number}?"}})
            changes[place] += 1

    with ThreadPoolExecutor(len(names)) as pool:
        futures = [pool.submit(flood, place) for place in range(len(names))]
        try:
            eventually(lambda: sum(changes) > 200)
            writes = rounds = 0
            original = world.resources.set_status

            def counted(*arguments: Any) -> None:
                nonlocal writes
                writes += 1
                original(*arguments)

            world.reconciler.statuses._write = counted
            world.create("quiet")

            def told() -> bool:
                nonlocal rounds
                rounds += 1
                world.turn()
                return bool(world.status("quiet").get("conditions"))

            eventually(told)
            assert world.published("quiet") == QUESTION
            assert writes <= WRITES_S * (rounds + 1), "statuses are written at their rate, whatever changes"
        finally:
            ends.set()
        for future in futures:
            future.result()

    def caught_up() -> bool:
        world.turn()
        return all(
            world.published(name) == f"{QUESTION[:-1]} {changes[place] - 1}?"
            for place, name in enumerate(names)
        )

    eventually(caught_up)


def test_a_status_that_somebody_else_writes_is_put_right_at_the_controllers_rate(world: World) -> None:
    world.create("disputed")
    world.create("other")
    ends = threading.Event()

    def dispute() -> None:
        for number in count(1):
            if ends.is_set():
                return
            world.write_status("disputed", number)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(dispute)
        try:

            def told() -> bool:
                world.turn()
                return bool(world.status("other").get("conditions"))

            eventually(told)
        finally:
            ends.set()
        future.result()

    def right() -> bool:
        world.reconciler.mark(WATCH, "disputed")
        world.turn()
        conditions = world.status("disputed").get("conditions") or [{}]
        return bool(conditions[0].get("status") == "True")

    eventually(right)


def test_resources_as_large_as_the_api_server_takes_are_refused_in_words(world: World) -> None:
    """Annotations are nobody's business, and the definition bounds what a Watch may say."""
    padding = {"padding": "x" * 200_000}
    for number in range(50):
        world.create(f"large-{number}")
        world.change(f"large-{number}", {"metadata": {"annotations": padding}})
    with pytest.raises(ApiException, match=r"422|413|400"):
        world.create("too-large", question="x" * 3_000_000)
    world.create("small")

    def told() -> bool:
        world.turn()
        return bool(world.status("small").get("conditions"))

    eventually(told)
    assert world.published("small") == QUESTION
    assert "too-large" not in world.resources.names(WATCH)
