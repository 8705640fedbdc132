"""Slabs: the KV of one cluster in contiguous memory, token by token, so that a single copy moves a
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
    """Memory that several versions of a growing slab share. Only the newest version appends to it."""

    data: torch.Tensor
    tokens: Ints
    filled: int
    on_disk: bool = False
    token_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.token_bytes = math.prod(self.data.shape[1:]) * self.data.element_size()


@dataclass(frozen=True, slots=True, eq=False)
class Slab:
    """The first `size` tokens of a buffer. Immutable, so that an answer can read it while the memory grows.

    `data` is [size, 2, kv_heads, head_dim] (K, then V) and contiguous. `tokens`, int64 [size], has the
    tokens' numbers in the memory; those of one append are ascending.
    """

    buffer: _Buffer
    size: int
    data: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.buffer.data[: self.size])

    @classmethod
    def of(cls, data: torch.Tensor, tokens: Ints) -> Slab:
        """Return a new slab with data [n, 2, kv_heads, head_dim] and token numbers [n]."""
        return cls(_Buffer(data.contiguous(), tokens, len(tokens)), len(tokens))

    @classmethod
    def mapped(cls, data: torch.Tensor, tokens: Ints) -> Slab:
        """Return a slab whose data are a memory-mapped file. Appending to it copies the data."""
        return cls(_Buffer(data, tokens, len(tokens), on_disk=True), len(tokens))

    @property
    def on_disk(self) -> bool:
        """Whether reading the slab may read from a disk."""
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
    """Concatenate several slabs into one."""
    parts = list(slabs)
    if len(parts) == 1:
        return parts[0]
    return Slab.of(torch.cat([slab.data for slab in parts]), np.concatenate([slab.tokens for slab in parts]))


class Residency:
    """Tracks which clusters are on the device: those that were created or fetched most recently, within a
    byte budget."""

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
        """Restore the state in which `order()` returned this list. Nothing is dropped, because clusters that
        grew in place may exceed the budget until the next `touch`."""
        self._held = OrderedDict(order)
        self._bytes = sum(self._held.values())

    def touch(self, cluster: int, size: int) -> None:
        """Note that a cluster of `size` bytes was created on the device or fetched to it."""
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
