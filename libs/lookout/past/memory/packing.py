"""Packs tensors and arrays into records of the format in `container`, and unpacks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lookout.past.memory.container import (
    DamagedBytes,
    StoredArray,
    StoredRecord,
    checksum,
    read_file_record,
    read_records,
    sealed,
)
from lookout.past.memory.types import Ints, raw

Array = torch.Tensor | np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PackedRecord:
    """A record that was read: its header, copies of its arrays, and its place [begin, end) in the file."""

    header: dict[str, Any]
    arrays: dict[str, torch.Tensor]
    begin: int
    end: int

    @classmethod
    def of(cls, stored: StoredRecord) -> PackedRecord:
        """Convert the arrays of a stored record to tensors."""
        arrays = {name: _tensor(array) for name, array in stored.arrays.items()}
        return cls(stored.header, arrays, stored.begin, stored.end)


def pack(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Pack a header and named arrays into one record."""
    bodies, described = [], []
    for name, array in arrays.items():
        bodies.append(raw(array).tobytes() if isinstance(array, torch.Tensor) else array.tobytes())
        described.append([name, str(array.dtype).removeprefix("torch."), list(array.shape)])
    return sealed({**header, "arrays": described}, b"".join(bodies))


def unpack_file(data: bytes, where: str) -> PackedRecord:
    """Unpack a file that consists of one record. `where` is the file's name, for errors.

    Raises:
        DamagedMemoryError: The file is damaged, cut short, or longer than its record.
    """
    return PackedRecord.of(read_file_record(data, where))


def records(data: memoryview, where: str) -> Iterator[PackedRecord | DamagedBytes]:
    """Yield the records of a file in their order; see `read_records`."""
    for record in read_records(data, where):
        yield record if isinstance(record, DamagedBytes) else PackedRecord.of(record)


def ints(tensor: torch.Tensor) -> Ints:
    """Convert an integer tensor to int64 numpy."""
    return tensor.numpy().astype(np.int64)


def _tensor(array: StoredArray) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, array.kind)
    if not len(array.data):
        return torch.zeros(array.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.data), dtype=dtype).view(array.shape)


__all__ = ["Array", "DamagedBytes", "PackedRecord", "checksum", "ints", "pack", "records", "unpack_file"]
