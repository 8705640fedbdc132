"""A real primary, its replica, and Sentinels that watch them, on this machine."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from lookout.local import RedisServer
from lookout.local.processes import Child
from lookout.local.redis import find_redis_server
from tests.eventually import eventually

SERVICE = "directory"


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
    """One Sentinel.

    Args:
        folder: For its files.
        of: The primary's port.
        quorum: So many Sentinels must agree that the primary is gone.
    """

    name = "Sentinel"

    def __init__(self, folder: Path, of: int, quorum: int) -> None:
        super().__init__(folder)
        self._of = of
        self._quorum = quorum

    def _launch(self) -> Child:
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self._of} {self._quorum}",
            f"sentinel down-after-milliseconds {SERVICE} 1000",
            f"sentinel failover-timeout {SERVICE} 5000",
        ]
        config = self.folder / "sentinel.conf"
        config.write_text("\n".join([*lines, ""]))
        return Child([find_redis_server(), config, "--sentinel"], self.log)


class Watched:
    """All of them.

    Args:
        folder: For their files.
        sentinels: How many; the larger half of them decides.
    """

    def __init__(self, folder: Path, sentinels: int = 1) -> None:
        names = [f"sentinel-{number}" for number in range(sentinels)]
        for name in ("primary", "replica", *names):
            (folder / name).mkdir(parents=True)
        self.primary = RedisServer(folder / "primary")
        self._folder = folder
        self._names = names
        self._sentinels: list[Sentinel] = []
        self._servers: list[RedisServer] = [self.primary]

    def __enter__(self) -> Self:
        try:
            self.primary.start()
            port = self.primary.port
            assert port is not None
            quorum = len(self._names) // 2 + 1
            self._sentinels = [Sentinel(self._folder / name, port, quorum) for name in self._names]
            for server in (Replica(self._folder / "replica", port), *self._sentinels):
                self._servers.append(server)
                server.start()
            for sentinel in self._sentinels:
                self._await_others(sentinel)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def url(self) -> str:
        """The Sentinels' addresses, behind one at which nobody is."""
        hosts = ["127.0.0.1:1", *(f"127.0.0.1:{sentinel.port}" for sentinel in self._sentinels)]
        return f"redis://{','.join(hosts)}/0"

    @property
    def primary_port(self) -> int:
        """The port of the server that the last Sentinel calls the primary."""
        with redis.Redis(host="127.0.0.1", port=self._sentinels[-1].port, decode_responses=True) as client:
            return int(client.sentinel_get_master_addr_by_name(SERVICE)[1])

    def close(self) -> None:
        """Stop them."""
        for server in self._servers:
            server.close()

    def _await_others(self, sentinel: Sentinel) -> None:
        """A Sentinel hears of replicas and of other Sentinels from the primary, within ten seconds."""
        others = len(self._sentinels) - 1
        with redis.Redis(host="127.0.0.1", port=sentinel.port, decode_responses=True) as client:
            eventually(lambda: len(client.sentinel_sentinels(SERVICE)) >= others, every=0.1)
            eventually(
                lambda: any("slave" in replica["flags"] for replica in client.sentinel_slaves(SERVICE)),
                every=0.1,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
