"""The tensor store of one process: memory, then disk, and a reserve for what is made again on request."""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import structlog
from google.protobuf.message import Message

from lookout.store.accounting import TierAccounting
from lookout.store.errors import CameraQuotaError, StoreError, StoreFullError, TensorCorruptError
from lookout.store.settings import StoreSettings
from lookout.store.spool import Label, Spool
from lookout.store.tensors import Array, Rows, checksum, numpy_dtype, select
from lookout.store.unread import Gauge, Pressure, Unread, UnreadIndex
from lookout.v1.lineage_pb2 import TensorRef

__all__ = ["Holdings", "Materializer", "StoreStats", "TensorStore", "entry_of"]

Materializer = Callable[[TensorRef, Message], Array]
"""Makes a tensor again from its reference and the record that carries it: a pure function of these and the
segments' bytes. Raises LineageBrokenError where that cannot be."""

_log = structlog.get_logger(__name__)


class Holdings(Protocol):
    """Hears which directory entries a store begins and ceases to hold."""

    def held(self, entry: str) -> None: ...

    def dropped(self, entry: str) -> None: ...


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Bytes now, and counts since the start."""

    memory_bytes: int
    disk_bytes: int
    reserve_bytes: int
    pinned_bytes: int
    tensors: int
    hits: int
    misses: int
    evicted: int
    corrupt: int
    materialized: int


class _Place(Enum):
    MEMORY = 1
    SPILLING = 2  # counted on disk, still readable in memory
    DISK = 3
    RESERVE = 4


@dataclass(slots=True)
class _Entry:
    label: Label
    camera: str
    place: _Place
    array: Array | None
    unread: Unread | None = None


@dataclass(slots=True)
class _Counts:
    hits: int = 0
    misses: int = 0
    evicted: int = 0
    corrupt: int = 0
    materialized: int = 0


def entry_of(ref: TensorRef) -> str:
    """The directory's key for a tensor: one for each input record and stage, with the camera as hash tag."""
    camera = ref.camera.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    source = ref.input
    made_from = f"{source.topic}/{source.partition}/{source.offset}" if ref.HasField("input") else ref.id
    return f"lookout:{{{camera}}}:{ref.stage}:{made_from}"


