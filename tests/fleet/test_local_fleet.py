"""A fleet on one machine: it comes up, heals what dies, is found by other commands, and leaves nothing."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil
import pytest
import redis
from confluent_kafka.admin import AdminClient

from lookout.cli.connect import client_options, grpc_security
from lookout.local import Fleet, LocalError, running_fleets
from lookout.local.processes import free_ports
from lookout.local.server import HOST
from lookout.runtime.net import Channels, GrpcSecurity, without_security
from lookout.v1 import tensors_pb2, tensors_pb2_grpc
from lookout.wire import Stage, all_topics
from tests.eventually import eventually

pytestmark = pytest.mark.fleet


def supervised_until(fleet: Fleet, done: Callable[[], bool]) -> list[str]:
    """What supervising said until then."""
    news: list[str] = []
    eventually(lambda: news.extend(fleet.supervise()) or done(), every=0.2)
    return news


def refusal(address: str, security: GrpcSecurity) -> grpc.StatusCode:
    """Why a service without tensors gives none."""
    with Channels(security).open(address) as channel:
        stub = tensors_pb2_grpc.TensorServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = stub.GetTensor(tensors_pb2.GetTensorRequest(), timeout=30.0)
        with pytest.raises(grpc.RpcError) as caught:
            next(answer)
    code: grpc.StatusCode = caught.value.code()
    return code


def test_a_fleet_heals_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its own list of fleets. The jars and Java's cache stay the machine's: without them a broker costs twice.
    monkeypatch.setattr("lookout.local.addresses.cache_folder", lambda: tmp_path / "cache")
    with Fleet(stages=(Stage.ALERTS,), announced=True) as fleet:
        (service,) = fleet.services
        assert service.ready()
        (found,) = running_fleets()
        assert (found.bootstrap, found.pid) == (fleet.bootstrap, os.getpid())
        topics = AdminClient(client_options(fleet.bootstrap)).list_topics(timeout=60).topics
        assert {topic.name for topic in all_topics()} <= set(topics)

        assert Path(str(found.grpc_token_file)).stat().st_mode & 0o777 == 0o600
        address = f"{HOST}:{found.grpc['alerts-0']}"
        assert refusal(address, without_security()) is grpc.StatusCode.UNAUTHENTICATED
        assert refusal(address, grpc_security(fleet.bootstrap)) is grpc.StatusCode.UNIMPLEMENTED

        first = service.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        news = supervised_until(fleet, lambda: service.pid not in (None, first) and service.ready())
        assert any("alerts-0 ended with code -9" in said for said in news)
        assert service.restarts == 1

        broker = fleet._kafka
        assert broker is not None
        address = fleet.bootstrap
        broker.kill()
        supervised_until(fleet, lambda: broker.alive and service.ready())
        assert fleet.bootstrap == address
        pids = [service.pid, broker.pid]
        folder = fleet.folder
    assert not any(pid and psutil.pid_exists(pid) for pid in pids)
    assert not folder.exists()
    assert running_fleets() == []


def test_a_service_that_cannot_start_says_why(tmp_path: Path, kafka: str, redis_url: str) -> None:
    settings = {Stage.ALERTS: {"fsp": "2"}}
    fleet = Fleet(tmp_path, kafka=kafka, redis_url=redis_url, stages=(Stage.ALERTS,), stage_settings=settings)
    with pytest.raises(LocalError, match=r"LOOKOUT_FSP.*did you mean LOOKOUT_FPS"):
        fleet.__enter__()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://127.0.0.1:{port}/0", "Redis at redis://127.0.0.1:{port}/0 does not answer .*refused"),
        ("foo://x", "LOOKOUT_REDIS_URL=foo://x must have the form redis://host:port/db"),
        ("redis://127.0.0.1:99999/0", "must have the form redis://host:port/db"),
    ],
)
def test_a_redis_that_does_not_answer_is_named_before_anything_starts(
    tmp_path: Path, url: str, why: str
) -> None:
    (port,) = free_ports(1)
    fleet = Fleet(tmp_path, redis_url=url.format(port=port), stages=())
    try:
        with pytest.raises(LocalError, match=why.format(port=port)):
            fleet.start()
        assert not (tmp_path / "kafka" / "kafka.log").exists()
    finally:
        fleet.close()


def test_a_server_that_cannot_start_now_is_tried_again(tmp_path: Path, kafka: str) -> None:
    """Another process sits on its port for a while: the fleet lives on."""
    with Fleet(tmp_path, kafka=kafka, stages=()) as fleet:
        server = fleet._redis
        assert server is not None
        server.kill()
        with socket.create_server((HOST, server.port)):
            (said,) = fleet.supervise()
            assert "tried again" in said
            assert not server.alive
        (said,) = fleet.supervise()
        assert "restarted at the same address" in said
        password = Path(fleet.address.security["redis_password_file"]).read_text()
        assert redis.Redis.from_url(fleet.redis_url, password=password).ping()
        server.kill()
        with socket.create_server((HOST, server.port)):
            for _ in range(3):
                fleet.supervise()
            with pytest.raises(LocalError, match="another process uses it"):
                fleet.supervise()


def test_one_folder_holds_one_fleet(tmp_path: Path, kafka: str, redis_url: str) -> None:
    with (
        Fleet(tmp_path, kafka=kafka, redis_url=redis_url, stages=()),
        pytest.raises(LocalError, match="another fleet"),
        Fleet(tmp_path, kafka=kafka, redis_url=redis_url, stages=()),
    ):
        pass
