"""The user and password of Kafka change while cameras play: no outcome is lost, no service starts again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition
from confluent_kafka.admin import (
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from lookout.local import Fleet, KafkaServer, free_ports
from lookout.models import TINY
from lookout.runtime.kafka_clients import AdminClient, Consumer, Producer
from lookout.runtime.net import KafkaSecurity
from tests.eventually import eventually
from tests.fleet.faults import outcomes, run

pytestmark = pytest.mark.fleet

#: the broker asks every connection for its password again after so long
REAUTH_S = 2.0
CAMERAS, SECONDS = 2, 60


@dataclass(frozen=True)
class Broker:
    """A Kafka that asks for SCRAM at one listener and for nothing at the other.

    Attributes:
        open: Address without a password.
        checked: Address with one.
        folder: With the files `username` and `password`, as a mounted secret has them.
    """

    open: str
    checked: str
    folder: Path

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a client, without the LOOKOUT_ prefix."""
        return {
            "kafka_protocol": "sasl_plaintext",
            "kafka_username_file": str(self.folder / "username"),
            "kafka_password_file": str(self.folder / "password"),
        }

    def options(self) -> dict[str, object]:
        """librdkafka options of a client."""
        security = KafkaSecurity(**self.settings).kafka_security()  # type: ignore[arg-type]
        return {
            "bootstrap.servers": self.checked,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,
            **security,
        }

    def tell(self, user: str, password: str) -> None:
        """The broker learns a password; the one that the user had before is wrong from now on."""
        details = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        self._alter(UserScramCredentialUpsertion(user, details, password.encode()))

    def forget(self, user: str) -> None:
        """The broker forgets a user."""
        self._alter(UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512))

    def _alter(self, change: UserScramCredentialUpsertion | UserScramCredentialDeletion) -> None:
        admin = AdminClient({"bootstrap.servers": self.open})
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(60)

    def write(self, user: str, password: str) -> None:
        """The files get a new content."""
        (self.folder / "username").write_text(user)
        (self.folder / "password").write_text(password + "\n")

    def refuses(self, user: str, password: str) -> bool:
        """Whether a new client cannot log in."""
        options = {**self.options(), "sasl.username": user, "sasl.password": password}
        try:
            AdminClient(options).list_topics(timeout=5.0)
        except KafkaException:
            return True
        return False


@pytest.fixture
def broker(tmp_path: Path, quick_java: None) -> Iterator[Broker]:
    (port,) = free_ports(1)
    listener = "listener.name.checked"
    properties = {
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CHECKED:SASL_PLAINTEXT",
        f"{listener}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        f"{listener}.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        f"{listener}.connections.max.reauth.ms": str(round(REAUTH_S * 1000)),
    }
    (tmp_path / "secret").mkdir()
    with KafkaServer(properties=properties, listeners={"CHECKED": port}) as server:
        broker = Broker(server.bootstrap, f"127.0.0.1:{port}", tmp_path / "secret")
        broker.tell("first", "one")
        broker.write("first", "one")
        yield broker


def answers(client: Producer | Consumer | AdminClient) -> bool:
    """Whether the broker lets it in."""
    try:
        return bool(client.list_topics(timeout=5.0).brokers)
    except KafkaException:
        return False


@pytest.mark.long
def test_every_client_follows_the_files(broker: Broker) -> None:
    """Each of them was made with a password that nobody knows any more."""
    producer, admin = Producer(broker.options()), AdminClient(broker.options())
    consumer = Consumer({**broker.options(), "group.id": "group"})
    clients = (producer, consumer, admin)
    eventually(lambda: all(map(answers, clients)))
    broker.tell("second", "two")
    broker.write("second", "two")
    broker.forget("first")
    eventually(lambda: broker.refuses("first", "one"))
    time.sleep(2 * REAUTH_S)  # every connection has to log in again, which only `second` can
    eventually(lambda: all(map(answers, clients)))
    consumer.close()


@pytest.mark.long
def test_a_consumer_whose_thread_polls_all_the_time_follows_them(broker: Broker) -> None:
    """The files are late: the broker refused the password before."""
    topic = "rows"
    admin = AdminClient({"bootstrap.servers": broker.open})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": broker.open})
    consumer = Consumer({**broker.options(), "group.id": "group"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[bytes] = []
    stop = threading.Event()

    def follow() -> None:
        while not stop.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                values.append(message.value())

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        producer.produce(topic, b"before")
        eventually(lambda: values == [b"before"])
        broker.tell("first", "changed")
        time.sleep(3 * REAUTH_S)
        broker.write("first", "changed")
        producer.produce(topic, b"after")
        assert producer.flush(30.0) == 0
        eventually(lambda: values == [b"before", b"after"])
    finally:
        stop.set()
        thread.join()
        consumer.close()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_outcome_is_lost_and_no_service_starts_again(broker: Broker, tmp_path: Path) -> None:
    """First the user's password changes before the files do, as a mounted secret is late; then the user does,
    and the one before is removed."""
    plan = run.Plan(CAMERAS, SECONDS)
    settings = {
        "model_dir": str(TINY),
        "stride_s": str(run.STRIDE_S),
        "window_s": str(run.WINDOW_S),
        "kafka_protocol": "sasl_plaintext",
        **broker.settings,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in broker.settings.items():  # with which the fleet makes topics
            patch.setenv(f"LOOKOUT_{name.upper()}", value)
        fleet = Fleet(
            tmp_path / "fleet",
            kafka=broker.checked,
            settings=settings,
            stage_settings={"decode": {"silence_s": "86400"}},
        )
        with fleet:
            run.watch(broker.open)
            pids = fleet.pids()
            publisher = run.Publisher(broker.open, run.film(plan).segments, pace=1.0)
            publisher.start()
            eventually(lambda: outcomes.read(broker.open).outcomes > 4, every=0.5)
            broker.tell("first", "changed")
            time.sleep(3 * REAUTH_S)
            broker.write("first", "changed")
            count = outcomes.read(broker.open).outcomes
            eventually(lambda: outcomes.read(broker.open).outcomes > count + 8, every=0.5)
            broker.tell("second", "two")
            broker.write("second", "two")
            time.sleep(3 * REAUTH_S)
            broker.forget("first")
            eventually(
                lambda: publisher.done and outcomes.read(broker.open).outcomes >= plan.expected, every=0.5
            )
            assert broker.refuses("first", "changed")
            assert fleet.pids() == pids
            assert fleet.supervise() == []
    committed = outcomes.read(broker.open)
    assert committed.outcomes == plan.expected
    assert all(len(verdicts) == 1 for verdicts in committed.verdicts.values())
