"""Kafka and Redis of a local fleet: a process that does not know their passwords reads nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lookout.cli.connect import Position, check_reachable, reading, send_and_confirm
from lookout.local import Fleet, FleetAddress
from lookout.local.passwords import lasting_password
from lookout.runtime.net import RedisSecurity, load_connections
from lookout.wire import WATCHES
from tests.eventually import eventually

pytestmark = [pytest.mark.fleet, pytest.mark.long]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The servers of `lookout up`, without services."""
    with Fleet(tmp_path_factory.mktemp("passwords") / "fleet", stages=(), announced=True) as running:
        yield running


def test_a_stranger_reads_nothing(fleet: Fleet) -> None:
    ports = _ports(fleet.pids()["kafka"])
    assert len(ports) == 3  # clients, the broker itself, the controller
    for port in ports:
        _assert_shut(f"127.0.0.1:{port}", {})
        _assert_shut(f"127.0.0.1:{port}", _login("lookout", "lookout"))
    with (
        redis.Redis.from_url(fleet.redis_url) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.keys()


def test_the_passwords_are_in_private_files_alone(fleet: Fleet) -> None:
    secrets = [
        Path(path).read_text()
        for name, path in fleet.address.security.items()
        if name.endswith("password_file")
    ]
    assert len(secrets) == 2
    for pid in fleet.pids().values():
        assert not any(secret in " ".join(psutil.Process(pid).cmdline()) for secret in secrets)
    holders = [
        path
        for path in fleet.folder.rglob("*")
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in secrets)
    ]
    assert len(holders) > len(secrets)
    assert {oct(path.stat().st_mode & 0o777) for path in holders} == {"0o600"}


def test_who_knows_the_folder_is_let_in(fleet: Fleet) -> None:
    send_and_confirm(fleet.bootstrap, WATCHES.name, {"w": b"{}"})
    assert b"{}" in _watches(fleet.bootstrap)
    with _redis(fleet.address) as client:
        assert client.ping()
    # As a user's own producer does: with the properties file that `lookout up` names, and without Lookout.
    program = (
        "import sys; from confluent_kafka.admin import AdminClient\n"
        "lines = open(sys.argv[1]).read().splitlines()\n"
        "print(len(AdminClient(dict(line.split('=', 1) for line in lines)).list_topics(timeout=60).topics))"
    )
    command = [sys.executable, "-c", program, str(fleet.client_properties)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert int(answer.stdout) > 10


def test_servers_that_died_ask_again(fleet: Fleet) -> None:
    send_and_confirm(fleet.bootstrap, WATCHES.name, {"v": b"{}"})
    before = Path(fleet.address.security["redis_password_file"]).read_text()
    for server in (fleet._kafka, fleet._redis):
        assert server is not None
        server.kill()
    fleet.supervise()
    assert b"{}" in _watches(fleet.bootstrap)
    _assert_shut(fleet.bootstrap, {})
    with _redis(fleet.address) as client:
        assert client.ping()
    # Whoever took Redis's port meanwhile was shown the password of that time.
    assert Path(fleet.address.security["redis_password_file"]).read_text() != before


def test_a_folder_keeps_kafka_s_password_but_none_that_others_could_read(tmp_path: Path) -> None:
    with Fleet(tmp_path, stages=(), open_servers=True) as fleet:
        assert fleet.address.security == {}
        admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
        eventually(lambda: admin.list_topics(timeout=60).topics)  # the broker's own view of them comes later
        assert redis.Redis.from_url(fleet.redis_url).ping()
    with Fleet(tmp_path, stages=()) as fleet:
        _assert_shut(fleet.bootstrap, {})
        path = Path(fleet.address.security["kafka_password_file"])
        first = path.read_text()
    assert lasting_password(path) == first
    path.chmod(0o644)
    with Fleet(tmp_path, stages=()) as fleet:
        assert path.read_text() != first
        _assert_shut(fleet.bootstrap, _login("lookout", first) | {"sasl.mechanism": "SCRAM-SHA-512"})


def _watches(bootstrap: str) -> list[bytes | None]:
    check_reachable(bootstrap, WATCHES.name)
    with reading(bootstrap, [WATCHES.name], Position(oldest=True)) as reader:
        return [message.value() for message in reader.until_now()]


def _redis(address: FleetAddress) -> redis.Redis:
    return load_connections(RedisSecurity, address.environment()).redis_client(address.redis_url)


def _ports(pid: int) -> list[int]:
    connections = psutil.Process(pid).net_connections("tcp")
    return sorted({link.laddr.port for link in connections if link.status == psutil.CONN_LISTEN})


def _login(name: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": name,
        "sasl.password": password,
    }


def _assert_shut(address: str, options: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0, **options})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=5.0)
