"""Security settings of Kafka and Redis: what they become, and that secrets are never printed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka.admin import AdminClient

from lookout.errors import StartupError
from lookout.local import RedisServer
from lookout.runtime.kafka_clients import FilePassword
from lookout.runtime.net import KafkaSecurity, RedisSecurity, load_connections
from lookout.runtime.worker import ServiceSettings, load_settings
from lookout.runtime.worker.startup import check_redis
from lookout.text import public_url
from tests.certificates import Authority

LOCAL = {"LOOKOUT_MODE": "local", "LOOKOUT_INSTANCE": "decode-0"}
SECRET = "hunter2-and-more"
SASL = {
    "LOOKOUT_KAFKA_PROTOCOL": "sasl_ssl",
    "LOOKOUT_KAFKA_USERNAME": "lookout",
    "LOOKOUT_KAFKA_PASSWORD": SECRET,
}


BEARER = {"kafka_protocol": "sasl_ssl", "kafka_username": "lookout", "kafka_password": SECRET}


def load(**values: object) -> ServiceSettings:
    return load_settings(
        ServiceSettings, {**LOCAL, **{f"LOOKOUT_{k.upper()}": str(v) for k, v in values.items()}}
    )


def test_kafka_settings_become_librdkafka_options(tmp_path: Path) -> None:
    files = Authority().write(tmp_path)
    (tmp_path / "password").write_text(f"{SECRET}\n")
    settings = load(
        kafka_protocol="sasl_ssl",
        kafka_username="lookout",
        kafka_password_file=tmp_path / "password",
        kafka_ca_file=files["grpc_ca_file"],
        kafka_cert_file=files["grpc_cert_file"],
        kafka_key_file=files["grpc_key_file"],
    )
    options = settings.kafka()
    assert options["security.protocol"] == "sasl_ssl"
    assert options["sasl.mechanism"] == "SCRAM-SHA-512"
    assert (options["sasl.username"], options["sasl.password"]) == ("lookout", SECRET)
    assert options["ssl.ca.location"] == str(files["grpc_ca_file"])
    AdminClient(options, logger=logging.getLogger("quiet"))  # librdkafka knows every name and loads the files


def test_user_and_password_of_kafka_are_read_from_files_again_later(tmp_path: Path) -> None:
    (tmp_path / "username").write_text("lookout\n")
    (tmp_path / "password").write_text(SECRET)
    files = {f"kafka_{name}_file": tmp_path / name for name in ("username", "password")}
    options = load(kafka_protocol="sasl_plaintext", **files).kafka()
    password = options["sasl.password"]
    assert isinstance(password, FilePassword)
    assert (options["sasl.username"], password) == ("lookout", SECRET)
    (tmp_path / "username").write_text("other")
    (tmp_path / "password").write_text("renewed")
    assert password.login() == ("other", "renewed")
    (tmp_path / "password").unlink()
    with pytest.raises(StartupError, match=r"LOOKOUT_KAFKA_PASSWORD_FILE=.*password"):
        password.login()


def test_the_command_line_reads_the_same_settings() -> None:
    options = load_connections(KafkaSecurity, {**SASL, "LOOKOUT_WHATEVER": "1"}).kafka_security()
    assert options["sasl.password"] == SECRET


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"kafka_protocol": "sasl_ssl"}, "needs LOOKOUT_KAFKA_USERNAME and LOOKOUT_KAFKA_PASSWORD_FILE"),
        ({"kafka_username": "lookout"}, "set LOOKOUT_KAFKA_PROTOCOL to sasl_ssl"),
        ({"kafka_ca_file": "/etc/ca"}, "set LOOKOUT_KAFKA_PROTOCOL to ssl"),
        ({"kafka_protocol": "ssl", "kafka_cert_file": "/a"}, "LOOKOUT_KAFKA_KEY_FILE must be set, too"),
        ({**BEARER, "kafka_username_file": "/a"}, "KAFKA_USERNAME and LOOKOUT_KAFKA_USERNAME_FILE are both"),
        (
            {**BEARER, "kafka_mechanism": "OAUTHBEARER"},
            "OAUTHBEARER and LOOKOUT_KAFKA_TOKEN_URL go together",
        ),
        ({**BEARER, "kafka_token_url": "https://idp/token"}, "OAUTHBEARER and LOOKOUT_KAFKA_TOKEN_URL go"),
        (
            {**BEARER, "kafka_mechanism": "OAUTHBEARER", "kafka_token_url": "idp/token"},
            "LOOKOUT_KAFKA_TOKEN_URL must have the form https://",
        ),
        ({"redis_username": "lookout"}, "LOOKOUT_REDIS_USERNAME needs LOOKOUT_REDIS_PASSWORD_FILE"),
        ({"redis_password": SECRET, "redis_password_file": "/a"}, "are both set"),
        ({"kafka_options": '{"sasl.password": "' + SECRET + '"}'}, "use LOOKOUT_KAFKA_PASSWORD_FILE"),
        ({"kafka_options": '{"sasl.username": ' + SECRET}, "LOOKOUT_KAFKA_OPTIONS: is not a JSON object"),
        ({"kafka_options": f'["{SECRET}"]'}, "LOOKOUT_KAFKA_OPTIONS: "),
    ],
)
def test_settings_that_do_not_fit_are_named_without_secrets(values: dict[str, object], says: str) -> None:
    with pytest.raises(StartupError, match=says) as caught:
        load(**values)
    assert SECRET not in str(caught.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    settings = load(kafka_protocol="ssl", kafka_ca_file=tmp_path / "none")
    with pytest.raises(StartupError, match=r"LOOKOUT_KAFKA_CA_FILE=.*none"):
        settings.kafka()
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(StartupError, match=r"LOOKOUT_KAFKA_PASSWORD_FILE=.*empty"):
        load(kafka_protocol="sasl_plaintext", kafka_username="a", kafka_password_file=empty).kafka()


def test_secrets_are_not_printed() -> None:
    settings = load(
        kafka_protocol="sasl_ssl", kafka_username="lookout", kafka_password=SECRET, grpc_token=SECRET
    )
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert SECRET not in text


@pytest.mark.parametrize(
    "url",
    [f"redis://me:{SECRET}@127.0.0.1:1/0", f"redis://me:{SECRET}/x@127.0.0.1:1/0", f"nonsense:{SECRET}@x"],
)
def test_a_password_in_the_url_of_redis_is_not_printed(url: str) -> None:
    with pytest.raises(StartupError, match="LOOKOUT_REDIS_URL=") as caught:
        check_redis(load(redis_url=url, start_timeout_s=0.01))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://a:b@host:6379/0?x=y", "redis://host:6379/0"),
        ("rediss://[::1]:6379/0", "rediss://[::1]:6379/0"),
        ("redis://host:port", "(not a URL)"),
        ("//a:b@host:port/x", "(not a URL)"),
        ("file:///films/a@gate.mp4", "file:///films/a@gate.mp4"),
        ("/films/a\x1b[31m.mp4", "/films/a\\x1b[31m.mp4"),
    ],
)
def test_urls_are_shown_without_credentials(url: str, shown: str) -> None:
    assert public_url(url) == shown


def test_users_of_redis_and_a_password_that_changes(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(SECRET)

    def security(**values: Any) -> RedisSecurity:
        return load_connections(RedisSecurity, {f"LOOKOUT_{k.upper()}": str(v) for k, v in values.items()})

    with RedisServer() as server, redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "lookout", "on", f">{SECRET}", "~lookout:*", "+@all")
        with security(redis_username="lookout", redis_password_file=password).redis_client(
            server.url
        ) as ours:
            assert ours.set("lookout:x", "1")
            with pytest.raises(redis.exceptions.NoPermissionError):
                ours.set("other", "1")
            admin.execute_command("ACL", "SETUSER", "lookout", "resetpass", ">renewed")
            password.write_text("renewed")
            admin.client_kill_filter(_type="normal", skipme=True)
            assert ours.get("lookout:x") == b"1"
        with (
            security(redis_username="lookout", redis_password="wrong").redis_client(server.url) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()


def test_certificates_of_redis_need_tls(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="must begin with rediss://"):
        load(redis_ca_file=tmp_path / "ca.pem").redis_client("redis://127.0.0.1:1/0")
    with pytest.raises(StartupError, match=r"LOOKOUT_REDIS_CA_FILE=.*ca.pem"):
        load(redis_ca_file=tmp_path / "ca.pem").redis_client("rediss://127.0.0.1:1/0")
