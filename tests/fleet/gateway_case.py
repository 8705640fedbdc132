"""A gateway of a test: the real process over a real Kafka, and a client that is signed in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from lookout.local import Service, create_topics, free_ports

READY_S = 120.0


class GatewayProcess:
    """One gateway process; it can be killed and started again with the same database.

    Args:
        folder: Of its database and log.
        kafka: Bootstrap servers; the topics must exist.
        redis_url: Redis.
        settings: More settings, without the LOOKOUT_ prefix.
    """

    def __init__(
        self, folder: Path, kafka: str, redis_url: str, settings: Mapping[str, str] | None = None
    ) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.sign_in_file = folder / "sign-in"
        self.database = f"sqlite:///{folder / 'history.db'}"
        own = {
            "mode": "local",
            "bootstrap": kafka,
            "redis_url": redis_url,
            "http_port": str(self.port),
            "sign_in_file": str(self.sign_in_file),
            "database_url": self.database,
            **(settings or {}),
        }
        self.settings = own
        self.database = own["database_url"]
        environment = {f"LOOKOUT_{name.upper()}": value for name, value in own.items()}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOOKOUT_")}
        self.service = Service("gateway", folder, {**inherited, **environment})

    def start(self) -> Self:
        """Start it, and wait until it is ready."""
        self.service.start()
        deadline = time.monotonic() + READY_S
        while not self.service.ready():
            if self.service.pid is None or time.monotonic() > deadline:
                raise AssertionError(f"{self.service.waiting_for}\n{self.service.tail()}")
            time.sleep(0.1)
        return self

    def client(self, **more: Any) -> httpx.Client:
        """A client without credentials."""
        return httpx.Client(base_url=self.url, timeout=30.0, **more)

    @contextmanager
    def signed_in(self) -> Iterator[httpx.Client]:
        """A client with the session of the one-time link; its changes carry the CSRF token."""
        with self.client() as client:
            answer = client.get(f"/sign-in/{self.sign_in_file.read_text()}")
            assert answer.status_code == 303, answer.text
            client.headers["x-csrf-token"] = client.get("/v1/session").json()["csrf"]
            yield client

    def close(self) -> None:
        """End it."""
        self.service.stop(10.0)


def gateway(
    stack: ExitStack,
    folder: Path,
    kafka: str,
    redis_url: str,
    settings: Mapping[str, str] | None = None,
) -> GatewayProcess:
    """A gateway that runs until the stack is closed; the topics are created."""
    create_topics(kafka, 2)
    process = GatewayProcess(folder, kafka, redis_url, settings)
    stack.callback(process.close)
    return process.start()
