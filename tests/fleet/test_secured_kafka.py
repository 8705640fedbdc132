"""A Kafka that asks for TLS and a password, as services and commands meet it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from lookout.cli.connect import CommittedReader, check_reachable, send_and_confirm
from lookout.cli.options import CliError, Position
from lookout.errors import StartupError
from lookout.local import KafkaServer, create_topics, free_ports
from lookout.services.controller import topics
from lookout.wire import SEGMENTS, WATCHES
from lookout.worker import ServiceSettings, load_settings
from lookout.worker.startup import check_kafka
from tests.certificates import Authority

pytestmark = pytest.mark.fleet

USER, PASSWORD = "lookout", "a-long-password"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Settings that reach a broker over TLS with SCRAM, without the LOOKOUT_ prefix."""
    folder = tmp_path_factory.mktemp("tls")
    files = Authority().write(folder)
    store = folder / "broker.pem"
    store.write_bytes(files["grpc_key_file"].read_bytes() + files["grpc_cert_file"].read_bytes())
    (port,) = free_ports(1)
    properties = {
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL",
        "listener.name.secured.ssl.keystore.type": "PEM",
        "listener.name.secured.ssl.keystore.location": str(store),
        "listener.name.secured.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secured.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    with KafkaServer(properties=properties, listeners={"SECURED": port}) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        user = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
        )
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result(60)
        create_topics(server.bootstrap, 2)
        (folder / "password").write_text(PASSWORD + "\n")
        yield {
            "bootstrap": f"127.0.0.1:{port}",
            "kafka_protocol": "sasl_ssl",
            "kafka_username": USER,
            "kafka_password_file": str(folder / "password"),
            "kafka_ca_file": str(files["grpc_ca_file"]),
        }


def settings(values: dict[str, str], **more: str) -> ServiceSettings:
    named = {"mode": "local", "start_timeout_s": "3", **values, **more}
    return load_settings(ServiceSettings, {f"LOOKOUT_{key.upper()}": value for key, value in named.items()})


def test_a_service_reaches_it_with_a_password_only(secured: dict[str, str], tmp_path: Path) -> None:
    assert check_kafka(settings(secured, start_timeout_s="60"), [SEGMENTS]) == 2
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-password")
    with pytest.raises(StartupError, match="Kafka is not usable") as caught:
        check_kafka(settings(secured, kafka_password_file=str(wrong)), [SEGMENTS])
    assert "not-the-password" not in str(caught.value)
    with pytest.raises(StartupError, match="Kafka is not usable"):
        check_kafka(settings({"bootstrap": secured["bootstrap"]}), [SEGMENTS])


def test_commands_reach_it_with_the_same_settings(
    secured: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = secured["bootstrap"]
    with pytest.raises(CliError, match="does not answer"):
        check_reachable(address)
    for name, value in secured.items():
        monkeypatch.setenv(f"LOOKOUT_{name.upper()}", value)
    check_reachable(address, WATCHES.name)
    send_and_confirm(address, WATCHES.name, {"w": b"{}"})
    reader = CommittedReader(address, [WATCHES.name], Position(oldest=True))
    assert [message.value() for message in reader.until_now()] == [b"{}"]
    reader.close()


def test_the_topics_job_gives_up_on_a_wrong_password(
    secured: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-password")
    for name, value in {**secured, "mode": "local", "kafka_password_file": str(wrong)}.items():
        monkeypatch.setenv(f"LOOKOUT_{name.upper()}", value)
    monkeypatch.setattr(topics, "_CALL_S", 2.0)
    assert topics.main(["--partitions=2", "--replication=1"]) == topics.MISCONFIGURED
    assert "Kafka refuses the connection" in capsys.readouterr().err
