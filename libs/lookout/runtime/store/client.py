"""Fetches a tensor from wherever it is held, or has it made again."""

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

    `degraded`: the directory did not answer, so no holder was asked and the tensor was made again by lineage.
    """

    array: Array
    source: Literal["local", "peer", "made"]
    degraded: bool = False


class TensorClient:
    """Fetches tensors: from the local store, else from the holders in the directory, else made again, here or
    by a replica of the stage.

    `replicas` are fixed addresses of a stage's pods (a service name, or a list). They are used in addition to
    those that the directory knows, and alone if the directory is away.
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
        """Return the tensor, or `rows` of it. It is made again, if need be, from `record`, which carries
        `ref`.

        Raises:
            LineageBrokenError: It can never be made again.
            TensorNotMadeError: Nobody holds it, and a replica of its stage answers but cannot make it.
            TensorUnavailableError: Nobody can send or make it now.
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
                f"{ref.id}: no instance of its stage is known: start one, or set its replicas"
            )
        failures: list[StoreError] = []
        for address in addresses:
            try:
                return self._peers.materialize(address, ref, record, rows)
            except StoreError as error:
                failures.append(error)
        # If one replica says that it can never be made, there is no point in waiting for the others.
        broken = [error for error in failures if isinstance(error, LineageBrokenError)]
        if broken:
            raise broken[0]
        # All replicas make a tensor from the same record, so if one cannot, the others cannot either.
        answered = any(isinstance(error, (TensorNotMadeError, TensorCorruptError)) for error in failures)
        kind = TensorNotMadeError if answered else TensorUnavailableError
        raise kind(f"{ref.id} could not be made again: {'; '.join(map(str, failures))}")

    def _makers(self, ref: TensorRef) -> list[str]:
        addresses = list(self._replicas.get(ref.stage, ()))
        if self._directory is not None:
            addresses += self._directory.replicas(ref.stage)
        return sorted(set(addresses), key=lambda address: rank(address, ref.id))
