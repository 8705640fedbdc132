"""A camera's memory: born KV as visual and semantic clusters, kept online and read by retrieval (Mosaic)."""

from lookout.memory.clusters import Cluster, ClusterPartition
from lookout.memory.folder import MemoryFolder
from lookout.memory.history import CameraMemory, IndexSize, LayerIndex, OpenBlock, Snapshot
from lookout.memory.links import LINKS, LayerWork, Link, overlapped_s, serial_s
from lookout.memory.past import Chapter, LostChapterError, Past, RangeCache, Readable, Traffic
from lookout.memory.prefetch import Predictor, Prefetcher, Transfer
from lookout.memory.presets import PRESETS, MemoryPreset
from lookout.memory.retrieval import (
    FrameChoice,
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
    "Chapter",
    "Cluster",
    "ClusterPartition",
    "DamagedMemoryError",
    "FrameChoice",
    "HistoryError",
    "IndexSize",
    "KVShape",
    "Keep",
    "LayerIndex",
    "LayerWork",
    "Link",
    "LostChapterError",
    "MaintenanceCount",
    "MemoryFolder",
    "MemoryPreset",
    "MemorySettings",
    "OpenBlock",
    "OwnedMemoryError",
    "Past",
    "Predictor",
    "Prefetcher",
    "Prefix",
    "RangeCache",
    "Readable",
    "Representatives",
    "RetrievalSettings",
    "Retrieved",
    "Slots",
    "Snapshot",
    "Span",
    "SplitMode",
    "ThresholdRule",
    "Traffic",
    "Transfer",
    "overlapped_s",
    "retrieve",
    "serial_s",
    "token_budget",
]
