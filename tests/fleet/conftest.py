"""One real Kafka and one real Redis per session; every test gets names of its own on them.

A test that stops or kills a server asks for `own_kafka` or `own_redis` instead.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lookout.local import KafkaServer, RedisServer
from lookout.local.kafka import quicken_broker
from lookout.models import TINY
from lookout.runtime.net.push_keys import new_push_key
from tests.fleet.gateway_case import GatewayProcess, gateway


@pytest.fixture(scope="session")
def quick_java() -> None:
    """Dozens of brokers are started: Java's cache for that is written once on a machine."""
    quicken_broker()


@pytest.fixture(scope="session")
def kafka(quick_java: None) -> Iterator[str]:
    """Bootstrap servers: LOOKOUT_KAFKA if given, else a broker of this session's own."""
    if given := os.environ.get("LOOKOUT_KAFKA"):
        yield given
        return
    with KafkaServer() as server:
        yield server.bootstrap


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis URL: LOOKOUT_REDIS if given, else a server of this session's own."""
    if given := os.environ.get("LOOKOUT_REDIS"):
        yield given
        return
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def own_kafka(quick_java: None) -> Iterator[KafkaServer]:
    """A broker this test may stop, kill and restart."""
    with KafkaServer() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis this test may stop, kill, wipe and restart."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """A name no other test uses, for topics, groups, cameras and keys."""
    return f"t{uuid.uuid4().hex[:10]}."


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opens. The last of its arguments, so that servers end after their clients."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture(scope="module")
def broker(quick_java: None) -> Iterator[KafkaServer]:
    """A Kafka of the module."""
    with KafkaServer() as server:
        yield server


@pytest.fixture(scope="module")
def process(
    broker: KafkaServer, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway of the module over that Kafka."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("gateway")
        (folder / "push-key").write_bytes(new_push_key())
        settings = {
            "upload_url": str(folder / "uploads"),
            "push_key_file": str(folder / "push-key"),
            "model_dir": str(TINY),
        }
        yield gateway(stack, folder, broker.bootstrap, redis_url, settings)
