"""Keeps or releases a stage's tensors, depending on what happened to the records that reference them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lookout.runtime.store.keeping import Keeper
from lookout.runtime.store.store import TensorStore
from lookout.runtime.worker import Delivery, Output


class StoreLifecycle:
    """A mixin that implements the methods of `lookout.runtime.worker.Handler` that concern the tensor store.

    Put it before the handler in the list of base classes. It reads a record's tensor references from
    `Output.tensors`. No method blocks.
    """

    _store: TensorStore
    _keeper: Keeper

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        """Note that records are committed, so their tensors wait for the next stage."""
        for delivery in deliveries:
            self._store.published(delivery.output.tensors, delivery.partition, delivery.offset)

    def dropped(self, outputs: Sequence[Output]) -> None:
        """Release the tensors of records that will never be written, because nobody will read them."""
        for output in outputs:
            self._store.release(output.tensors)

    def released(self, camera: str, partition: int) -> None:
        """Release a camera's tensors, because its state will be loaded again, here or elsewhere."""
        self._store.release_camera(camera)
        self._keeper.forget(camera)

    def revoked(self, partition: int) -> None:
        """Release a partition's tensors, because another worker owns it now."""
        self._store.release_partition(partition)

    def over_budget(self) -> Collection[int]:
        """Return the partitions whose unread tensors fill the store."""
        return self._store.pressure().paused
