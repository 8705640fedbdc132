"""The facts that a list of memories shows, read from their files without torch, whose import takes longer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from lookout.disk import read_file
from lookout.past.memory.container import (
    ITEM_BYTES,
    DamagedBytes,
    StoredRecord,
    read_file_record,
    read_records,
)
from lookout.past.memory.errors import HistoryError
from lookout.past.memory.files import bytes_of, log_path, newest_head, read_index, read_meta, versions


@dataclass(frozen=True, slots=True)
class Extent:
    """What a memory covers.

    Attributes:
        frames: Number of frames so far, those no longer held included.
        first_us: Stream time of the oldest frame whose KV is held, microseconds; None: no KV is held.
        last_us: Stream time of the newest frame; None without frames.
    """

    frames: int
    first_us: int | None
    last_us: int | None


def extent_of(folder: Path) -> Extent | None:
    """Return what the memory of a folder covers, as `MemoryFolder.open` would find it.

    Returns:
        None if that is known only after opening it: something is damaged, or a limit may have dropped frames
        since the last checkpoint.
    """
    with contextlib.suppress(HistoryError, OSError, KeyError, TypeError, ValueError):
        head = newest_head(folder)
        return _extent(folder) if head is None else _sealed(head)
    return None


def _sealed(head: Path) -> Extent:
    arrays = read_file_record(read_file(head), str(head)).arrays
    times = arrays["times"].integers()
    first = next(compress(times, arrays["present"].data), None)
    return Extent(len(times), first, times[-1] if times else None)


def _extent(folder: Path) -> Extent | None:
    meta = read_meta(folder).header
    version, index = read_index(folder)
    if versions(folder)[:1] not in ([], [version]):
        return None
    times: list[int] = []
    places: list[int] = []  # numbers of frames whose KV is held, the oldest included
    if index is not None:
        if not _slabs_are_whole(folder, index, meta["shape"]):
            return None
        times += index.arrays["times"].integers()
        places += _oldest(index)
    for record in read_records(memoryview(bytes_of(log_path(folder, version))), ""):
        if isinstance(record, DamagedBytes):
            return None
        if record.header["kind"] == "block":
            if any(limit is not None for limit in meta["keep"].values()):
                return None
            added = record.arrays["times_us"].integers()
            places += [len(times)] if added else []
            times += added
    first = times[min(places)] if places else None
    return Extent(len(times), first, times[-1] if times else None)


def _oldest(index: StoredRecord) -> Iterator[int]:
    """Yield the oldest frame of the first layer's clusters, and that of each block that is not clustered
    yet."""
    layers, firsts = (index.arrays[name].integers() for name in ("c.layer", "c.first"))
    clustered = list(compress(firsts, (layer == 0 for layer in layers)))
    if clustered:
        yield min(clustered)
    for number, block in enumerate(index.header["open"]):
        if index.arrays[f"open{number}.times_us"].shape[0]:
            yield block["first_frame"]


def _slabs_are_whole(folder: Path, index: StoredRecord, shape: dict[str, Any]) -> bool:
    """Whether every file is long enough for all clusters in it; their checksums are not checked."""
    token_bytes = 2 * shape["kv_heads"] * shape["head_dim"] * ITEM_BYTES[shape["dtype"]]
    ends: dict[int, int] = {}
    columns = (index.arrays[f"c.{name}"].integers() for name in ("file", "offset", "count"))
    for file, offset, count in zip(*columns, strict=True):
        ends[file] = max(ends.get(file, 0), offset + count * token_bytes)
    names = index.header["names"]
    return all((folder / names[file]).stat().st_size >= end for file, end in ends.items())
