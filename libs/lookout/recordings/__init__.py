"""Plans and times the prefill of recordings (QuickVideo): groups of frames, which KV entries are kept, and
decoding at the same time as prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.recordings.overlap import Mode as Mode, Timings as Timings, run_groups as run_groups
from lookout.recordings.types import (
    GroupPlan as GroupPlan,
    PrefillSettings as PrefillSettings,
    RecordingError as RecordingError,
    Score as Score,
)

if TYPE_CHECKING:
    from lookout.recordings.groups import GroupPlanner as GroupPlanner, grouped as grouped

#: loaded on first use, because the modules of these names import torch, which settings and timings do not
#: need
__getattr__ = lazy_names(__name__)
