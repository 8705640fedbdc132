"""A real Redis Cluster of three nodes on this machine."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from lookout.local import RedisServer, free_ports
from tests.eventually import eventually

SLOTS = 16384


class ClusterNode(RedisServer):
    """One node; it holds its slots' keys in memory alone."""

    def __init__(self, folder: Path) -> None:
        port, self.bus_port = free_ports(2)
        super().__init__(folder, port=port)

    @property
    def options(self) -> dict[str, object]:
        """As a server's, and a part of a cluster; a lost node takes its own slots away and no others."""
        return {
            **super().options,
            "cluster-enabled": "yes",
            "cluster-port": self.bus_port,
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": 2000,
            "cluster-require-full-coverage": "no",
        }


class RedisCluster:
    """Three primaries that share the slots.

    Args:
        folder: Where they keep their list of nodes.
    """

    def __init__(self, folder: Path) -> None:
        self.nodes = [ClusterNode(folder / str(number)) for number in range(3)]

    @property
    def url(self) -> str:
        """The address of the first node."""
        return self.nodes[0].url

    def client(self, node: ClusterNode) -> redis.Redis:
        """One node's own client."""
        return redis.Redis(host="127.0.0.1", port=node.port, socket_timeout=5.0)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop every node."""
        for node in self.nodes:
            node.close()

    def _start(self) -> None:
        for node in self.nodes:
            node.folder.mkdir(parents=True, exist_ok=True)
            node.start()
        for number, node in enumerate(self.nodes):
            begin, end = number * SLOTS // 3, (number + 1) * SLOTS // 3 - 1
            with self.client(node) as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", begin, end)
                first = self.nodes[0]
                client.execute_command("CLUSTER MEET", "127.0.0.1", first.port, first.bus_port)
        eventually(lambda: all(map(self._joined, self.nodes)))

    def _joined(self, node: ClusterNode) -> bool:
        with self.client(node) as client:
            facts = client.execute_command("CLUSTER INFO")
        return (facts["cluster_state"], facts["cluster_slots_ok"]) == ("ok", str(SLOTS))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
