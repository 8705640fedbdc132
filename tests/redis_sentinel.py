"""A real primary, its replica, and a Sentinel that watches them, on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from lookout.local import RedisServer
from lookout.local.processes import Child
from lookout.local.redis import find_redis_server

SERVICE = "directory"
_SEEN_S = 60.0


class Replica(RedisServer):
    """A server that follows another one."""

    def __init__(self, folder: Path, of: int) -> None:
        super().__init__(folder)
        self._of = of

    @property
    def options(self) -> dict[str, object]:
        """As a server's; it synchronizes at once."""
        return {**super().options, "replicaof": f"127.0.0.1 {self._of}", "repl-diskless-sync-delay": 0}

    def _launch(self) -> Child:
        config = self.folder / "redis.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in self.options.items() if value != ""))
        return Child([find_redis_server(), config], self.log)


class Sentinel(RedisServer):
    """One Sentinel; it alone decides."""

    name = "Sentinel"

    def __init__(self, folder: Path, of: int) -> None:
        super().__init__(folder)
        self._of = of

    def _launch(self) -> Child:
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self._of} 1",
            f"sentinel down-after-milliseconds {SERVICE} 1000",
            f"sentinel failover-timeout {SERVICE} 5000",
        ]
        config = self.folder / "sentinel.conf"
        config.write_text("\n".join([*lines, ""]))
        return Child([find_redis_server(), config, "--sentinel"], self.log)


class Watched:
    """The three of them.

    Args:
        folder: For their files.
    """

    def __init__(self, folder: Path) -> None:
        for name in ("primary", "replica", "sentinel"):
            (folder / name).mkdir(parents=True)
        self.primary = RedisServer(folder / "primary")
        self._folder = folder
        self._servers: list[RedisServer] = [self.primary]

    def __enter__(self) -> Self:
        try:
            self.primary.start()
            port = self.primary.port
            assert port is not None
            for server in (
                Replica(self._folder / "replica", port),
                Sentinel(self._folder / "sentinel", port),
            ):
                self._servers.append(server)
                server.start()
            self._await_replica()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def url(self) -> str:
        """The Sentinel's address, behind one at which nobody is."""
        return f"redis://127.0.0.1:1,127.0.0.1:{self._servers[-1].port}/0"

    def close(self) -> None:
        """Stop them."""
        for server in self._servers:
            server.close()

    def _await_replica(self) -> None:
        """A Sentinel hears of replicas from the primary, every ten seconds."""
        deadline = time.monotonic() + _SEEN_S
        with redis.Redis(host="127.0.0.1", port=self._servers[-1].port, decode_responses=True) as client:
            while not any("slave" in replica["flags"] for replica in client.sentinel_slaves(SERVICE)):
                assert time.monotonic() < deadline, "the Sentinel does not see the replica"
                time.sleep(0.1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
