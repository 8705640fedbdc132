"""Named settings of window planning."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lookout.windows.planner import WindowSettings
from lookout.windows.types import Policy

PRESETS: Mapping[str, WindowSettings] = MappingProxyType(
    {
        "front": WindowSettings(policy=Policy.FRONT, refresh_frames=2, refresh_surplus=0.1),
        "codecsight": WindowSettings(policy=Policy.REFRESH),
        "whole": WindowSettings(policy=Policy.PRUNE_ONLY),
    }
)
"""`front`: the product's default, a run of rows from the window's front is computed again: two frames, and
after a burst of movement as many as have seen it leave; the cheapest setting whose answers stay within .003
of full windows on rendered and on real cameras alike (docs/windows.md). `codecsight`: the paper's anchors
(CodecSight, section 3.4). `whole`: every window is computed in full, nothing is reused."""

DEFAULT_PRESET = "front"
