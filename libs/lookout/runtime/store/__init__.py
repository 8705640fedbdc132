"""Tensors by reference: tiers of memory and disk, a directory in Redis, transfers between peers over gRPC,
and recomputation of lost tensors."""

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.runtime.store.errors import (
    CameraQuotaError as CameraQuotaError,
    DirectoryDownError as DirectoryDownError,
    LineageBrokenError as LineageBrokenError,
    StoreError as StoreError,
    StoreFullError as StoreFullError,
    TensorCorruptError as TensorCorruptError,
    TensorNotMadeError as TensorNotMadeError,
    TensorUnavailableError as TensorUnavailableError,
)

if TYPE_CHECKING:
    from lookout.runtime.store.client import Fetched as Fetched, TensorClient as TensorClient
    from lookout.runtime.store.directory import Announcer as Announcer, Directory as Directory
    from lookout.runtime.store.keeping import Keeper as Keeper
    from lookout.runtime.store.labels import entry_of as entry_of
    from lookout.runtime.store.lifecycle import StoreLifecycle as StoreLifecycle
    from lookout.runtime.store.metrics import store_numbers as store_numbers
    from lookout.runtime.store.node import Node as Node
    from lookout.runtime.store.peers import Peers as Peers
    from lookout.runtime.store.service import TensorService as TensorService
    from lookout.runtime.store.settings import StoreSettings as StoreSettings
    from lookout.runtime.store.store import TensorStore as TensorStore
    from lookout.runtime.store.tensors import Array as Array, Rows as Rows, ranges as ranges
    from lookout.runtime.store.unread import Unread as Unread
    from lookout.runtime.store.wait_budget import WaitBudget as WaitBudget

# Services that hold no tensors still read the key that signs addresses, and must not import numpy for it.
__getattr__ = lazy_names(__name__)
