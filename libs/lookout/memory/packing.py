"""One container for everything a memory writes: a JSON header and named arrays, with a checksum."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lookout.memory.types import HistoryError, Ints, raw

MAGIC = b"LKM1"
_HEAD = struct.Struct("<4sIQ16s")

Array = torch.Tensor | np.ndarray[Any, Any]


def checksum(*parts: bytes | memoryview) -> bytes:
    """16 bytes of BLAKE2b over all parts."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()


def pack(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """One record: lengths, checksum, header, then the arrays' bytes one after the other."""
    bodies, described = [], []
    for name, array in arrays.items():
        bodies.append(raw(array).tobytes() if isinstance(array, torch.Tensor) else array.tobytes())
        described.append([name, str(array.dtype).removeprefix("torch."), list(array.shape)])
    body = b"".join(bodies)
    head = json.dumps({**header, "arrays": described}, separators=(",", ":")).encode()
    return _HEAD.pack(MAGIC, len(head), len(body), checksum(head, body)) + head + body


def unpack(data: memoryview, where: str) -> tuple[dict[str, Any], dict[str, torch.Tensor], int]:
    """Read one record.

    Args:
        data: bytes that begin with a record.
        where: named in errors.

    Returns:
        The header, the arrays (copies), and the bytes the record took.

    Raises:
        HistoryError: it is cut short or damaged.
    """
    if len(data) < _HEAD.size:
        raise HistoryError(f"{where}: a record is truncated")
    magic, head_size, body_size, expected = _HEAD.unpack(data[: _HEAD.size])
    stop = _HEAD.size + head_size + body_size
    if magic != MAGIC or len(data) < stop:
        raise HistoryError(f"{where}: a record is truncated, or is not a record of a memory")
    head, body = data[_HEAD.size : _HEAD.size + head_size], data[_HEAD.size + head_size : stop]
    if checksum(head, body) != expected:
        raise HistoryError(f"{where}: a record is damaged: its checksum does not match")
    header: dict[str, Any] = json.loads(bytes(head))
    arrays, place = {}, 0
    for name, kind, shape in header.pop("arrays"):
        dtype: torch.dtype = getattr(torch, kind)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        flat = torch.frombuffer(bytearray(body[place : place + size]), dtype=dtype) if size else None
        arrays[name] = torch.zeros(shape, dtype=dtype) if flat is None else flat.view(shape)
        place += size
    return header, arrays, stop


def ints(tensor: torch.Tensor) -> Ints:
    """An integer tensor as int64 numpy."""
    return tensor.numpy().astype(np.int64)
