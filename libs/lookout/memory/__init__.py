"""A camera's memory: born KV as visual and semantic clusters, kept online and read by retrieval (Mosaic)."""

from lookout.memory.clusters import Cluster, Partition
from lookout.memory.folder import MemoryFolder
from lookout.memory.history import CameraMemory, IndexSize, LayerIndex, OpenBlock, Snapshot
from lookout.memory.links import LINKS, LayerWork, Link, overlapped_s, serial_s
from lookout.memory.prefetch import Predictor, Prefetcher, Transfer
from lookout.memory.presets import PRESETS, MemoryPreset
from lookout.memory.retrieval import (
    Representatives,
    RetrievalSettings,
    Retrieved,
    Slots,
    Span,
    retrieve,
    token_budget,
)
from lookout.memory.types import (
    BornBlock,
    DamagedMemoryError,
    HistoryError,
    Keep,
    KVShape,
    MaintenanceCount,
    MemorySettings,
    OwnedMemoryError,
    Prefix,
    SplitMode,
    ThresholdRule,
)

__all__ = [
    "LINKS",
    "PRESETS",
    "BornBlock",
    "CameraMemory",
    "Cluster",
    "DamagedMemoryError",
    "HistoryError",
    "IndexSize",
    "KVShape",
    "Keep",
    "LayerIndex",
    "LayerWork",
    "Link",
    "MaintenanceCount",
    "MemoryFolder",
    "MemoryPreset",
    "MemorySettings",
    "OpenBlock",
    "OwnedMemoryError",
    "Partition",
    "Predictor",
    "Prefetcher",
    "Prefix",
    "Representatives",
    "RetrievalSettings",
    "Retrieved",
    "Slots",
    "Snapshot",
    "Span",
    "SplitMode",
    "ThresholdRule",
    "Transfer",
    "overlapped_s",
    "retrieve",
    "serial_s",
    "token_budget",
]
