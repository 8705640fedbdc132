"""Tensors by reference: tiers of memory and disk, a directory in Redis, peers over gRPC, and making them
again."""

from lookout.store.errors import (
    DirectoryDownError,
    LineageBrokenError,
    StoreError,
    StoreFullError,
    TensorCorruptError,
    TensorUnavailableError,
)
from lookout.store.settings import StoreSettings
from lookout.store.store import Holdings, Materializer, StoreStats, TensorStore, entry_of
from lookout.store.tensors import Array, Rows, ranges
from lookout.store.unread import Pressure, Unread

__all__ = [
    "Array",
    "DirectoryDownError",
    "Holdings",
    "LineageBrokenError",
    "Materializer",
    "Pressure",
    "Rows",
    "StoreError",
    "StoreFullError",
    "StoreSettings",
    "StoreStats",
    "TensorCorruptError",
    "TensorStore",
    "TensorUnavailableError",
    "Unread",
    "entry_of",
    "ranges",
]
