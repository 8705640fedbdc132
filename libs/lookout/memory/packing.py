"""One container for everything a memory writes: a JSON header and named arrays, with a checksum.

The lengths have a checksum of their own. So a record that was cut short (its lengths are intact, its bytes
end too early) differs from one that was damaged: the first was never acknowledged, the second was.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lookout.memory.types import DamagedMemoryError, HistoryError, Ints, raw

MAGIC = b"LKM2"
_LENGTHS = struct.Struct("<4sIQ")
_HEAD = struct.Struct("<4sIQI16s")

Array = torch.Tensor | np.ndarray[Any, Any]


class CutShortError(HistoryError):
    """The bytes end before the record does."""


@dataclass(frozen=True, slots=True)
class PackedRecord:
    """One record that was read: its header, its arrays (copies), and its bytes [begin, end) in the file."""

    header: dict[str, Any]
    arrays: dict[str, torch.Tensor]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """Bytes [begin, end) of a file of records that hold no intact record."""

    begin: int
    end: int


def checksum(*parts: bytes | memoryview) -> bytes:
    """16 bytes of BLAKE2b over all parts."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()


def pack(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """One record: lengths and their checksum, the checksum of the rest, header, the arrays' bytes in turn."""
    bodies, described = [], []
    for name, array in arrays.items():
        bodies.append(raw(array).tobytes() if isinstance(array, torch.Tensor) else array.tobytes())
        described.append([name, str(array.dtype).removeprefix("torch."), list(array.shape)])
    body = b"".join(bodies)
    head = json.dumps({**header, "arrays": described}, separators=(",", ":")).encode()
    lengths = zlib.crc32(_LENGTHS.pack(MAGIC, len(head), len(body)))
    return _HEAD.pack(MAGIC, len(head), len(body), lengths, checksum(head, body)) + head + body


def unpack(data: memoryview, where: str, begin: int = 0) -> PackedRecord:
    """Read the record that begins at byte `begin`; `where` is named in errors.

    Raises:
        CutShortError: It is not there to its end.
        DamagedMemoryError: Its checksum does not match.
    """
    tail = data[begin:]
    # A file that was made longer before its bytes were written ends in zeros: no record begins so.
    if len(tail) < _HEAD.size or not (any(tail[: _HEAD.size]) or np.frombuffer(tail, np.uint8).any()):
        raise CutShortError(f"{where}: the record at byte {begin} is cut short")
    magic, head_size, body_size, lengths, expected = _HEAD.unpack(tail[: _HEAD.size])
    if magic != MAGIC or zlib.crc32(tail[: _LENGTHS.size]) != lengths:
        raise DamagedMemoryError(f"{where}: the record at byte {begin} is damaged: it does not begin as one")
    stop = _HEAD.size + head_size + body_size
    if len(tail) < stop:
        raise CutShortError(f"{where}: the record at byte {begin} is cut short")
    head, body = tail[_HEAD.size : _HEAD.size + head_size], tail[_HEAD.size + head_size : stop]
    if checksum(head, body) != expected:
        raise DamagedMemoryError(
            f"{where}: the record at byte {begin} is damaged: its checksum does not match"
        )
    header: dict[str, Any] = json.loads(bytes(head))
    arrays, place = {}, 0
    for name, kind, shape in header.pop("arrays"):
        dtype: torch.dtype = getattr(torch, kind)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        flat = torch.frombuffer(bytearray(body[place : place + size]), dtype=dtype) if size else None
        arrays[name] = torch.zeros(shape, dtype=dtype) if flat is None else flat.view(shape)
        place += size
    return PackedRecord(header, arrays, begin, begin + stop)


def unpack_file(data: bytes, where: str) -> PackedRecord:
    """Read a file that is one record.

    Raises:
        DamagedMemoryError: It is damaged, cut short, or longer than its record.
    """
    try:
        record = unpack(memoryview(data), where)
    except CutShortError as error:
        raise DamagedMemoryError(f"{where}: damaged: it is cut short") from error
    if record.end != len(data):
        raise DamagedMemoryError(f"{where}: damaged: {len(data) - record.end} bytes follow its record")
    return record


def records(data: memoryview, where: str) -> Iterator[PackedRecord | DamagedBytes]:
    """The records of a file in their order. Damaged bytes end where the next intact record begins; a record
    that is cut short at the end is left out."""
    place = 0
    while place < len(data):
        try:
            record = unpack(data, where, place)
        except CutShortError:
            return
        except DamagedMemoryError:
            after = _next_record(data, where, place)
            yield DamagedBytes(place, after)
            place = after
            continue
        yield record
        place = record.end


def _next_record(data: memoryview, where: str, place: int) -> int:
    """Where the first record behind byte `place` begins; the end of the data where there is none."""
    content = bytes(data)
    begin = content.find(MAGIC, place + 1)
    while begin >= 0:
        try:
            unpack(data, where, begin)
        except CutShortError:
            return begin
        except DamagedMemoryError:
            begin = content.find(MAGIC, begin + 1)
        else:
            return begin
    return len(data)


def ints(tensor: torch.Tensor) -> Ints:
    """An integer tensor as int64 numpy."""
    return tensor.numpy().astype(np.int64)
