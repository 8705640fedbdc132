"""Fetches a tensor from a process that holds it, or has it recomputed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog
from google.protobuf.message import Message

from lookout.runtime.store.directory import Directory
from lookout.runtime.store.errors import (
    DirectoryDownError,
    LineageBrokenError,
    StoreError,
    TensorCorruptError,
    TensorNotMadeError,
    TensorUnavailableError,
)
from lookout.runtime.store.peers import Peers, rank
from lookout.runtime.store.store import TensorStore
from lookout.runtime.store.tensors import Array, Rows
from lookout.v1.lineage_pb2 import TensorRef

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A tensor (read-only) and where it came from.

    `degraded`: the directory did not answer, so no holder was asked and the tensor was recomputed by lineage.
    """

    array: Array
    source: Literal["local", "peer", "made"]
    degraded: bool = False


class TensorClient:
    """Fetches tensors from the local store or from a holder in the directory; otherwise has them recomputed,
    here or by a replica of their stage.

    `replicas` are fixed addresses of a stage's pods (a service name, or a list), used in addition to those in
    the directory, and on their own if the directory does not answer.
    """

    def __init__(
        self,
        peers: Peers,
        directory: Directory | None = None,
        store: TensorStore | None = None,
        replicas: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        self._peers = peers
        self._directory = directory
        self._store = store
        self._replicas = replicas or {}

    def fetch(self, ref: TensorRef, record: Message, rows: Rows | None = None) -> Fetched:
        """Return the tensor, or `rows` of it; if nobody holds it, it is recomputed from `record`, which
        carries `ref`.

        Raises:
            LineageBrokenError: The tensor can never be recomputed.
            TensorNotMadeError: Nobody holds the tensor, and a replica of its stage answers but cannot
                compute it.
            TensorUnavailableError: Nobody can send or compute the tensor now; retry later.
        """
        if self._store is not None and (array := self._store.get(ref, rows)) is not None:
            return Fetched(array, "local")
        holders, degraded = self._holders(ref)
        for address in holders:
            try:
                return Fetched(self._peers.get(address, ref, rows), "peer")
            except (TensorUnavailableError, TensorCorruptError) as error:
                _log.info("a holder failed", ref=ref.id, address=address, error=str(error))
        return Fetched(self._made(ref, record, rows), "made", degraded)

    def _holders(self, ref: TensorRef) -> tuple[list[str], bool]:
        if self._directory is None:
            return [], False
        try:
            # Sorted, so that all readers of a tensor try its holders in the same order.
            return sorted(h.address for h in self._directory.find(ref)), False
        except DirectoryDownError as error:
            _log.debug("fetching by lineage", ref=ref.id, error=str(error))
            return [], True

    def _made(self, ref: TensorRef, record: Message, rows: Rows | None) -> Array:
        if self._store is not None and self._store.can_make(ref):
            return self._store.materialize(ref, record, rows)
        addresses = self._makers(ref)
        if not addresses:
            raise TensorUnavailableError(
                f"{ref.id}: no instance of its stage is known: start an instance, or set the stage's replicas"
            )
        failures: list[StoreError] = []
        for address in addresses:
            try:
                return self._peers.materialize(address, ref, record, rows)
            except StoreError as error:
                failures.append(error)
        # If one replica says that the tensor can never be computed, there is no point in asking the others.
        broken = [error for error in failures if isinstance(error, LineageBrokenError)]
        if broken:
            raise broken[0]
        # All replicas make a tensor from the same record, so if one cannot, the others cannot either.
        answered = any(isinstance(error, (TensorNotMadeError, TensorCorruptError)) for error in failures)
        kind = TensorNotMadeError if answered else TensorUnavailableError
        raise kind(f"{ref.id} could not be recomputed: {'; '.join(map(str, failures))}")

    def _makers(self, ref: TensorRef) -> list[str]:
        addresses = list(self._replicas.get(ref.stage, ()))
        if self._directory is not None:
            addresses += self._directory.replicas(ref.stage)
        return sorted(set(addresses), key=lambda address: rank(address, ref.id))
