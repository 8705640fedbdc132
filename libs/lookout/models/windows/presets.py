"""The window settings of the presets."""

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
"""How windows reuse KV. Together with the masks of the same name in `lookout.pruning.PRESETS`, these settings
form the presets of every command (`lookout.models.presets`).

`default`: the first rows of the window are recomputed: two frames, or more after a burst of motion has left
the window. This is the cheapest setting whose answers stay within 0.003 of windows computed in full, on
rendered and on real footage, in windows of 20 frames (docs/windows.md). `faithful`: at least a fifth of the
window's frames is recomputed, which stays within 0.003 in windows of 80 frames too. `codecsight`: the anchors
are recomputed, as in the paper (CodecSight, section 3.4). `strides`: each stride is asked about in a separate
prompt, a window's answer is the largest p(yes) of its strides, and no KV is kept. `whole`: every window is
computed in full."""

DEFAULT_PRESET = "default"
