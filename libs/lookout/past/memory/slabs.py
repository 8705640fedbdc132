"""One contiguous slab per cluster: token after token, K and V together, so that a single copy moves a
cluster."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from lookout.past.memory.types import Ints


@dataclass(slots=True, eq=False)
class _Buffer:
    """Memory that several views of one growing slab share; only the newest view appends to it."""

    data: torch.Tensor
    tokens: Ints
    filled: int
    on_disk: bool = False
    token_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.token_bytes = math.prod(self.data.shape[1:]) * self.data.element_size()


@dataclass(frozen=True, slots=True, eq=False)
class Slab:
    """The first `size` tokens of a buffer; immutable, so that an answer may read it while the memory grows.

    `data` is [size, 2, kv_heads, head_dim] (K, then V) and contiguous; `tokens`, int64 [size], are the
    tokens' numbers in the memory, ascending within each append.
    """

    buffer: _Buffer
    size: int
    data: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.buffer.data[: self.size])

    @classmethod
    def of(cls, data: torch.Tensor, tokens: Ints) -> Slab:
        """Make a slab of its own from data [n, 2, kv_heads, head_dim] and token numbers [n]."""
        return cls(_Buffer(data.contiguous(), tokens, len(tokens)), len(tokens))

    @classmethod
    def mapped(cls, data: torch.Tensor, tokens: Ints) -> Slab:
        """Make a slab whose bytes lie in a file mapped into memory; growing it copies it."""
        return cls(_Buffer(data, tokens, len(tokens), on_disk=True), len(tokens))

    @property
    def on_disk(self) -> bool:
        """Whether reading the slab may read a file."""
        return self.buffer.on_disk

    @property
    def tokens(self) -> Ints:
        """The numbers of the slab's tokens in the memory, int64 [size]."""
        return self.buffer.tokens[: self.size]

    @property
    def bytes(self) -> int:
        """Bytes of the slab's KV."""
        return self.size * self.buffer.token_bytes

    def appended(self, data: torch.Tensor, tokens: Ints) -> Slab:
        """Return this slab with more tokens at its end; older views do not change."""
        size, added = self.size, len(tokens)
        buffer = self.buffer
        if buffer.on_disk or buffer.filled != size or len(buffer.tokens) < size + added:
            capacity = max(16, (size + added) * 3 // 2)
            grown = buffer.data.new_empty((capacity, *buffer.data.shape[1:]))
            grown[:size] = self.data
            numbers = np.empty(capacity, dtype=np.int64)
            numbers[:size] = self.tokens
            buffer = _Buffer(grown, numbers, size)
        buffer.data[size : size + added] = data
        buffer.tokens[size : size + added] = tokens
        buffer.filled = size + added
        return Slab(buffer, size + added)

    def taken(self, rows: Ints) -> Slab:
        """Return a new slab that contains only some of the tokens."""
        return Slab.of(self.data[torch.from_numpy(rows)], self.tokens[rows])


def joined(slabs: Iterable[Slab]) -> Slab:
    """Join all members of several slabs into one."""
    parts = list(slabs)
    if len(parts) == 1:
        return parts[0]
    return Slab.of(torch.cat([slab.data for slab in parts]), np.concatenate([slab.tokens for slab in parts]))


class Residency:
    """Which clusters are on the device: the most recently made or fetched ones, within a byte budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._held: OrderedDict[int, int] = OrderedDict()
        self._bytes = 0

    def __contains__(self, cluster: int) -> bool:
        return cluster in self._held

    @property
    def bytes(self) -> int:
        """KV bytes on the device."""
        return self._bytes

    def order(self) -> list[tuple[int, int]]:
        """Return clusters and their bytes, least recently used first."""
        return list(self._held.items())

    def restore(self, order: Iterable[tuple[int, int]]) -> None:
        """Restore the state that gave this `order`. Clusters that grew in place may exceed the budget until
        the next one is touched, so nothing is dropped here."""
        self._held = OrderedDict(order)
        self._bytes = sum(self._held.values())

    def touch(self, cluster: int, size: int) -> None:
        """Note that a cluster of `size` bytes was made on the device or fetched to it."""
        self._bytes += size - self._held.pop(cluster, 0)
        self._held[cluster] = size
        while self._bytes > self.budget and self._held:
            self._bytes -= self._held.popitem(last=False)[1]

    def resize(self, cluster: int, size: int) -> None:
        """Note that a resident cluster grew in place."""
        if cluster in self._held:
            self._bytes += size - self._held[cluster]
            self._held[cluster] = size

    def drop(self, cluster: int) -> None:
        """Note that a cluster no longer exists."""
        self._bytes -= self._held.pop(cluster, 0)
