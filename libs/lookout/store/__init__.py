"""Tensors by reference: tiers of memory and disk, a directory in Redis, peers over gRPC, and making them
again."""

from lookout.store.announcing import Holdings
from lookout.store.client import Fetched, TensorClient
from lookout.store.directory import Announcer, Directory, Holder
from lookout.store.errors import (
    CameraQuotaError,
    DirectoryDownError,
    LineageBrokenError,
    StoreError,
    StoreFullError,
    TensorCorruptError,
    TensorUnavailableError,
)
from lookout.store.keeping import Keeper
from lookout.store.labels import entry_of
from lookout.store.lifecycle import StoreLifecycle
from lookout.store.making import Materializer
from lookout.store.metrics import StoreNumbers
from lookout.store.node import Node
from lookout.store.peers import Peers
from lookout.store.service import TensorService
from lookout.store.settings import StoreSettings
from lookout.store.store import StoreStats, TensorStore
from lookout.store.tensors import Array, Rows, ranges
from lookout.store.unread import Pressure, Unread

__all__ = [
    "Announcer",
    "Array",
    "CameraQuotaError",
    "Directory",
    "DirectoryDownError",
    "Fetched",
    "Holder",
    "Holdings",
    "Keeper",
    "LineageBrokenError",
    "Materializer",
    "Node",
    "Peers",
    "Pressure",
    "Rows",
    "StoreError",
    "StoreFullError",
    "StoreLifecycle",
    "StoreNumbers",
    "StoreSettings",
    "StoreStats",
    "TensorClient",
    "TensorCorruptError",
    "TensorService",
    "TensorStore",
    "TensorUnavailableError",
    "Unread",
    "entry_of",
    "ranges",
]
