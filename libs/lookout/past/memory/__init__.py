"""Stores a camera's past as KV in visual and semantic clusters, updated online and read by retrieval
(Mosaic).

Names that need torch are imported on first use, because listing memories does not need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.past.memory.errors import (
    DamagedMemoryError as DamagedMemoryError,
    HistoryError as HistoryError,
    OwnedMemoryError as OwnedMemoryError,
)

if TYPE_CHECKING:
    from lookout.past.memory.clusters import Cluster as Cluster, ClusterPartition as ClusterPartition
    from lookout.past.memory.folder import MemoryFolder as MemoryFolder
    from lookout.past.memory.history import (
        CameraMemory as CameraMemory,
        IndexSize as IndexSize,
        LayerIndex as LayerIndex,
        OpenBlock as OpenBlock,
        Snapshot as Snapshot,
    )
    from lookout.past.memory.past import (
        Chapter as Chapter,
        LostChapterError as LostChapterError,
        Past as Past,
        RangeCache as RangeCache,
        Readable as Readable,
        Traffic as Traffic,
    )
    from lookout.past.memory.prefetch import (
        Predictor as Predictor,
        Prefetcher as Prefetcher,
        Transfer as Transfer,
    )
    from lookout.past.memory.presets import PRESETS as PRESETS, MemoryPreset as MemoryPreset
    from lookout.past.memory.retrieval import (
        FrameChoice as FrameChoice,
        Representatives as Representatives,
        RetrievalSettings as RetrievalSettings,
        Retrieved as Retrieved,
        Slots as Slots,
        Span as Span,
        retrieve as retrieve,
        token_budget as token_budget,
    )
    from lookout.past.memory.types import (
        BornBlock as BornBlock,
        Keep as Keep,
        KVShape as KVShape,
        MaintenanceCount as MaintenanceCount,
        MemorySettings as MemorySettings,
        Prefix as Prefix,
        SplitMode as SplitMode,
        ThresholdRule as ThresholdRule,
    )

__getattr__ = lazy_names(__name__)
