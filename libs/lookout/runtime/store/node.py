"""The parts of the tensor store that a service needs, assembled."""

from collections.abc import Mapping, Sequence

from lookout.runtime.net import Connections
from lookout.runtime.store.client import TensorClient
from lookout.runtime.store.directory import Announcer, Directory
from lookout.runtime.store.peers import Peers, Traced
from lookout.runtime.store.service import TensorService
from lookout.runtime.store.settings import StoreSettings
from lookout.runtime.store.signing import AddressSigner
from lookout.runtime.store.store import TensorStore
from lookout.runtime.worker import Supervisor


class Node:
    """A tensor store with its client, its gRPC service and, after `join`, its lease.

    Until it joins, a node can only read from others. To serve its tensors, add `service` to a gRPC server,
    start the server, and then call `join`.
    """

    def __init__(
        self,
        settings: StoreSettings,
        redis_url: str,
        *,
        traced: Traced | None = None,
        replicas: Mapping[int, Sequence[str]] | None = None,
        security: Connections | None = None,
    ) -> None:
        self.store = TensorStore(settings)
        self.directory = Directory(redis_url, settings, security, AddressSigner.of(security))
        self.peers = Peers(settings, traced, security)
        self.client = TensorClient(self.peers, self.directory, self.store, replicas)
        self.service = TensorService(self.store)
        self._announcer: Announcer | None = None

    def join(self, stage: int, pod: str, address: str, supervisor: Supervisor | None = None) -> None:
        """Announce this node's tensors of `stage` under a lease; peers reach its gRPC server at `address`."""
        if self._announcer is not None:
            raise ValueError(f"{pod} has already joined; call join only once")
        lines = self.store.lines
        self._announcer = Announcer(self.directory, stage, pod, address, lines, supervisor=supervisor)
        self.store.holdings = self._announcer
        self._announcer.start()

    def close(self) -> None:
        """Release the lease and close the connections."""
        # Before the lease is released, because tensors that leave the store from now on need no announcement.
        self.store.holdings = None
        if self._announcer is not None:
            self._announcer.stop()
        self.peers.close()
        self.directory.close()
