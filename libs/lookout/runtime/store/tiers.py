"""The tiers in which a process holds tensors: memory, disk, and a reserve."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import structlog

from lookout.runtime.store.accounting import TierAccounting
from lookout.runtime.store.errors import StoreFullError, TensorCorruptError
from lookout.runtime.store.labels import Label, camera_entries
from lookout.runtime.store.settings import StoreSettings
from lookout.runtime.store.spool import Spool
from lookout.runtime.store.tensors import Array

_log = structlog.get_logger(__name__)


class _Place(Enum):
    MEMORY = 1
    SPILLING = 2  # counted on disk, still readable in memory
    DISK = 3
    RESERVE = 4


@dataclass(slots=True)
class Held:
    """A tensor and its tier. `array` is None while the tensor is only on disk."""

    label: Label
    place: _Place
    array: Array | None
    pinned: bool = False


@dataclass(slots=True)
class _Counts:
    hits: int = 0
    misses: int = 0
    evicted: int = 0
    corrupt: int = 0


class Tiers:
    """Keeps tensors within the budgets of memory, disk and reserve; evicts the least recently used ones
    first.

    Pinned tensors are moved from memory to disk and never evicted. `read` and `write` access the disk and
    take the lock themselves; everything else must be called under `lock`.

    Args:
        settings: Budgets, and the folder of the disk tier.
        kept: Called with the label of each new tensor, under the lock.
        left: Called with the label of each tensor that leaves, under the lock.
    """

    def __init__(
        self, settings: StoreSettings, kept: Callable[[Label], None], left: Callable[[Label], None]
    ) -> None:
        self.lock = threading.RLock()
        self.counts = _Counts()
        self.memory = TierAccounting(settings.memory_bytes)
        self.disk = TierAccounting(settings.disk_bytes if settings.spool else 0)
        self.reserve = TierAccounting(settings.reserve_bytes)
        self._kept, self._left = kept, left
        self._spool = Spool(settings.spool) if settings.spool else None
        self._held: dict[str, Held] = {}
        self._recover()

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def pinned_bytes(self) -> int:
        """Bytes of pinned tensors."""
        return self.memory.pinned_bytes + self.disk.pinned_bytes

    def keys_of(self, camera: str) -> list[str]:
        """Return the keys of a camera's tensors. Call it under the lock."""
        prefix = camera_entries(camera)
        return [key for key, entry in self._held.items() if entry.label.entry.startswith(prefix)]

    # -- coming

    def add(self, label: Label, array: Array, *, pinned: bool) -> list[Held]:
        """Hold a tensor that this process computed for the pipeline.

        If the tensor is already held, it stays; if it is in the reserve, it is moved out of the reserve.

        Returns:
            Tensors that the caller must pass to `write` after releasing the lock.

        Raises:
            StoreFullError: The tensor is pinned, and other pinned tensors leave no room. An unpinned
                tensor is dropped instead.
        """
        present = self._held.get(label.key)
        if present is not None and present.place is _Place.RESERVE:
            self.forget(label.key)
            present = None
        if present is not None:
            if pinned:
                self.pin(label.key)
            return []
        newcomer = Held(label, _Place.MEMORY, array, pinned)
        leaving = self.memory.victims(label.length, pinned_too=pinned)
        if leaving is None:
            return self._add_to_disk(newcomer)
        needed = sum(self.memory.size(key) for key in leaving if self.memory.pinned(key))
        if self.disk.victims(needed) is None:
            raise self._full(newcomer)
        # Pinned tensors are moved first, while the room that was just counted is free.
        leaving.sort(key=lambda key: not self.memory.pinned(key))
        spilling = [moved for key in leaving if (moved := self._leave_memory(key))]
        self.memory.add(label.key, label.length, pinned)
        self._keep(newcomer)
        return spilling

    def add_to_reserve(self, label: Label, array: Array) -> None:
        """Hold a tensor that was recomputed on request, unless it is already held or larger than the
        reserve.
        """
        if label.key in self._held:
            return
        victims = self.reserve.victims(label.length)
        if victims is None:
            return
        for key in victims:
            self._evict(key)
        self.reserve.add(label.key, label.length, pinned=False)
        self._keep(Held(label, _Place.RESERVE, array))

    def write(self, spilling: Iterable[Held]) -> None:
        """Write the tensors that `add` returned to disk. Call it without the lock."""
        for entry in spilling:
            array = entry.array
            if self._spool is None or array is None:
                continue
            key = entry.label.key
            try:
                self._spool.write(entry.label, array)
            except OSError as error:
                # The tensor is dropped, because a broken disk must not let memory grow without limit. It can
                # be recomputed.
                _log.error("spool write failed", key=key, folder=str(self._spool.folder), error=str(error))
                with self.lock:
                    if self._held.get(key) is entry:
                        self._evict(key)
                continue
            with self.lock:
                now = self._held.get(key)
                if now is entry and entry.place is _Place.SPILLING:
                    entry.place, entry.array = _Place.DISK, None
                elif now is None or now.place not in (_Place.SPILLING, _Place.DISK):
                    self._spool.remove(key)  # evicted in the meantime, and no other entry uses the file

    # -- staying

    def pin(self, key: str) -> None:
        """Protect a tensor from eviction, if it is held."""
        entry = self._held[key]
        entry.pinned = True
        self._tier(entry.place).pin(key)

    def unpin(self, keys: Iterable[str]) -> None:
        """Allow these tensors to be evicted again."""
        for key in keys:
            entry = self._held.get(key)
            if entry is not None and entry.pinned:
                entry.pinned = False
                self._tier(entry.place).unpin(key)

    def read(self, key: str) -> Array | None:
        """Return a tensor; None if it is not held or is damaged. Call it without the lock, because it may
        read from disk.
        """
        with self.lock:
            entry = self._held.get(key)
            if entry is None:
                self.counts.misses += 1
                return None
            self._tier(entry.place).touch(key)
            array = entry.array
        if array is None and self._spool is not None:
            array = self._read_disk(entry)
        with self.lock:
            self.counts.hits += array is not None
            self.counts.misses += array is None
        return array

    def _read_disk(self, held: Held) -> Array | None:
        assert self._spool is not None
        try:
            return self._spool.read(held.label)
        except TensorCorruptError as error:
            key = held.label.key
            with self.lock:
                lost = self._held.get(key) is held  # otherwise it was evicted while it was read
                if lost:
                    self.counts.corrupt += 1
                    self.forget(key)
            if lost:
                # Logged outside the lock, because a slow log must not delay every reader.
                _log.warning("spooled tensor lost", key=key, error=str(error))
            return None

    # -- going

    def forget(self, key: str) -> None:
        """Drop a tensor, pinned or not, if it is held."""
        entry = self._held.get(key)
        if entry is None:
            return
        self._tier(entry.place).remove(key)
        if self._spool is not None and entry.place is _Place.DISK:
            self._spool.remove(key)
        self._leave(entry)

    def _evict(self, key: str) -> None:
        self.counts.evicted += 1
        self.forget(key)

    # -- inside

    def _add_to_disk(self, held: Held) -> list[Held]:
        if self._take_disk(held):
            self._keep(held)
            return [held]
        if held.pinned:
            raise self._full(held)
        return []

    def _leave_memory(self, key: str) -> Held | None:
        """Move a tensor from memory to disk and return it. If the disk has no room, evict the tensor and
        return None; this never happens to unread tensors.
        """
        entry = self._held[key]
        self.memory.remove(key)
        if self._take_disk(entry):
            return entry
        self.counts.evicted += 1
        self._leave(entry)
        return None

    def _take_disk(self, held: Held) -> bool:
        victims = self.disk.victims(held.label.length)
        if victims is None:
            return False
        for key in victims:
            self._evict(key)
        self.disk.add(held.label.key, held.label.length, held.pinned)
        held.place = _Place.SPILLING
        return True

    def _recover(self) -> None:
        """Take over the files that an earlier process of this pod left in the spool."""
        if self._spool is None:
            return
        for label in self._spool.labels():
            # The folder may exceed a lowered budget. The oldest files come first, so the newest files are
            # removed.
            if label.key in self._held or self.disk.victims(label.length) != []:
                self._spool.remove(label.key)
            else:
                self.disk.add(label.key, label.length, pinned=False)
                self._keep(Held(label, _Place.DISK, None))

    def _full(self, held: Held) -> StoreFullError:
        return StoreFullError(
            f"no room for {held.label.key} ({held.label.length} bytes): {self.pinned_bytes} bytes are "
            f"unread; check the consumer's lag, or raise memory_bytes or disk_bytes"
        )

    def _tier(self, place: _Place) -> TierAccounting:
        if place is _Place.MEMORY:
            return self.memory
        return self.reserve if place is _Place.RESERVE else self.disk

    def _keep(self, held: Held) -> None:
        self._held[held.label.key] = held
        self._kept(held.label)

    def _leave(self, held: Held) -> None:
        del self._held[held.label.key]
        self._left(held.label)
