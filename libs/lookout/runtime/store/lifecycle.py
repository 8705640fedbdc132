"""How a producing stage's worker tells its store what became of the records that carry its tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lookout.runtime.store.keeping import Keeper
from lookout.runtime.store.store import TensorStore
from lookout.runtime.worker import Delivery, Output


class StoreLifecycle:
    """The store's half of a `lookout.runtime.worker.Handler`; stands before it among the bases.

    `Output.tensors` are the references that a record carries. All methods return at once.
    """

    _store: TensorStore
    _keeper: Keeper

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        """The records are durable: their tensors wait for the next stage."""
        for delivery in deliveries:
            self._store.published(delivery.output.tensors, delivery.partition, delivery.offset)

    def dropped(self, outputs: Sequence[Output]) -> None:
        """Records that never were: nobody reads their tensors."""
        for output in outputs:
            self._store.release(output.tensors)

    def released(self, camera: str, partition: int) -> None:
        """The camera is loaded again, here or elsewhere."""
        self._store.release_camera(camera)
        self._keeper.forget(camera)

    def revoked(self, partition: int) -> None:
        """Another worker's partition."""
        self._store.release_partition(partition)

    def over_budget(self) -> Collection[int]:
        """Partitions whose unread tensors fill the store."""
        return self._store.pressure().paused
