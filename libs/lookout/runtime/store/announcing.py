"""Tracks the directory entries of which a store holds tensors, and announces changes."""

import threading
from typing import Protocol


class Holdings(Protocol):
    """Receives a call when a store begins or ceases to hold tensors of a directory entry."""

    def held(self, entry: str) -> None: ...

    def dropped(self, entry: str) -> None: ...


class Announcements:
    """Counts the tensors of each directory entry and tells `holdings` what changed. Thread-safe.

    `add` and `remove` only count, so they may be called under a store's lock. `tell` calls `holdings`, so it
    must be called without the lock.
    """

    def __init__(self, holdings: Holdings | None = None) -> None:
        self.holdings = holdings
        self._lock = threading.Lock()
        self._tensors: dict[str, int] = {}  # by entry
        self._ended: list[str] = []  # entries to withdraw, not announced yet

    def add(self, entry: str) -> None:
        """Count one more tensor of an entry."""
        with self._lock:
            self._tensors[entry] = self._tensors.get(entry, 0) + 1

    def remove(self, entry: str) -> None:
        """Count one tensor of an entry fewer."""
        with self._lock:
            self._tensors[entry] -= 1
            if self._tensors[entry] == 0:
                del self._tensors[entry]
                self._ended.append(entry)

    def entries(self) -> list[str]:
        """Return the entries of which at least one tensor is held."""
        with self._lock:
            return list(self._tensors)

    def tell(self, entry: str | None = None) -> None:
        """Withdraw the entries that are no longer held, and announce `entry` if a tensor of it is held."""
        with self._lock:
            # If a tensor of the entry was added again in the meantime, the entry is not withdrawn.
            ended = [old for old in self._ended if old not in self._tensors]
            self._ended.clear()
            present = entry is not None and entry in self._tensors
        if self.holdings is None:
            return
        for old in ended:
            self.holdings.dropped(old)
        if present and entry is not None:
            self.holdings.held(entry)
