"""Tells a producing stage's store what became of the records that carry its tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lookout.runtime.store.keeping import Keeper
from lookout.runtime.store.store import TensorStore
from lookout.runtime.worker import Delivery, Output


class StoreLifecycle:
    """The store's half of a `lookout.runtime.worker.Handler`; list it before the handler among the bases.

    `Output.tensors` are the references that a record carries. All methods return at once.
    """

    _store: TensorStore
    _keeper: Keeper

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        """Note that records are durable: their tensors now wait for the next stage."""
        for delivery in deliveries:
            self._store.published(delivery.output.tensors, delivery.partition, delivery.offset)

    def dropped(self, outputs: Sequence[Output]) -> None:
        """Release the tensors of records that will never be written: nobody reads them."""
        for output in outputs:
            self._store.release(output.tensors)

    def released(self, camera: str, partition: int) -> None:
        """Release a camera's tensors: its state is loaded again, here or elsewhere."""
        self._store.release_camera(camera)
        self._keeper.forget(camera)

    def revoked(self, partition: int) -> None:
        """Release a partition's tensors: another worker owns it now."""
        self._store.release_partition(partition)

    def over_budget(self) -> Collection[int]:
        """Return the partitions whose unread tensors fill the store."""
        return self._store.pressure().paused
