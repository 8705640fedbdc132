"""Recomputes tensors on request."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from google.protobuf.message import Message

from lookout.runtime.store.errors import StoreError
from lookout.runtime.store.tensors import Array
from lookout.runtime.store.turns import Turns
from lookout.v1.lineage_pb2 import TensorRef

Materializer = Callable[[TensorRef, Message], Array]
"""Recomputes a tensor from its reference and the record that carries it. The result depends only on
these and the segments' bytes. Raises LineageBrokenError if the tensor can never be recomputed."""


class Makers:
    """The functions that recompute tensors, one per stage. Thread-safe.

    Args:
        workers: How many tensors are computed at a time; further requests wait for their turn (`Turns`).
    """

    def __init__(self, workers: int) -> None:
        self.made = 0  # tensors computed since the start
        self._lock = threading.Lock()
        self._materializers: dict[int, Materializer] = {}
        self._running: dict[str, Future[Array]] = {}  # by tensor id
        self._turns = Turns(workers)

    def register(self, stage: int, materializer: Materializer) -> None:
        """Set the function that recomputes the tensors of a stage."""
        self._materializers[stage] = materializer

    def can_make(self, ref: TensorRef) -> bool:
        """Whether this process can recompute tensors of the reference's stage."""
        return ref.stage in self._materializers

    def make(self, ref: TensorRef, record: Message, keep: Callable[[Array], Array]) -> Array:
        """Recompute a tensor. Concurrent requests for the same tensor share one computation and its result or
        error.

        Args:
            ref: The tensor.
            record: The record that carries the reference.
            keep: Called once with the new tensor; returns what the callers get.

        Raises:
            StoreError: No function is registered for the stage.
            Exception: What that function or `keep` raises.
        """
        with self._lock:
            ours = ref.id not in self._running
            future = self._running.setdefault(ref.id, Future())
        if ours:
            try:
                array = keep(self._make(ref, record))
                with self._lock:
                    self.made += 1
                future.set_result(array)
            # KeyboardInterrupt included, because threads that wait for the same tensor must not wait for
            # ever.
            except BaseException as error:
                future.set_exception(error)
            finally:
                with self._lock:
                    del self._running[ref.id]
        return future.result()

    def _make(self, ref: TensorRef, record: Message) -> Array:
        maker = self._materializers.get(ref.stage)
        if maker is None:
            raise StoreError(f"this process cannot compute tensors of stage {ref.stage} ({ref.id})")
        with self._turns.turn(ref):
            return maker(ref, record)
