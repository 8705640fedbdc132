"""Out-of-memory errors at a chosen tensor operation: the real code runs, and one operation of it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB."


class OutOfMemoryAt(TorchDispatchMode):
    """Raises `torch.OutOfMemoryError` at operation `first` of this thread, counted from 1, and at the
    `count` - 1 operations behind it. `first` 0 only counts."""

    def __init__(self, first: int = 0, count: int = 1) -> None:
        super().__init__()
        self.first, self.last, self.operations = first, first + count - 1, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.operations += 1
        if self.first and self.first <= self.operations <= self.last:
            raise torch.OutOfMemoryError(MESSAGE)
        return func(*args, **(kwargs or {}))


def operations(run: Callable[[], object]) -> int:
    """How many tensor operations `run` executes."""
    with OutOfMemoryAt() as counter:
        run()
    return counter.operations


def sampled(total: int, count: int) -> Iterator[int]:
    """At most `count` of the operations 1 to `total`, evenly spread, the first and the last among them."""
    places = min(total, count)
    yield from sorted({1 + round(place * (total - 1) / max(1, places - 1)) for place in range(places)})


__all__ = ["MESSAGE", "OutOfMemoryAt", "operations", "sampled"]
