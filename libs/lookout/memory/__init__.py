"""A camera's memory: born KV as visual and semantic clusters, kept online and read by retrieval (Mosaic).

What needs torch is imported when it is first named: a list of memories does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.memory.errors import DamagedMemoryError, HistoryError, OwnedMemoryError

if TYPE_CHECKING:
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
        Keep,
        KVShape,
        MaintenanceCount,
        MemorySettings,
        Prefix,
        SplitMode,
        ThresholdRule,
    )

_LAZY = {
    "BornBlock": "types",
    "CameraMemory": "history",
    "Chapter": "past",
    "Cluster": "clusters",
    "FrameChoice": "retrieval",
    "IndexSize": "history",
    "KVShape": "types",
    "Keep": "types",
    "LINKS": "links",
    "LayerIndex": "history",
    "LayerWork": "links",
    "Link": "links",
    "LostChapterError": "past",
    "MaintenanceCount": "types",
    "MemoryFolder": "folder",
    "MemoryPreset": "presets",
    "MemorySettings": "types",
    "OpenBlock": "history",
    "PRESETS": "presets",
    "ClusterPartition": "clusters",
    "Past": "past",
    "Predictor": "prefetch",
    "Prefetcher": "prefetch",
    "Prefix": "types",
    "RangeCache": "past",
    "Readable": "past",
    "Representatives": "retrieval",
    "RetrievalSettings": "retrieval",
    "Retrieved": "retrieval",
    "Slots": "retrieval",
    "Snapshot": "history",
    "Span": "retrieval",
    "SplitMode": "types",
    "ThresholdRule": "types",
    "Traffic": "past",
    "Transfer": "prefetch",
    "overlapped_s": "links",
    "retrieve": "retrieval",
    "serial_s": "links",
    "token_budget": "retrieval",
}

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


__getattr__ = lazy_names(__name__, _LAZY)
