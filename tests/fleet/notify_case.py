"""The real notify process over a real Kafka, and HTTP targets that verify signatures and fail on demand."""

from __future__ import annotations

import base64
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Producer
from standardwebhooks import Webhook

from lookout.cli.connect import make_producer
from lookout.local import Service
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Notification
from lookout.wire import ACTIONS, ALERTS, NOTIFICATIONS, stable_id, to_json
from tests.clock import at
from tests.http_target import HttpTarget

READY_S: Final = 120.0
KEY: Final = "whsec_" + base64.b64encode(b"a key of the tests, 24 b").decode()
OLD_KEY: Final = "whsec_" + base64.b64encode(b"the key before, 24 bytes").decode()
BEGIN_MS: Final = 1_780_000_000_000
QUESTION: Final = "Is anyone lying on the ground?"


@dataclass(frozen=True, slots=True)
class Hit:
    """A request that a target took or refused."""

    id: str
    event: dict[str, Any]
    taken: bool

    @property
    def happened(self) -> dict[str, Any]:
        """The act, or the alert."""
        data: dict[str, Any] = self.event["data"]
        act: dict[str, Any] | None = data.get("action")
        return act if act is not None else data["alert"]


@dataclass
class HookServer(HttpTarget):
    """An HTTP target on 127.0.0.1. Every request's signature is verified.

    Attributes:
        answer: Called for each request; gives the status, or 0 to close the connection without an answer.
        key: With which signatures are verified.
        hits: What came, in order.
    """

    answer: Callable[[], int] = lambda: 204
    key: str = KEY
    hits: list[Hit] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.address}/hook"

    def take(self, headers: dict[str, str], body: bytes) -> int:
        try:
            event = Webhook(self.key).verify(body, headers)
        except Exception as error:
            self.faults.append(repr(error))
            return 400
        identity = {name.lower(): value for name, value in headers.items()}["webhook-id"]
        status = self.answer()
        # Without an answer the target may have taken the message: then its copy comes.
        self.hits.append(Hit(identity, event, 200 <= status < 300 or status == 0))
        return status

    def taken(self) -> list[Hit]:
        """What it took, the first copy of each id."""
        first: dict[str, Hit] = {}
        for hit in self.hits:
            if hit.taken:
                first.setdefault(hit.id, hit)
        return list(first.values())


def half_failing(seed: int = 5) -> Callable[[], int]:
    """Half of the answers are none, or say that the message was not taken."""
    draw = random.Random(seed)
    return lambda: draw.choice((200, 204, 500, 0))


class NotifyProcess:
    """One notify process; it can be killed and started again.

    Args:
        folder: Of its secrets and log.
        kafka: Bootstrap servers; the topics must exist.
        redis_url: Redis.
        settings: More settings, without the LOOKOUT_ prefix.
    """

    def __init__(
        self, folder: Path, kafka: str, redis_url: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self.secrets = folder / "secrets"
        self.secrets.mkdir(exist_ok=True)
        (self.secrets / "hook").write_text(KEY)
        own = {
            "mode": "local",
            "bootstrap": kafka,
            "redis_url": redis_url,
            "notify_hosts": "127.0.0.1,localhost",
            "notify_networks": "127.0.0.0/8",
            "notify_secrets": str(self.secrets),
            "retry_max_s": "1",
            **(settings or {}),
        }
        environment = {f"LOOKOUT_{name.upper()}": value for name, value in own.items()}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOOKOUT_")}
        self.service = Service("notify", folder, {**inherited, **environment})

    def start(self) -> Self:
        """Start it, and wait until it is ready."""
        self.service.start()
        deadline = time.monotonic() + READY_S
        while not self.service.ready():
            if self.service.pid is None or time.monotonic() > deadline:
                raise AssertionError(f"{self.service.waiting_for}\n{self.service.tail()}")
            time.sleep(0.1)
        return self


@contextmanager
def notifying(process: NotifyProcess) -> Iterator[NotifyProcess]:
    """A process that runs within the block."""
    try:
        yield process.start()
    finally:
        process.service.stop(5.0)


def webhook(name: str, url: str, **more: Any) -> Notification:
    """A notification with a webhook."""
    return Notification(id=name, webhook={"url": url, "secrets": ["hook"]}, **more)


def configure(kafka: str, *notifications: Notification) -> None:
    """Write notifications."""
    producer = make_producer(kafka)
    for notification in notifications:
        producer.produce(NOTIFICATIONS.name, to_json(notification), notification.id)
    producer.flush()


def alert(incident: int, kind: Alert.Kind, number: int = 0, camera: str = "gate") -> Alert:
    """One event of an incident."""
    name = f"incident-{incident}"
    return Alert(
        id=stable_id(name, kind, number),
        incident=name,
        kind=kind,
        camera=camera,
        watch="fall",
        question=QUESTION,
        peak=0.9,
        start=at(BEGIN_MS + incident * 1000),
        end=at(BEGIN_MS + incident * 1000 + number * 1000 + 500),
    )


def act(incident: int, kind: IncidentAction.Kind, camera: str = "gate") -> IncidentAction:
    """What somebody does with an incident."""
    name = f"incident-{incident}"
    return IncidentAction(
        id=stable_id("act", name, kind),
        incident=name,
        kind=kind,
        actor="ada",
        camera=camera,
        watch="fall",
        question=QUESTION,
        start=at(BEGIN_MS + incident * 1000),
        end=at(BEGIN_MS + incident * 1000 + 500),
    )


def publish(producer: Producer, *events: Alert | IncidentAction) -> None:
    """Write events, in order."""
    for event in events:
        topic = ALERTS if isinstance(event, Alert) else ACTIONS
        producer.produce(topic.name, to_json(event), event.camera)
    producer.flush()
