"""Queues requests to recompute tensors, in the order in which their records are committed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lookout.v1.lineage_pb2 import TensorRef


@dataclass(slots=True, eq=False)
class _Waiter:
    partition: tuple[str, int]
    offset: int
    called: bool = False


class Turns:
    """A fixed number of slots, and the queue of requests that wait for a slot. Thread-safe.

    The partition whose request has waited longest is next; of its requests, the one with the lowest offset
    comes first. A partition is committed in offset order, so computing a later tensor first would help
    nobody. In this order, the input is also read without jumping back.

    Args:
        slots: How many requests hold a slot at a time.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiters: list[_Waiter] = []  # in the order of their arrival
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, ref: TensorRef, patience_s: float | None = None) -> Iterator[None]:
        """Wait for a slot, and hold it within the block.

        Args:
            ref: The requested tensor.
            patience_s: Seconds to wait; None: without limit.

        Raises:
            TimeoutError: No slot became free within `patience_s`.
        """
        waiter = _Waiter((ref.input.topic, ref.input.partition), ref.input.offset)
        with self._changed:
            self._waiters.append(waiter)
            self._call()
            if not self._changed.wait_for(lambda: waiter.called, patience_s):
                self._waiters.remove(waiter)
                raise TimeoutError(f"{ref.id}: no slot became free in {patience_s:g} s")
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._call()

    def _call(self) -> None:
        while self._free and self._waiters:
            longest = self._waiters[0].partition
            chosen = min(
                (waiter for waiter in self._waiters if waiter.partition == longest),
                key=lambda waiter: waiter.offset,
            )
            self._waiters.remove(chosen)
            self._free -= 1
            chosen.called = True
            self._changed.notify_all()
