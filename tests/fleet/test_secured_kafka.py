"""A Kafka that asks for TLS and a password, a certificate or a token, as services and commands meet it."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from lookout.runtime.worker import ServiceSettings, load_settings
from lookout.runtime.worker.startup import check_kafka
from lookout.services.controller import topics
from lookout.wire import SEGMENTS, WATCHES
from tests.certificates import Authority

pytestmark = [pytest.mark.fleet, pytest.mark.long]

USER, PASSWORD = "lookout", "a-long-password"


class Tokens:
    """A token endpoint: tokens without a signature, for clients that show the secret."""

    def __init__(self) -> None:
        tokens = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                tokens.bodies.append(self.rfile.read(length).decode())
                shown = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic "))
                allowed = shown == f"{USER}:{PASSWORD}".encode()
                body = json.dumps({"access_token": token(USER)} if allowed else {"error": "no"}).encode()
                self.send_response(200 if allowed else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *values: object) -> None:
                pass

        self.bodies: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def token(user: str) -> str:
    """A JWT that is not signed."""
    claims = {"sub": user, "scope": "kafka", "iat": int(time.time()), "exp": int(time.time()) + 3600}
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, claims)
    )
    return ".".join((*parts, ""))


@dataclass(frozen=True)
class Ways:
    """Settings that reach one broker in three ways, without the LOOKOUT_ prefix."""

    secured: dict[str, str]
    mutual: dict[str, str]
    bearer: dict[str, str]
    tokens: Tokens


@pytest.fixture(scope="module")
def secured(ways: Ways) -> dict[str, str]:
    """TLS with SCRAM."""
    return ways.secured


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    """A broker with three secured listeners."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority()
    files, client = authority.write(folder), authority.write(folder / "client", "lookout-decode")
    store = folder / "broker.pem"
    store.write_bytes(files["grpc_key_file"].read_bytes() + files["grpc_cert_file"].read_bytes())
    port, mutual, bearer = free_ports(3)
    protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL,MUTUAL:SSL,BEARER:SASL_PLAINTEXT"
    properties = {
        "listener.security.protocol.map": protocols,
        "listener.name.secured.ssl.keystore.type": "PEM",
        "listener.name.secured.ssl.keystore.location": str(store),
        "listener.name.mutual.ssl.keystore.type": "PEM",
        "listener.name.mutual.ssl.keystore.location": str(store),
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(files["grpc_ca_file"]),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.bearer.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.bearer.oauthbearer.sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.secured.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secured.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    listeners, tokens = {"SECURED": port, "MUTUAL": mutual, "BEARER": bearer}, Tokens()
    with closing(tokens), KafkaServer(properties=properties, listeners=listeners) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        user = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
        )
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result(60)
        create_topics(server.bootstrap, 2)
        (folder / "password").write_text(PASSWORD + "\n")
        user = {"kafka_username": USER, "kafka_password_file": str(folder / "password")}
        trusted = {"kafka_ca_file": str(files["grpc_ca_file"])}
        yield Ways(
            {"bootstrap": f"127.0.0.1:{port}", "kafka_protocol": "sasl_ssl", **user, **trusted},
            {
                "bootstrap": f"127.0.0.1:{mutual}",
                "kafka_protocol": "ssl",
                **trusted,
                "kafka_cert_file": str(client["grpc_cert_file"]),
                "kafka_key_file": str(client["grpc_key_file"]),
            },
            {
                "bootstrap": f"127.0.0.1:{bearer}",
                "kafka_protocol": "sasl_plaintext",
                "kafka_mechanism": "OAUTHBEARER",
                "kafka_token_url": tokens.url,
                "kafka_token_scope": "kafka",
                **user,
            },
            tokens,
        )


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


def test_a_broker_that_asks_for_certificates_takes_those_of_its_authority_only(
    ways: Ways, tmp_path: Path
) -> None:
    assert check_kafka(settings(ways.mutual, start_timeout_s="60"), [SEGMENTS]) == 2
    stranger = Authority("stranger").write(tmp_path, "lookout-decode")
    foreign = {f"kafka_{part}_file": str(stranger[f"grpc_{part}_file"]) for part in ("cert", "key")}
    without = {name: value for name, value in ways.mutual.items() if name not in foreign}
    for refused in ({**ways.mutual, **foreign}, without):
        with pytest.raises(StartupError, match="Kafka is not usable"):
            check_kafka(settings(refused), [SEGMENTS])


def test_tokens_of_a_provider_open_it_to_who_knows_the_clients_secret(ways: Ways, tmp_path: Path) -> None:
    assert check_kafka(settings(ways.bearer, start_timeout_s="60"), [SEGMENTS]) == 2
    assert "grant_type=client_credentials" in ways.tokens.bodies[0]
    assert "scope=kafka" in ways.tokens.bodies[0]
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-password")
    with pytest.raises(StartupError, match="Kafka is not usable") as caught:
        check_kafka(settings(ways.bearer, kafka_password_file=str(wrong)), [SEGMENTS])
    assert "not-the-password" not in str(caught.value)
    with pytest.raises(StartupError, match="OAUTHBEARER and LOOKOUT_KAFKA_TOKEN_URL go together"):
        settings({name: value for name, value in ways.bearer.items() if name != "kafka_token_url"})


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
    assert "Kafka rejects the connection" in capsys.readouterr().err
