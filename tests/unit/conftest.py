"""What the unit tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import redis

    from lookout.local import RedisServer


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    """A real Redis of one file's tests. A test that stops it starts it again."""
    from lookout.local import RedisServer  # Kafka's client comes with it, which rooms of models do not need

    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of an empty Redis."""
    import redis

    with redis.Redis.from_url(redis_server.url, socket_timeout=5.0) as client:
        client.flushall()
        yield client


@pytest.fixture
def trusted_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`lookout model check` without its trial of the prompt, five seconds of imports that test_trial has."""
    from watchbench.evaluation import check

    monkeypatch.setattr(check, "try_prompt", lambda folder: None)
