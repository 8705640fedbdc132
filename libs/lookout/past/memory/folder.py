"""Stores a growing memory on disk. It survives SIGKILL at any instruction, full disks and damaged bytes.

A folder contains a checkpoint and the records written since. The checkpoint consists of files of slabs, and
an index with each cluster's byte range and checksum. The index is renamed into place last, when all files
that it refers to have reached the disk. Records (added blocks, and clusters fetched by answers) are appended
and synced. Opening the folder reads the newest index and replays the records, which restores the same memory,
bit for bit.

Every file has checksums. Opening a damaged folder fails unless `salvage` is given, which continues without
the damaged parts.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import structlog
import torch

from lookout.disk import private_folder, replace_file, sync_folder, write_file
from lookout.past.memory.clusters import Cluster
from lookout.past.memory.errors import DamagedMemoryError, HistoryError
from lookout.past.memory.files import (
    FORMAT,
    META,
    META_COPY,
    bytes_of,
    index_path,
    lock,
    lock_of,
    log_path,
    read_index,
    read_meta,
    versions,
)
from lookout.past.memory.history import CameraMemory
from lookout.past.memory.index import (
    Place,
    Seat,
    block_arrays,
    block_header,
    block_of,
    pack_index,
    restore,
    seats,
)
from lookout.past.memory.log import RecordLog
from lookout.past.memory.packing import DamagedBytes, PackedRecord, checksum, ints, pack, records, unpack_file
from lookout.past.memory.sealed import sweep, write_sealed
from lookout.past.memory.types import (
    BornBlock,
    Extent,
    Keep,
    KVShape,
    MemorySettings,
    Prefix,
    SplitMode,
    ThresholdRule,
    raw,
)

log = structlog.get_logger(__name__)


class MemoryFolder:
    """A camera's growing memory in a folder. One process at a time owns it and adds blocks; others may read
    it.

    Attributes:
        folder: the folder.
        memory: the memory.
        about: facts about the memory, as JSON.
        every: number of records between checkpoints.
        version: number of the newest checkpoint.
        fed_s: when a block was last added, Unix seconds.
        damage: sentences about damaged parts that were found.
    """

    def __init__(
        self, folder: Path, memory: CameraMemory, about: Mapping[str, Any], *, every: int = 64
    ) -> None:
        """Call `create` or `open` instead."""
        self.folder, self.memory, self.about, self.every = folder, memory, dict(about), every
        self.version = 0
        self.fed_s = time.time()
        self.damage: list[str] = []
        self._pending = 0
        self._stale = False  # whether an older checkpoint was read, because the newest is damaged
        self._places: dict[int, Place] = {}
        self._lock = threading.RLock()
        self._log: RecordLog | None = None
        self._owner: IO[str] | None = None

    # Making and opening.

    @classmethod
    def create(
        cls,
        folder: Path | str,
        shape: KVShape,
        prefix: Prefix,
        settings: MemorySettings | None = None,
        *,
        bias: torch.Tensor | None = None,
        keep: Keep | None = None,
        about: Mapping[str, Any] | None = None,
        every: int = 64,
    ) -> Self:
        """Create a memory in an empty or missing folder.

        Args:
            folder: the folder.
            shape: shape of one token's KV.
            prefix: the system prefix.
            settings: how the memory is built; None: the defaults.
            bias: bias of the key projections, as in `CameraMemory`.
            keep: limits of the KV to keep; None: no limits.
            about: facts about the memory, as JSON.
            every: number of records between checkpoints.

        Raises:
            HistoryError: the folder contains a memory already, or a file could not be written.
        """
        path = private_folder(folder)
        if (path / META).exists():
            raise HistoryError(f"{path} already contains a memory; open it, or give another folder")
        memory = CameraMemory(shape, prefix, settings, bias=bias, keep=keep)
        created = cls(path, memory, about or {}, every=every)
        created._owner = lock(path)
        header = {
            "format": FORMAT,
            "about": created.about,
            "shape": {**asdict(shape), "dtype": str(shape.dtype).removeprefix("torch.")},
            "settings": asdict(memory.settings),
            "keep": asdict(memory.keep),
        }
        arrays: dict[str, Any] = {
            "positions": prefix.positions,
            "keys": prefix.keys,
            "values": prefix.values,
            "bias": memory.bias,
        }
        try:
            data = pack(header, arrays)
            # Write the copy first, because the folder counts as a memory as soon as META exists.
            replace_file(path / META_COPY, data)
            replace_file(path / META, data)
            created._log = RecordLog(log_path(path, 0), fresh=True)
        except OSError as error:
            created._release()
            raise HistoryError(f"{path}: a memory could not be created ({error.strerror})") from error
        return created

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        owner: bool = True,
        every: int = 64,
        verify: bool = True,
        salvage: bool = False,
    ) -> Self:
        """Open a folder's memory in the state after its last complete record.

        Args:
            folder: a folder that `create` made.
            owner: whether to own the memory and add blocks; otherwise it is only read, and another process
                may own it.
            every: number of records between checkpoints.
            verify: whether to compare every slab with its checksum.
            salvage: whether to continue without damaged parts, which `damage` then lists. The owner also
                rewrites the folder without them.

        Raises:
            DamagedMemoryError: files are missing or damaged; nothing in the folder was changed.
            OwnedMemoryError: another process owns the memory.
            HistoryError: the folder contains no memory.
        """
        path = Path(folder)
        if owner:
            return cls._open(path, every=every, verify=verify, salvage=salvage, owner=lock_of(path))
        while True:
            checkpoints = versions(path)
            try:
                return cls._open(path, every=every, verify=verify, salvage=salvage, owner=None)
            except DamagedMemoryError:
                # Try again if the owner has written a checkpoint meanwhile, and removed the previous one's
                # files.
                if versions(path) == checkpoints:
                    raise

    @classmethod
    def _open(cls, path: Path, *, every: int, verify: bool, salvage: bool, owner: IO[str] | None) -> Self:
        try:
            meta = PackedRecord.of(read_meta(path))
            opened = cls(path, _memory_of(meta), meta.header["about"], every=every)
            opened._owner = owner
            opened._read(verify)
            if opened.damage and not salvage:
                raise DamagedMemoryError(
                    f"{'; '.join(opened.damage[:3])}{' and more' * (len(opened.damage) > 3)}. "
                    "Run `lookout memory repair` to continue without the lost parts"
                )
            if owner is not None:
                opened._continue_as_owner()
        except BaseException:
            if owner is not None:
                owner.close()
            raise
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Changing: a change is applied and recorded, or neither.

    def add(self, block: BornBlock) -> None:
        """Add a closed block, and record it.

        Raises:
            HistoryError: the block does not fit the memory, or its record could not be written; the memory is
                unchanged.
        """
        with self._lock:
            fed_s = time.time()
            with self.memory.change():
                self.memory.add(block)
                self._append(
                    {"kind": "block", "fed_s": fed_s, **block_header(block)}, block_arrays(block, "")
                )
            self.fed_s = fed_s
            self._recorded()

    def settle(self, fetched: Mapping[int, Iterable[int]]) -> None:
        """Carry out deferred splits of the clusters that an answer fetched, and record the fetches.

        Args:
            fetched: ids of the fetched clusters, by layer.

        Raises:
            HistoryError: the record could not be written; the memory is unchanged.
        """
        ids_by_layer = {layer: sorted(ids) for layer, ids in fetched.items()}
        with self._lock:
            with self.memory.change():
                self.memory.settle(ids_by_layer)
                self._append({"kind": "fetched", "ids": ids_by_layer}, {})
            self._recorded()

    def seal(self) -> None:
        """Turn the folder into a sealed memory (`sealed`), and close it.

        Raises:
            HistoryError: the memory is empty or a file could not be written (the memory is unchanged), or a
                file of the growing memory could not be removed.
        """
        with self._lock:
            if self._owner is None:
                raise HistoryError(f"{self.folder}: this memory is closed, or was opened only for reading")
            try:
                with self.memory.change():
                    self.memory.seal()
                    snapshot = self.memory.snapshot()
                    head = write_sealed(self.folder, snapshot, self.memory.shape, self.about, self.fed_s)
            except Exception:
                raise
            except BaseException:
                # An interrupt may have come after the head was written, so the state is unknown until the
                # folder is opened again.
                self._release()
                raise
            try:
                sweep(self.folder, head)
            finally:
                self._release()

    def forget(self, begin_us: int, end_us: int) -> int:
        """Erase a range of stream time (microseconds). When this returns, no file in the folder contains data
        of the range.

        Returns:
            The number of frames erased.

        Raises:
            HistoryError: the checkpoint could not be written (nothing was erased), or a file of the previous
                checkpoint could not be removed (erase the range again).
        """
        with self._lock:
            with self.memory.change():
                count = self.memory.forget(begin_us, end_us)
                self._write_checkpoint(again=True)
            self._sweep()
            return count

    def close(self) -> None:
        """Write a checkpoint if there are new records, and release the files.

        Raises:
            HistoryError: the checkpoint could not be written. Nothing is lost, because the records remain.
        """
        with self._lock:
            try:
                if self._log is not None and self._pending:
                    self.checkpoint()
            finally:
                self._release()

    def _release(self) -> None:
        if self._log is not None:
            self._log.close()
        if self._owner is not None:
            self._owner.close()
        self._log = self._owner = None

    @property
    def extent(self) -> Extent:
        """The frames and times that the memory covers."""
        times = self.memory.table.times_us.all
        return Extent(len(times), self.memory.covered_from_us, int(times[-1]) if len(times) else None)

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files in the folder."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    def _append(self, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        if self._log is None:
            raise HistoryError(f"{self.folder}: this memory is closed, or was opened only for reading")
        self._log.append(pack(header, arrays))

    def _recorded(self) -> None:
        """Count a record that is on the disk, and write a checkpoint if one is due. If the checkpoint fails,
        the records remain, so the caller's change is safe; it is tried again after the next record."""
        self._pending += 1
        if self._pending < self.every:
            return
        try:
            self.checkpoint()
        except (HistoryError, RuntimeError, MemoryError) as error:
            log.warning(
                "a memory's checkpoint could not be written; trying again",
                folder=str(self.folder),
                error=str(error),
            )

    # Checkpoints.

    def checkpoint(self) -> None:
        """Write what has changed since the last checkpoint, then the new index; then remove files that are no
        longer needed.

        Raises:
            HistoryError: a file could not be written. Nothing is lost, because the last checkpoint and its
                records remain.
        """
        with self._lock:
            self._write_checkpoint()
            self._sweep()

    def _write_checkpoint(self, again: bool = False) -> None:
        """Write a checkpoint. It becomes valid with its index; until then, this object does not change. With
        `again`, all slabs are written, including those that are already in files."""
        if self._owner is None:
            raise HistoryError(f"{self.folder}: this memory is closed, or was opened only for reading")
        version = self.version + 1
        slabs, index = self.folder / f"slabs-{version:08d}.bin", index_path(self.folder, version)
        fresh_log: RecordLog | None = None
        try:
            clusters = seats(self.memory)
            places = {} if again else self._dense_places(clusters)
            places = self._write_slabs(slabs, clusters, places)
            data = pack_index(self.memory, clusters, places)
            # Create the log before the index, so that no record is written to an older checkpoint's log.
            fresh_log = RecordLog(log_path(self.folder, version), fresh=True)
            replace_file(index, data)
            os.utime(index, (self.fed_s, self.fed_s))
        except Exception as error:
            for path in (slabs, index, log_path(self.folder, version)):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            if fresh_log is not None:
                fresh_log.close()
            if isinstance(error, OSError):
                raise HistoryError(
                    f"{self.folder}: a checkpoint could not be written ({error.strerror})"
                ) from error
            raise
        except BaseException:
            # An interrupt may have come after the new index was written, so the state is unknown until the
            # folder is opened again.
            self._release()
            raise
        old, self._log = self._log, fresh_log
        self.version, self._pending, self._places = version, 0, places
        if old is not None:
            old.close()

    def _write_slabs(
        self, path: Path, clusters: Iterable[Seat], places: Mapping[int, Place]
    ) -> dict[int, Place]:
        """Write a file with all slabs that are not in a file yet. Return the places of all slabs, by cluster
        id."""
        out: dict[int, Place] = {}
        fresh: list[Cluster] = []
        offset = 0
        for _, _, cluster in clusters:
            place = places.get(cluster.id)
            if place is not None and place.count == cluster.count:
                out[cluster.id] = place
            else:
                fresh.append(cluster)
        if not fresh:
            return out
        parts = []
        for cluster in fresh:
            data = raw(cluster.slab.data)
            out[cluster.id] = Place(path.name, offset, cluster.count, checksum(data.data))
            parts.append(data.data)
            offset += len(data)
        write_file(path, parts)
        sync_folder(self.folder)
        return out

    def _dense_places(self, clusters: Iterable[Seat]) -> dict[int, Place]:
        """Return the places of slabs, omitting those in files of which less than half is in use. Their slabs
        are then written again, so that the files can be removed."""
        per_token = self.memory.shape.token_bytes
        counts = {cluster.id: cluster.count for _, _, cluster in clusters}
        living: dict[str, int] = {}
        for number, place in self._places.items():
            if counts.get(number) == place.count:
                living[place.file] = living.get(place.file, 0) + place.count * per_token
        sparse = {
            name
            for name, size in living.items()
            if (self.folder / name).is_file() and size < (self.folder / name).stat().st_size / 2
        }
        return {number: place for number, place in self._places.items() if place.file not in sparse}

    def _sweep(self) -> None:
        """Remove files that neither the checkpoint nor the current records need.

        Raises:
            HistoryError: a file could not be removed.
        """
        current = {index_path(self.folder, self.version).name, log_path(self.folder, self.version).name}
        current |= {place.file for place in self._places.values()}
        for pattern in ("index-*.bin", "records-*.log", "slabs-*.bin", "*.part", "manifest.json"):
            for path in self.folder.glob(pattern):
                if path.name in current:
                    continue
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise HistoryError(f"{path}: the file cannot be removed ({error.strerror})") from error
        sync_folder(self.folder)

    # Reading.

    def _read(self, verify: bool) -> None:
        """Read the checkpoint, then the records since. Damaged parts are skipped, and added to `damage`."""
        numbers = versions(self.folder) or versions(self.folder, "records")[-1:]
        begin = self.version = max(numbers, default=0)
        try:
            begin, stored = read_index(self.folder)
        except DamagedMemoryError as error:
            self.damage.append(f"{error}; everything before the records after this checkpoint is lost")
        else:
            if stored is not None:
                self._restore(index_path(self.folder, begin), PackedRecord.of(stored), verify)
        self._stale = begin != self.version
        for version in range(begin, self.version + 1):
            self._replay(log_path(self.folder, version))

    def _restore(self, index: Path, record: PackedRecord, verify: bool) -> None:
        try:
            self._places = restore(self.memory, record, self.folder, verify, self.damage.append)
        except (KeyError, TypeError) as error:
            raise DamagedMemoryError(f"{index}: the file is damaged: it is not a memory's index") from error
        self.fed_s = index.stat().st_mtime

    def _replay(self, path: Path) -> None:
        """Replay the records since a checkpoint. A record that is cut short at the end is ignored."""
        newest = "the checkpoint"
        for record in records(memoryview(bytes_of(path)), str(path)):
            if isinstance(record, DamagedBytes):
                self.damage.append(
                    f"{path}: bytes {record.begin} to {record.end}, after {newest}, are damaged: their "
                    "checksum does not match; the records in them are lost"
                )
                continue
            try:
                self._replay_record(record)
            except (HistoryError, KeyError, TypeError) as error:
                self.damage.append(f"{path}: the record at byte {record.begin} cannot be replayed ({error})")
            self._pending += 1
            if record.header.get("kind") == "block":
                newest = f"block {record.header.get('index')}"

    def _replay_record(self, record: PackedRecord) -> None:
        header = record.header
        kind = header.get("kind")
        if kind == "block":
            self.memory.add(block_of(header, record.arrays, ""))
            self.fed_s = float(header.get("fed_s", self.fed_s))
        elif kind == "fetched":
            self.memory.settle({int(layer): ids for layer, ids in header["ids"].items()})
        else:
            raise HistoryError(f"{self.folder}: a record has the unknown kind {kind!r}")

    def _continue_as_owner(self) -> None:
        """Prepare the folder for its owner: repair it, and open the log after its last record.

        Raises:
            HistoryError: the folder cannot be written to.
        """
        try:
            _heal_meta(self.folder)
            self._log = RecordLog(log_path(self.folder, self.version))
            end = max((r.end for r in records(memoryview(bytes_of(self._log.path)), "")), default=0)
            self._log.cut_at(end)
        except OSError as error:
            raise HistoryError(
                f"{self.folder}: the folder cannot be written to ({error.strerror})"
            ) from error
        if self.damage or self._stale:
            self.checkpoint()
        else:
            self._sweep()


def _heal_meta(folder: Path) -> None:
    """Restore META from its copy, or the copy from META, if one of them is damaged."""
    contents = {name: bytes_of(folder / name) for name in (META, META_COPY)}
    if contents[META] != contents[META_COPY]:
        intact = next(name for name in contents if _is_record(contents[name]))
        replace_file(folder / (META_COPY if intact == META else META), contents[intact])


def _is_record(data: bytes) -> bool:
    try:
        unpack_file(data, "")
    except DamagedMemoryError:
        return False
    return True


def _memory_of(meta: PackedRecord) -> CameraMemory:
    header, arrays = meta.header, meta.arrays
    shape = {**header["shape"], "dtype": getattr(torch, header["shape"]["dtype"])}
    settings = header["settings"]
    settings |= {"rule": ThresholdRule(settings["rule"]), "split": SplitMode(settings["split"])}
    return CameraMemory(
        KVShape(**shape),
        Prefix(ints(arrays["positions"]), arrays["keys"], arrays["values"]),
        MemorySettings(**settings),
        bias=arrays["bias"],
        keep=Keep(**header["keep"]),
    )
