"""Named settings of window planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from lookout.models.windows.planner import DEFAULT_WINDOWS, WindowSettings
from lookout.models.windows.types import Policy

PRESETS: Mapping[str, WindowSettings] = MappingProxyType(
    {
        "default": DEFAULT_WINDOWS,
        "faithful": replace(DEFAULT_WINDOWS, refresh_share=0.2),
        "codecsight": WindowSettings(policy=Policy.REFRESH),
        "strides": WindowSettings(policy=Policy.PRUNE_ONLY, alone=True),
        "whole": WindowSettings(policy=Policy.PRUNE_ONLY),
    }
)
"""How windows reuse KV. With the masks in `lookout.pruning.PRESETS` of the same name, they are the presets of
every command (`lookout.models.presets`).

`default`: a run of rows from the window's front is recomputed: two frames, plus the blocks recomputed after a
burst of motion leaves the window. It is the cheapest setting whose answers stay within .003 of full windows
on rendered and on real cameras alike, in windows of 20 frames (docs/windows.md). `faithful`: at least a fifth
of the window's frames, which stays within .003 in windows of 80 frames as well. `codecsight`: the paper's
anchors (CodecSight, section 3.4). `strides`: each stride is asked about in a separate prompt, and a window
has the largest p(yes) of its strides; no KV is kept. `whole`: every window is computed in full, nothing is
reused."""

DEFAULT_PRESET = "default"
