"""Named settings of a memory: the default, and the paper's scheme."""

from __future__ import annotations

from dataclasses import dataclass

from lookout.past.memory.retrieval import RetrievalSettings
from lookout.past.memory.types import MemorySettings, SplitMode


@dataclass(frozen=True, slots=True)
class MemoryPreset:
    """How a memory is built and how a question reads it."""

    memory: MemorySettings
    retrieval: RetrievalSettings


PRESETS = {
    "default": MemoryPreset(MemorySettings(), RetrievalSettings()),
    "mosaic": MemoryPreset(
        MemorySettings(
            visual_frames=64, visual_cap=256, smallest_visual=8, visual_limit=4.0, split=SplitMode.DEFERRED
        ),
        RetrievalSettings(breadth=2.0, whole=0.0, representatives=True),
    ),
}
"""`default` gave the best answers at equal budget and cost (docs/memory.md). `mosaic` is our reading of the
paper: visual clusters are whole scenes (the paper gives no sizes), and all clusters that are not retrieved
have representatives."""
