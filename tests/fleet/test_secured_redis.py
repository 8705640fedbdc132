"""The directory over TLS with client certificates and a password: a real Redis that speaks TLS itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
import redis

from lookout.errors import StartupError
from lookout.runtime.net import RedisSecurity, load_connections
from lookout.runtime.store import Announcer, Directory, StoreSettings
from lookout.runtime.tenants import RedisCounters, RedisWork
from lookout.services.camera_agent.leases import Leases
from lookout.v1.lineage_pb2 import STAGE_TOKENS
from tests.certificates import Authority
from tests.eventually import eventually
from tests.tls_redis import TlsRedis, tls_redis

pytestmark = pytest.mark.fleet

USER, PASSWORD = "lookout", "a-long-password"
#: what docs/security.md says that a service needs
PAGE = Path(__file__).parents[2] / "docs/security.md"
[RIGHTS] = re.findall(r"`ACL SETUSER lookout on >PASSWORD ([^`]*)`", PAGE.read_text())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRedis]:
    """A Redis with TLS and one ACL user."""
    if (programs := tls_redis()) is None:
        pytest.skip("no Redis with TLS: it comes from Debian's packages")
    folder = tmp_path_factory.mktemp("tls-redis")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(programs), prepend=os.pathsep)
        with TlsRedis(folder / "redis", Authority().write(folder / "tls")) as running:
            admin = redis.Redis.from_url(running.url)
            admin.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", *RIGHTS.split())
            admin.acl_setuser("default", enabled=False)
            admin.close()
            yield running


@pytest.fixture
def secured(server: TlsRedis, tmp_path: Path) -> dict[str, str]:
    """Settings that reach it over TLS as that user, without the LOOKOUT_ prefix."""
    (tmp_path / "password").write_text(PASSWORD + "\n")
    return {
        "url": f"rediss://127.0.0.1:{server.tls_port}/0",
        "redis_username": USER,
        "redis_password_file": str(tmp_path / "password"),
        "redis_ca_file": str(server.files["grpc_ca_file"]),
        "redis_cert_file": str(server.files["grpc_cert_file"]),
        "redis_key_file": str(server.files["grpc_key_file"]),
    }


def security(values: Mapping[str, str | None]) -> RedisSecurity:
    environ = {f"LOOKOUT_{name.upper()}": value for name, value in values.items() if value is not None}
    return load_connections(RedisSecurity, environ)


def client(given: dict[str, str], **changed: str | None) -> redis.Redis:
    values = {**given, **changed}
    return security(values).redis_client(str(values["url"]), socket_timeout=30.0)


def test_the_directory_is_reached_with_certificates_and_password(secured: dict[str, str]) -> None:
    with client(secured) as directory:
        assert directory.set("lookout:key", b"1")
        assert directory.get("lookout:key") == b"1"


def test_another_authority_is_refused(secured: dict[str, str], tmp_path: Path) -> None:
    other = Authority("other").write(tmp_path / "other")
    directory = client(secured, redis_ca_file=str(other["grpc_ca_file"]))
    with directory, pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        directory.ping()


def test_a_reader_without_a_certificate_is_refused(secured: dict[str, str]) -> None:
    directory = client(secured, redis_cert_file=None, redis_key_file=None)
    with directory, pytest.raises(redis.ConnectionError):
        directory.ping()


def test_a_wrong_password_is_refused_and_not_shown(secured: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "password").write_text("another-password\n")
    with client(secured) as directory, pytest.raises(redis.RedisError) as caught:
        directory.ping()
    assert "another-password" not in str(caught.value)


def test_certificates_need_a_url_of_tls(secured: dict[str, str]) -> None:
    with pytest.raises(StartupError, match="rediss://"):
        client(secured, url=secured["url"].replace("rediss", "redis", 1))


def test_the_documented_rights_are_enough(secured: dict[str, str]) -> None:
    """For the directory, quotas and shares of tenants, and leases of cameras; the rest is forbidden."""
    with client(secured) as redis_client:
        assert RedisWork(redis_client).exchange({"acme": 1.0}) == {"acme": pytest.approx(1.0)}
        counters = RedisCounters(redis_client)
        assert counters.exchange(7, 60.0, {("acme", "bytes"): 5.0}) == {("acme", "bytes"): 5.0}
        assert counters.without_place("acme", 1, 60.0, ["a", "b"]) == {"b"}
        leases = Leases(redis_client, "agent-0", 10.0)
        leases.add("gate")
        assert leases.refresh() == {"gate"}
        leases.give_back("gate")
        leases.leave()
        with closing(Directory(secured["url"], StoreSettings(), security(secured))) as directory:
            announcer = Announcer(directory, STAGE_TOKENS, "prune-encode-0", "10.0.0.1:50051", lambda: ())
            announcer.start()
            eventually(lambda: directory.replicas(STAGE_TOKENS) == ["10.0.0.1:50051"])
            announcer.stop()
        for forbidden in (("FLUSHALL",), ("KEYS", "*"), ("GET", "others")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                redis_client.execute_command(*forbidden)
