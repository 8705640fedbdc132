"""Clients whose user and password change in files; that brokers take them is seen in tests/fleet."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from lookout.disk import replace_file
from lookout.errors import StartupError
from lookout.runtime import kafka_clients
from lookout.runtime.kafka_clients import Consumer, FilePassword, Producer, error_text
from tests.eventually import eventually


class Told(Producer):
    """A client that notes what it is told."""

    def __init__(self, options: dict[str, object]) -> None:
        super().__init__(options, logger=logging.getLogger("quiet"))
        self.logins: list[tuple[str, str]] = []

    def take_login(self, user: str, password: str) -> None:
        super().take_login(user, password)
        self.logins.append((user, password))


class Refusing(Told):
    """A client whose library takes no other login."""

    def take_login(self, user: str, password: str) -> None:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "no other login"))


def options(file: Path) -> dict[str, object]:
    """Of a client of a broker that is not there."""

    def login() -> tuple[str, str]:
        try:
            return "lookout", file.read_text()
        except OSError as error:
            raise StartupError(f"{file}: {error.strerror}") from None

    return {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "lookout",
        "sasl.password": FilePassword(file.read_text(), login),
    }


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kafka_clients, "READ_EVERY_S", 0.01)
    monkeypatch.setattr(kafka_clients, "_logins", kafka_clients._Logins())
    path = tmp_path / "password"
    path.write_text("one")
    return path


def test_a_client_is_told_once_and_a_file_that_is_away_is_waited_for(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = Told(options(file))
    file.unlink()
    eventually(lambda: "No such file" in caplog.text)
    time.sleep(0.1)
    assert caplog.text.count("cannot read Kafka") == 1
    replace_file(file, b"two")
    eventually(lambda: client.logins == [("lookout", "two")])
    time.sleep(0.1)
    assert client.logins == [("lookout", "two")]


def test_a_client_that_takes_no_other_login_keeps_it_from_nobody(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refusing, client = Refusing(options(file)), Told(options(file))
    replace_file(file, b"two")
    eventually(lambda: client.logins == [("lookout", "two")])
    eventually(lambda: "no other login" in caplog.text)
    assert refusing.logins == []
    replace_file(file, b"three")
    eventually(lambda: client.logins[-1] == ("lookout", "three"))


def test_clients_that_are_closed_or_gone_are_told_nothing(file: Path) -> None:
    closed, left = Told(options(file)), Told(options(file))
    gone = weakref.ref(Told(options(file)))
    closed.close()
    replace_file(file, b"two")
    eventually(lambda: left.logins == [("lookout", "two")])
    gc.collect()
    assert closed.logins == []
    eventually(lambda: gone() is None)


def test_a_consumer_takes_it_with_the_next_call_of_its_thread(file: Path) -> None:
    consumer = Consumer({**options(file), "group.id": "a"}, logger=logging.getLogger("quiet"))
    replace_file(file, b"two")
    eventually(lambda: consumer.login == ("lookout", "two"))
    assert consumer.poll(0) is None
    assert consumer.login is None
    with consumer:
        pass
    with pytest.raises(RuntimeError):
        consumer.poll(0)


def test_an_error_that_breaks_off_is_told_with_its_meaning() -> None:
    """librdkafka ends some texts after the name of the request."""
    code = KafkaError.COORDINATOR_NOT_AVAILABLE
    said = error_text(KafkaError(code, "ConsumerGroupDescribe: "))
    assert said == "ConsumerGroupDescribe: Broker: Coordinator not available"
    assert error_text(KafkaError(code, "it moves")) == "it moves"
    assert error_text(KafkaError(code)) == "Broker: Coordinator not available"