class TensorStore:
    """Tensors of one process by reference. Thread-safe; arrays come back read-only and shared.

    Tensors that nobody has read yet (`put(..., unread=)`) are never evicted, only moved to disk; `published`
    and `consumed` say when they have been read, `pressure` names the partitions that should pause meanwhile.
    """

    def __init__(self, settings: StoreSettings, holdings: Holdings | None = None) -> None:
        self.settings = settings
        self.holdings = holdings
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._lines: dict[str, int] = {}  # directory entry -> tensors held under it
        self._lost: list[str] = []  # directory entries to take back, told outside the lock
        self._memory = TierAccounting(settings.memory_bytes)
        self._disk = TierAccounting(settings.disk_bytes if settings.spool else 0)
        self._reserve = TierAccounting(settings.reserve_bytes)
        self._spool = Spool(settings.spool) if settings.spool else None
        self._counts = _Counts()
        self._unread = UnreadIndex()
        self._pressure: tuple[int, Pressure] | None = None  # at which change of the index it was read
        self._gauge = Gauge(settings.unread_bytes, settings.unread_seconds)
        self._materializers: dict[int, Materializer] = {}
        self._making: dict[str, Future[Array]] = {}
        self._slots = threading.BoundedSemaphore(settings.reserve_workers)
        self._recover()

    # -- holding

    def put(
        self, ref: TensorRef, array: Array, unread: Unread | None = None, dtype: str | None = None
    ) -> TensorRef:
        """Hold `array` and return `ref` with shape, dtype, length and checksum filled in.

        The array must not be written to afterwards. `dtype="bfloat16"` takes its bits in uint16. A tensor
        already held stays; its pin is renewed. Without `unread` a full store forgets the newcomer rather
        than something unread. Raises StoreFullError where unread tensors leave no room, CameraQuotaError
        where those of this camera do, and TensorCorruptError for a dtype that cannot travel.
        """
        label, array = _labelled(ref, array, dtype)
        spilling: list[_Entry] = []
        with self._lock:
            entry = self._entries.get(label.key)
            if entry is not None and entry.place is _Place.RESERVE:
                self._forget(label.key)  # made on request before; now the pipeline's own
                entry = None
            if unread is not None and label.key not in self._unread:
                self._check_quota(ref.camera, label)
            if entry is None:
                spilling = self._admit(_Entry(label, ref.camera, _Place.MEMORY, array, unread))
            elif unread is not None:
                entry.unread = unread
                self._unread.add(label.key, ref.camera, label.length, unread)
                self._ledger(entry.place).pin(label.key)
        self._write(spilling)
        self._tell(label)
        return _filled(ref, label)

    def get(self, ref: TensorRef, rows: Rows | None = None) -> Array | None:
        """The tensor, or rows of it, where this process holds it intact; else None."""
        array = self._whole(ref.id)
        return None if array is None else select(array, rows)

    def drop(self, ref: TensorRef) -> None:
        """Forget a tensor, pinned or not."""
        with self._lock:
            self._forget(ref.id)
        self._tell()

    def __contains__(self, ref: object) -> bool:
        return isinstance(ref, TensorRef) and ref.id in self._entries

    def lines(self) -> list[str]:
        """The directory entries this store holds tensors of."""
        with self._lock:
            return list(self._lines)

    def stats(self) -> StoreStats:
        with self._lock:
            counts = self._counts
            return StoreStats(
                memory_bytes=self._memory.used,
                disk_bytes=self._disk.used,
                reserve_bytes=self._reserve.used,
                pinned_bytes=self._memory.pinned_bytes + self._disk.pinned_bytes,
                tensors=len(self._entries),
                hits=counts.hits,
                misses=counts.misses,
                evicted=counts.evicted,
                corrupt=counts.corrupt,
                materialized=counts.materialized,
            )

    # -- unread

    def published(self, refs: Iterable[TensorRef], partition: int, offset: int) -> None:
        """The record at `offset` of the output topic carries these references: they are read when it is."""
        with self._lock:
            for ref in refs:
                self._unread.published(ref.id, partition, offset)

    def consumed(self, partition: int, committed: int) -> None:
        """The consumer's committed offset (the next it will read) in the output topic."""
        with self._lock:
            self._unpin(self._unread.before(partition, committed))

    def consumed_all(self, committed: Mapping[int, int]) -> None:
        """`consumed` for every partition."""
        for partition, offset in committed.items():
            self.consumed(partition, offset)

    def release(self, refs: Iterable[TensorRef]) -> None:
        """Nobody will read these: their transaction was aborted. They stay as long as there is room."""
        with self._lock:
            self._unpin(ref.id for ref in refs)

    def release_partition(self, partition: int) -> None:
        """The partition was given away; what it holds stays as long as there is room."""
        with self._lock:
            self._unpin(self._unread.of_partition(partition))

    def release_camera(self, camera: str) -> None:
        """The camera was given away; what it holds stays as long as there is room."""
        with self._lock:
            self._unpin(self._unread.of_camera(camera))

    def unread_bytes(self, camera: str) -> int:
        """Bytes of a camera that nobody has read yet."""
        with self._lock:
            return self._unread.bytes_of(camera)

    def pressure(self) -> Pressure:
        """What waits to be read, and which partitions should pause."""
        with self._lock:
            if self._pressure is None or self._pressure[0] != self._unread.changes:
                self._pressure = self._unread.changes, self._gauge.read(self._unread)
            return self._pressure[1]

    def _unpin(self, keys: Iterable[str]) -> None:
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and entry.unread is not None:
                entry.unread = None
                self._unread.remove(key)
                self._ledger(entry.place).unpin(key)

    # -- making again

    def makes(self, stage: int, materializer: Materializer) -> None:
        """Register how tensors of a stage are made again."""
        self._materializers[stage] = materializer

    def can_make(self, ref: TensorRef) -> bool:
        return ref.stage in self._materializers

    def materialize(self, ref: TensorRef, record: Message, rows: Rows | None = None) -> Array:
        """The tensor as held, else made again and kept in the reserve. Requests at one time for one tensor
        are one.

        Raises what the materializer raises, TensorCorruptError where it gives another shape than the
        reference says, and StoreError where none is registered for the stage.
        """
        held = self._whole(ref.id)
        if held is not None:
            return select(held, rows)
        with self._lock:
            ours = ref.id not in self._making
            future = self._making.setdefault(ref.id, Future())
        if ours:
            try:
                future.set_result(self._make(ref, record))
            except BaseException as error:
                future.set_exception(error)
            finally:
                with self._lock:
                    del self._making[ref.id]
        return select(future.result(), rows)

    def _make(self, ref: TensorRef, record: Message) -> Array:
        maker = self._materializers.get(ref.stage)
        if maker is None:
            raise StoreError(f"this process cannot make tensors of stage {ref.stage} ({ref.id})")
        with self._slots:
            made = maker(ref, record)
        label, array = _labelled(ref, made, ref.dtype or None)
        if ref.shape and label.shape != tuple(ref.shape):
            raise TensorCorruptError(
                f"{ref.id} was made with shape {label.shape}; its record says {tuple(ref.shape)}"
            )
        with self._lock:
            self._counts.materialized += 1
            if label.key not in self._entries:
                self._admit_reserve(_Entry(label, ref.camera, _Place.RESERVE, array))
        self._tell(label)
        return array

    def _admit_reserve(self, entry: _Entry) -> None:
        victims = self._reserve.victims(entry.label.length)
        if victims is None:
            return  # larger than the reserve: handed over and forgotten
        for key in victims:
            self._evict(key)
        self._reserve.add(entry.label.key, entry.label.length, pinned=False)
        self._keep(entry)

    # -- tiers

    def _admit(self, entry: _Entry) -> list[_Entry]:
        """Find room for a newcomer; returns what has to be written to disk, outside the lock."""
        size, unread = entry.label.length, entry.unread is not None
        leaving = self._memory.victims(size, pinned_too=unread)
        if leaving is None:
            return self._admit_disk(entry)
        pinned = sum(self._memory.size(key) for key in leaving if self._memory.pinned(key))
        if self._disk.victims(pinned) is None:
            raise self._full(entry)
        # Unread ones go first: they must find the room that was just counted.
        leaving.sort(key=lambda key: not self._memory.pinned(key))
        spilling = [moved for key in leaving if (moved := self._leave_memory(key))]
        self._memory.add(entry.label.key, size, unread)
        self._keep(entry)
        return spilling

    def _admit_disk(self, entry: _Entry) -> list[_Entry]:
        if self._take_disk(entry):
            self._keep(entry)
            return [entry]
        if entry.unread is not None:
            raise self._full(entry)
        return []

    def _leave_memory(self, key: str) -> _Entry | None:
        """Move an entry from memory to disk; None where it was read already and disk has no room: it is
        evicted."""
        entry = self._entries[key]
        self._memory.remove(key)
        if self._take_disk(entry):
            return entry
        self._counts.evicted += 1
        self._unkeep(entry)
        return None

    def _take_disk(self, entry: _Entry) -> bool:
        victims = self._disk.victims(entry.label.length)
        if victims is None:
            return False
        for key in victims:
            self._evict(key)
        self._disk.add(entry.label.key, entry.label.length, entry.unread is not None)
        entry.place = _Place.SPILLING
        return True

    def _write(self, entries: list[_Entry]) -> None:
        for entry in entries:
            array = entry.array
            if self._spool is None or array is None:
                continue
            try:
                self._spool.write(entry.label, array)
            except OSError as error:
                # A broken disk must not turn into unbounded memory: the tensor can be made again.
                _log.error(
                    "spool write failed",
                    key=entry.label.key,
                    folder=str(self._spool.folder),
                    error=str(error),
                )
                with self._lock:
                    if self._entries.get(entry.label.key) is entry:
                        self._evict(entry.label.key)
                continue
            with self._lock:
                now = self._entries.get(entry.label.key)
                if now is entry and entry.place is _Place.SPILLING:
                    entry.place, entry.array = _Place.DISK, None
                elif now is None or now.place not in (_Place.SPILLING, _Place.DISK):
                    self._spool.remove(entry.label.key)  # evicted meanwhile, and nobody else's file

    def _whole(self, key: str) -> Array | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._counts.misses += 1
                return None
            self._ledger(entry.place).touch(key)
            array = entry.array
        if array is None and self._spool is not None:
            try:
                array = self._spool.read(entry.label)
            except TensorCorruptError as error:
                with self._lock:
                    lost = self._entries.get(key) is entry  # else it was evicted while we read
                    if lost:
                        self._counts.corrupt += 1
                        self._forget(key)
                if lost:
                    _log.warning("spooled tensor lost", key=key, error=str(error))
        with self._lock:
            self._counts.hits += array is not None
            self._counts.misses += array is None
        self._tell()
        return array

    def _recover(self) -> None:
        """Take over what an earlier process of this pod left in the spool."""
        if self._spool is None:
            return
        for label in self._spool.labels():
            entry = _Entry(label, "", _Place.DISK, None)
            if label.key in self._entries or self._disk.victims(label.length) != []:
                self._spool.remove(label.key)
            else:
                self._disk.add(label.key, label.length, pinned=False)
                self._keep(entry)

    # -- the books

    def _full(self, entry: _Entry) -> StoreFullError:
        pinned = self._memory.pinned_bytes + self._disk.pinned_bytes
        return StoreFullError(
            f"no room for {entry.label.key} ({entry.label.length} bytes): {pinned} bytes wait for their "
            "consumer; look at the consumer's lag, or raise memory_bytes or disk_bytes"
        )

    def _ledger(self, place: _Place) -> TierAccounting:
        if place is _Place.MEMORY:
            return self._memory
        return self._reserve if place is _Place.RESERVE else self._disk

    def _check_quota(self, camera: str, label: Label) -> None:
        held, limit = self._unread.bytes_of(camera), self.settings.camera_bytes
        if held and held + label.length > limit:
            raise CameraQuotaError(
                f"no room for {label.key} ({label.length} bytes): {held} bytes of camera {camera} wait for "
                f"their consumer, camera_bytes is {limit}"
            )

    def _keep(self, entry: _Entry) -> None:
        if entry.unread is not None:
            self._unread.add(entry.label.key, entry.camera, entry.label.length, entry.unread)
        self._entries[entry.label.key] = entry
        self._lines[entry.label.entry] = self._lines.get(entry.label.entry, 0) + 1

    def _unkeep(self, entry: _Entry) -> None:
        self._unread.remove(entry.label.key)
        del self._entries[entry.label.key]
        line = entry.label.entry
        self._lines[line] -= 1
        if self._lines[line] == 0:
            del self._lines[line]
            self._lost.append(line)

    def _evict(self, key: str) -> None:
        self._counts.evicted += 1
        self._forget(key)

    def _forget(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        self._ledger(entry.place).remove(key)
        if self._spool is not None and entry.place is _Place.DISK:
            self._spool.remove(key)
        self._unkeep(entry)

    def _tell(self, label: Label | None = None) -> None:
        with self._lock:
            lost = [line for line in self._lost if line not in self._lines]
            self._lost.clear()
            held = label is not None and label.key in self._entries
        if self.holdings is None:
            return
        for line in lost:
            self.holdings.dropped(line)
        if held and label is not None:
            self.holdings.held(label.entry)


def _labelled(ref: TensorRef, array: Array, dtype: str | None) -> tuple[Label, Array]:
    """The label of a tensor, and a contiguous read-only view of it."""
    if not ref.id:
        raise ValueError("a tensor reference needs an id")
    name = dtype or array.dtype.newbyteorder("=").name
    kind = numpy_dtype(name)
    if array.dtype.itemsize != kind.itemsize or (name != "bfloat16" and array.dtype.kind != kind.kind):
        raise TensorCorruptError(f"{ref.id} is {array.dtype}, not {name}")
    held = np.ascontiguousarray(array, dtype=kind).reshape(array.shape).view()
    held.flags.writeable = False
    return Label(ref.id, entry_of(ref), name, held.shape, held.nbytes, checksum(held)), held


def _filled(ref: TensorRef, label: Label) -> TensorRef:
    filled = TensorRef()
    filled.CopyFrom(ref)
    del filled.shape[:]
    filled.shape.extend(label.shape)
    filled.dtype, filled.length, filled.crc32c = label.dtype, label.length, label.crc32c
    return filled
