"""Counts the bytes of one tier and chooses what to evict: the least recently used entry first, pinned entries
last or never.
"""

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True)
class TierAccounting:
    """Sizes of the entries of one tier. Not thread-safe: the owner holds a lock."""

    budget: int
    used: int = 0
    pinned_bytes: int = 0
    _free: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _pinned: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def __contains__(self, key: str) -> bool:
        return key in self._free or key in self._pinned

    def __len__(self) -> int:
        return len(self._free) + len(self._pinned)

    def keys(self) -> list[str]:
        """Return all keys, least recently used first, pinned ones last."""
        return [*self._free, *self._pinned]

    def pinned(self, key: str) -> bool:
        return key in self._pinned

    def size(self, key: str) -> int:
        return self._free[key] if key in self._free else self._pinned[key]

    def add(self, key: str, size: int, pinned: bool) -> None:
        if key in self:
            raise ValueError(f"{key} is already in this tier")
        if self.used + size > self.budget:
            raise ValueError(
                f"{key} ({size} bytes) does not fit in this tier: {self.used} of {self.budget} bytes are used"
            )
        (self._pinned if pinned else self._free)[key] = size
        self.used += size
        self.pinned_bytes += size if pinned else 0

    def remove(self, key: str) -> None:
        pinned = key in self._pinned
        size = (self._pinned if pinned else self._free).pop(key)
        self.used -= size
        self.pinned_bytes -= size if pinned else 0

    def touch(self, key: str) -> None:
        (self._pinned if key in self._pinned else self._free).move_to_end(key)

    def pin(self, key: str) -> None:
        if key in self._free:
            self._pinned[key] = self._free.pop(key)
            self.pinned_bytes += self._pinned[key]

    def unpin(self, key: str) -> None:
        if key in self._pinned:
            self._free[key] = self._pinned.pop(key)
            self.pinned_bytes -= self._free[key]

    def victims(self, size: int, pinned_too: bool = False) -> list[str] | None:
        """Return the keys to evict so that `size` bytes fit, least recently used first; None if they cannot
        fit.
        """
        need = self.used + size - self.budget
        if need <= 0:
            return []
        victims: list[str] = []
        for entries in (self._free, self._pinned) if pinned_too else (self._free,):
            for key, length in entries.items():
                victims.append(key)
                need -= length
                if need <= 0:
                    return victims
        return None
