"""How tensors are stored and sent: dtypes, bytes, rows and checksums."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from lookout.runtime.store.errors import TensorCorruptError
from lookout.runtime.store.settings import CHUNK_BYTES

Array = NDArray[Any]
Rows = Sequence[tuple[int, int]]
"""Half-open ranges along the first axis, in the requested order."""

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
} | {name: np.dtype(name).newbyteorder("<") for name in ("float16", "float32", "float64")}
_DTYPES["bfloat16"] = np.dtype("<u2")  # numpy has no bfloat16: its bits are sent, and torch reinterprets them


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype for a dtype's name on the wire; for bfloat16, uint16, which holds the bits.

    Raises:
        TensorCorruptError: No tensor has this dtype; object and text types are not allowed.
    """
    try:
        return _DTYPES[name]
    except KeyError:
        names = ", ".join(sorted(_DTYPES))
        raise TensorCorruptError(f"no tensor has dtype {name!r}; known: {names}") from None


def payload(array: Array) -> memoryview:
    """Return the bytes of a C-contiguous array as a read-only view, without a copy."""
    return array.reshape(-1).view(np.uint8).data.toreadonly() if array.size else memoryview(b"")


def checksum(array: Array) -> int:
    """Return the CRC-32C (Castagnoli) of the array's bytes."""
    return crc_of(payload(array))


def crc_of(data: memoryview) -> int:
    """Return the CRC-32C of bytes. They are copied one chunk at a time, because the library takes only
    `bytes`.
    """
    crc = 0
    for start in range(0, len(data), CHUNK_BYTES):
        crc = google_crc32c.extend(crc, bytes(data[start : start + CHUNK_BYTES]))
    return int(crc)


def tensor(data: bytearray | bytes | Array, dtype: str, shape: Sequence[int]) -> Array:
    """Return a read-only array over received bytes.

    Raises:
        TensorCorruptError: The number of bytes does not fit dtype and shape.
    """
    kind = numpy_dtype(dtype)
    flat = np.frombuffer(data, dtype=np.uint8)
    if any(n < 0 for n in shape) or flat.nbytes != math.prod(shape) * kind.itemsize:
        raise TensorCorruptError(f"{flat.nbytes} bytes do not fit a {dtype} tensor of shape {tuple(shape)}")
    array = flat.view(kind).reshape(tuple(shape))
    array.flags.writeable = False
    return array


def shape_of_rows(shape: Sequence[int], rows: Rows | None) -> tuple[int, ...]:
    """Return the shape of `rows` of a tensor of `shape`.

    Raises:
        IndexError: A range exceeds the tensor, or more rows are requested than it has. Otherwise a reader
            could use up memory by asking for one row a million times.
    """
    if not rows:
        return tuple(shape)
    length = shape[0] if shape else 0
    for start, stop in rows:
        if not 0 <= start <= stop <= length:
            raise IndexError(f"rows [{start}, {stop}) were requested of a tensor with {length} rows")
    count = sum(stop - start for start, stop in rows)
    if count > length:
        raise IndexError(f"{count} rows were requested of a tensor with {length} rows: ask for each row once")
    return (count, *shape[1:])


def select(array: Array, rows: Rows | None) -> Array:
    """Return rows of an array: a view for one range, a copy for several."""
    if not rows:
        return array
    shape_of_rows(array.shape, rows)
    if len(rows) == 1:
        return array[rows[0][0] : rows[0][1]]
    picked = np.concatenate([array[start:stop] for start, stop in rows])
    picked.flags.writeable = False
    return picked


def ranges(rows: Iterable[int]) -> list[tuple[int, int]]:
    """Return row numbers as half-open ranges; consecutive numbers are joined, the order is kept."""
    joined: list[tuple[int, int]] = []
    for row in rows:
        if joined and joined[-1][1] == row:
            joined[-1] = (joined[-1][0], row + 1)
        else:
            joined.append((row, row + 1))
    return joined
