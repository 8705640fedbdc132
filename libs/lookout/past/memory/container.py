"""The format of all records that a memory writes: a JSON header and named arrays, with a checksum.

The lengths in a record have their own checksum. A record that was cut short (its lengths are intact, but
bytes are missing) can therefore be distinguished from a damaged one. A record that was cut short was never
acknowledged.

This module does not import torch, which would take longer than finding the memories in a folder. `packing`
converts to and from tensors.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from lookout.past.memory.errors import CutShortError, DamagedMemoryError

MAGIC = b"LKM2"
_LENGTHS = struct.Struct("<4sIQ")
_HEAD = struct.Struct("<4sIQI16s")
#: bytes of an element, by the name of its type in torch
ITEM_BYTES = {
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64"), 8),
}


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array as stored in a record: its type, its shape, and a view of its bytes in the record."""

    kind: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record that was read: its header, its arrays, and its place [begin, end) in the file."""

    header: dict[str, Any]
    arrays: dict[str, StoredArray]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """A part [begin, end) of a file of records that contains no intact record."""

    begin: int
    end: int


def checksum(*parts: bytes | memoryview) -> bytes:
    """Return the BLAKE2b checksum of all parts, 16 bytes."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()


def sealed(header: Mapping[str, Any], body: bytes) -> bytes:
    """Return a record: lengths and their checksum, the checksum of the rest, the header, and `body`, the
    bytes of the arrays in order."""
    head = json.dumps(header, separators=(",", ":")).encode()
    lengths = zlib.crc32(_LENGTHS.pack(MAGIC, len(head), len(body)))
    return _HEAD.pack(MAGIC, len(head), len(body), lengths, checksum(head, body)) + head + body


def read_record(data: memoryview, where: str, begin: int = 0) -> StoredRecord:
    """Read the record that begins at byte `begin`. `where` is the file's name, for errors.

    Raises:
        CutShortError: The record is not complete.
        DamagedMemoryError: The record's checksum does not match.
    """
    head, body, end = _parts(data, where, begin)
    return _record(head, body, begin, end)


def _record(head: bytes, body: memoryview, begin: int, end: int) -> StoredRecord:
    header, places = described_arrays(head)
    arrays = {
        name: StoredArray(kind, shape, body[place : place + prod(shape) * ITEM_BYTES[kind]])
        for name, (kind, shape, place) in places.items()
    }
    return StoredRecord(header, arrays, begin, end)


def described_arrays(head: bytes) -> tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...], int]]]:
    """Parse a record's header. Return its entries without the arrays' description, and the type, shape and
    first byte of each array."""
    header: dict[str, Any] = json.loads(head)
    places, place = {}, 0
    for name, kind, shape in header.pop("arrays"):
        places[name] = kind, tuple(shape), place
        place += prod(shape) * ITEM_BYTES[kind]
    return header, places


def _parts(data: memoryview, where: str, begin: int) -> tuple[bytes, memoryview, int]:
    """Check the record that begins at byte `begin`. Return its header, its arrays' bytes, and its end.

    Raises:
        CutShortError: The record is not complete.
        DamagedMemoryError: The record's checksum does not match.
    """
    tail = data[begin:]
    # A file that was extended before its bytes were written ends in zeros. No record begins with zeros.
    if len(tail) < _HEAD.size or not (any(tail[: _HEAD.size]) or bytes(tail).strip(b"\0")):
        raise CutShortError(f"{where}: the record at byte {begin} is cut short")
    magic, head_size, body_size, lengths, expected = _HEAD.unpack(tail[: _HEAD.size])
    if magic != MAGIC or zlib.crc32(tail[: _LENGTHS.size]) != lengths:
        raise DamagedMemoryError(
            f"{where}: the record at byte {begin} is damaged: its first bytes are not those of a record"
        )
    stop = _HEAD.size + head_size + body_size
    if len(tail) < stop:
        raise CutShortError(f"{where}: the record at byte {begin} is cut short")
    head, body = tail[_HEAD.size : _HEAD.size + head_size], tail[_HEAD.size + head_size : stop]
    if checksum(head, body) != expected:
        raise DamagedMemoryError(
            f"{where}: the record at byte {begin} is damaged: its checksum does not match"
        )
    return bytes(head), body, begin + stop


def read_file_record(data: bytes, where: str) -> StoredRecord:
    """Read a file that consists of one record. `where` is the file's name, for errors.

    Raises:
        DamagedMemoryError: The file is damaged, cut short, or longer than its record.
    """
    head, body = file_parts(data, where)
    return _record(head, body, 0, len(data))


def file_parts(data: bytes, where: str) -> tuple[bytes, memoryview]:
    """Check a file that consists of one record. Return the record's header and its arrays' bytes.

    Raises:
        DamagedMemoryError: The file is damaged, cut short, or longer than its record.
    """
    try:
        head, body, end = _parts(memoryview(data), where, 0)
    except CutShortError as error:
        raise DamagedMemoryError(f"{where}: the file is damaged: it is cut short") from error
    if end != len(data):
        raise DamagedMemoryError(f"{where}: the file is damaged: {len(data) - end} bytes follow its record")
    return head, body


def read_records(data: memoryview, where: str) -> Iterator[StoredRecord | DamagedBytes]:
    """Yield the records of a file in order, and `DamagedBytes` for each damaged part, which ends at the next
    intact record. A record that is cut short at the end of the file is omitted."""
    place = 0
    while place < len(data):
        try:
            record = read_record(data, where, place)
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
    """Return where the first record after byte `place` begins, or the end of the data."""
    content = bytes(data)
    begin = content.find(MAGIC, place + 1)
    while begin >= 0:
        try:
            read_record(data, where, begin)
        except CutShortError:
            return begin
        except DamagedMemoryError:
            begin = content.find(MAGIC, begin + 1)
        else:
            return begin
    return len(data)
